"""What is shipped: the parser alone as a wheel, the lowest versions, the extras, one place for the version."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from strata_pack import __version__
from tests.conftest import ROOT

REPLY = "I look.\\n<tool_call>\\n<function=look>\\n<parameter=at>\\nsky\\n</parameter>\\n</function>\\n</tool_call>"
PROGRAM = f"""
import sys
sys.path.insert(0, sys.argv[1])
from strata_parser import OutputParser, parse
assert [call.name for call in parse("{REPLY}", thinking=True).calls] == ["look"]
foreign = {{name.partition(".")[0] for name in sys.modules}} - sys.stdlib_module_names - {{"strata_parser", "__main__"}}
print(sorted(name for name in foreign if not name.startswith("_") and name != "sitecustomize"))
"""


@pytest.mark.slow
@pytest.mark.registry
def test_the_parser_is_a_wheel_of_its_own_without_dependencies(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        tmp_path,
        "packaging/parser",
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("strata_parser-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "in")
        (metadata,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        text = archive.read(metadata).decode()
    assert "Requires-Dist" not in text
    assert f"\nVersion: {__version__}\n" in text
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PROGRAM, tmp_path / "in"], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.slow
@pytest.mark.registry
@pytest.mark.timeout(1800)
def test_the_lowest_versions_that_are_allowed_work() -> None:
    done = subprocess.run([ROOT / ".ci/lowest", sys.executable], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("the lowest versions work\n"), done.stdout + done.stderr


def test_the_version_stands_in_one_place() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "*.py", "*.toml"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    written = re.compile(r'^(?:__version__|version)\s*=\s*"[0-9]', re.MULTILINE)
    found = [name for name in tracked.stdout.split() if written.search((ROOT / name).read_text(encoding="utf-8"))]
    assert found == ["strata_pack/__init__.py"]
