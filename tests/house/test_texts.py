"""Texts have one reading: words that must be read twice stand in no page and no docstring."""

from __future__ import annotations

import ast
import re

import pytest

from tests.conftest import ROOT
from tests.house.imports import trees

pytestmark = pytest.mark.xdist_group("house")  # the package is parsed once

READ_TWICE = {
    r"\bbeside\b": "next to, together with, in addition to",
    r"\b(?:is|are|was|were|been) told\b": "reported, called, given",
    r"\bunless told\b": "by default",
    r"\bthat (?:is|are) none\b": "say what it is not",
    r"\bwhat is no\b": "name what it is",
    r"\bgoes by\b": "is named, is called",
    r"\bkeeper\b": "supervisor, owner",
    r"\b[Ss]ay whether\b": "Return whether",
    r"\bstands (?:before|behind)\b": "is before, is after",
    r"\btravels\b": "is sent, is downloaded",
    r"\bone behind the other\b": "one after the other",
    r"\bthe (?:text|newlines?|tags?|white space) behind\b": "after",
}
"""What is looked for, and what says it plainly."""

PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
]
WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def found_in(where: str, text: str) -> list[str]:
    return [
        f"{where}: {one.group()} -> {plain}" for word, plain in READ_TWICE.items() for one in re.finditer(word, text)
    ]


def test_no_page_must_be_read_twice() -> None:
    assert [one for page in PAGES for one in found_in(page.name, page.read_text(encoding="utf-8"))] == []


def test_no_docstring_must_be_read_twice() -> None:
    wrong = []
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, WITH_DOCSTRING):
                wrong += found_in(f"{name}:{node.body[0].lineno}", ast.get_docstring(node) or "")
    assert wrong == []
