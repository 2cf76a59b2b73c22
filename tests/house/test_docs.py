"""What the pages say of the code: quoted sentences are the code's, and sizes are those of plans."""

from __future__ import annotations

import ast
import re

import pytest

from tests.conftest import ROOT, load_tool
from tests.house.imports import trees

pytestmark = pytest.mark.xdist_group("house")  # the package is parsed once

TROUBLES = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")


def texts() -> str:
    """Return every string constant of the package, those of f-strings included."""
    constants = (node.value for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return "\n".join(value for value in constants if isinstance(value, str))


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
