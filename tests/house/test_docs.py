"""What the pages say of the code: quoted sentences are the code's, and sizes are those of plans."""

from __future__ import annotations

import ast
import importlib
import re

import pytest

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


def texts() -> str:
    """Return every string constant of the package, those of f-strings included."""
    constants = (node.value for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return "\n".join(value for value in constants if isinstance(value, str))


@pytest.mark.parametrize(("module", "name"), IMPORTS)
def test_a_page_imports_public_names_from_their_package(module: str, name: str) -> None:
    assert name in importlib.import_module(module).__all__


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
