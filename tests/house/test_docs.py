"""What the pages say of the code: commands can be called, quoted sentences are its own, sizes are those of plans."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from typing import Any

import pytest
import typer.main

from strata_pack.cli.app import app
from strata_pack.cli.imatrix import DEFAULT
from tests.conftest import ROOT, load_tool
from tests.house.imports import trees

pytestmark = pytest.mark.xdist_group("house")  # the package is parsed once

IMPORTS = [
    pytest.param(module, name.strip(), id=f"{page.name}: {module}.{name.strip()}")
    for page in sorted((ROOT / "docs").glob("*.md"))
    for module, names in re.findall(r"^ *from (strata_pack[\w.]*) import (.+)$", page.read_text(encoding="utf-8"), re.M)
    for name in names.split(",")
]
TROUBLES = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINES = [
    pytest.param(line, id=f"{page.name}: {line}")
    for page in PAGES
    for line in re.findall(r"^(?: {4}|\$ )strata-pack (.+)$", page.read_text(encoding="utf-8"), re.M)
    if not re.search(r"\[|\w\|\w|\.\.\.", line)  # the forms of a command, not one of them
]


def texts() -> str:
    """Return every string constant of the package, those of f-strings included."""
    constants = (node.value for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return "\n".join(value for value in constants if isinstance(value, str))


@pytest.mark.parametrize(("module", "name"), IMPORTS)
def test_a_page_imports_public_names_from_their_package(module: str, name: str) -> None:
    assert name in importlib.import_module(module).__all__


@pytest.mark.parametrize("line", LINES)
def test_a_command_of_a_page_has_arguments_that_it_takes(line: str) -> None:
    words = shlex.split(line, comments=True)
    ends = [place for place, word in enumerate(words) if word in ("|", ">", "||", "&&", "&")]
    words = words[: min(ends, default=len(words))]
    command: Any = typer.main.get_command(app)
    while commands := getattr(command, "commands", None):
        name, *words = words if words[0] in commands else [DEFAULT, *words]
        command = commands[name]
    command.make_context(name, words)


@pytest.mark.parametrize("quoted", re.findall(r'"([^"]{8,})"', TROUBLES))
def test_a_sentence_that_troubleshooting_quotes_is_one_of_the_code(quoted: str) -> None:
    assert quoted in texts()


@pytest.mark.parametrize("check", re.findall(r"`verify` fails on `(\w+)`", TROUBLES))
def test_a_check_that_troubleshooting_names_is_one_of_verify(check: str) -> None:
    verification = ast.unparse(trees()["strata_pack.pack.verification"])
    assert f"checked('{check}'" in verification


def test_the_sizes_are_those_of_the_plans() -> None:
    sizes = load_tool("size_table")
    text = sizes.DOCUMENT.read_text(encoding="utf-8")
    assert text == sizes.document_with(text)
