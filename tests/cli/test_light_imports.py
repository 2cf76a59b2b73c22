"""The command line and the parser start without the heavy packages."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from strata_pack.cli.commands import COMMANDS

HEAVY = {
    "numpy",
    "gguf",
    "xllamacpp",
    "huggingface_hub",
    "jinja2",
    "minijinja",
    "transformers",
    "httpx2",
    "starlette",
    "uvicorn",
    "prometheus_client",
    "jsonschema",
}

PROGRAM = """
import json, sys
{statement}
print("LOADED " + json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""

HELP = """
import contextlib, io
from strata_pack.cli.app import app
with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
    app({arguments!r})
assert "Usage" in text.getvalue()
"""


def loaded_by(statement: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(statement=statement)], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.rpartition("LOADED ")[2]))


@pytest.mark.parametrize(
    "statement",
    ["import strata_pack", "from strata_pack.parsing import OutputParser", "import strata_pack.cli.app"],
)
def test_an_import_loads_nothing_heavy(statement: str) -> None:
    assert not loaded_by(statement) & HEAVY


@pytest.mark.parametrize("command", [[], ["build"], ["template"], ["smoke"], ["serve"]])
def test_help_loads_nothing_heavy(command: list[str]) -> None:
    assert not loaded_by(HELP.format(arguments=[*command, "--help"])) & HEAVY


def test_naming_the_parser_loads_nothing_else() -> None:
    assert loaded_by("from strata_pack.parsing import OutputParser") - loaded_by("pass") <= {
        "strata_pack",
        "__future__",
    }


def test_the_parser_needs_the_standard_library_alone() -> None:
    allowed = set(sys.stdlib_module_names) | {"strata_pack", "__main__", "sitecustomize", "_virtualenv"}
    loaded = loaded_by("from strata_pack.parsing import OutputParser; OutputParser().feed('x')")
    assert loaded - loaded_by("pass") - allowed == set()


@pytest.mark.parametrize("flag", ["--help", "-h", "--version"])
def test_the_top_page_and_the_version_load_no_package_at_all(flag: str) -> None:
    statement = f"import sys; sys.argv[1:] = [{flag!r}]\nimport strata_pack.cli.main as m\n"
    statement += "try: m.main()\nexcept SystemExit: pass"
    assert loaded_by(statement) - loaded_by("pass") <= {"strata_pack", "__future__"}


def test_completing_a_command_name_imports_no_command() -> None:
    statement = "from strata_pack.cli.app import app\nimport typer.main as t\ngroup = t.get_command(app)\n"
    statement += (
        "names = [i.value for i in group.shell_complete(group.make_context('x', [], resilient_parsing=True), '')]"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", f"{statement}\nimport sys, json\nprint(json.dumps([names, list(sys.modules)]))"],
        capture_output=True,
        text=True,
        check=True,
    )
    names, modules = json.loads(loaded.stdout)
    assert set(names) == set(COMMANDS)
    assert not {module for module, _ in COMMANDS.values()} & set(modules)
