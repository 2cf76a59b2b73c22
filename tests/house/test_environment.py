"""Every environment variable that the code reads is in the one table, and the page shows the table."""

from __future__ import annotations

import ast

import pytest

from strata_pack.environment import VARIABLES, describe_environment, page, set_variables
from tests.conftest import ROOT
from tests.house.imports import trees

pytestmark = pytest.mark.xdist_group("house")  # the package is parsed once

KNOWN = {name for section in VARIABLES.values() for name in section}
FOR_OTHERS = {"GOMP_SPINCOUNT", "TRANSFORMERS_NO_ADVISORY_WARNINGS", "_STRATA_PACK_COMPLETE"}
"""Names that the code sets for a process it starts, or that the shell sets for completion."""


def is_environment(node: ast.expr) -> bool:
    return ast.unparse(node) in {"os.environ", "environment", "environ"}


def names_read() -> set[str]:
    """Return the constants that are looked up in the environment, and typer's ``envvar``."""
    found: set[str] = set()
    for tree in trees().values():
        for node in ast.walk(tree):
            keys: list[ast.expr] = []
            if isinstance(node, ast.Subscript) and is_environment(node.value):
                keys = [node.slice]
            elif isinstance(node, ast.Compare) and any(map(is_environment, node.comparators)):
                keys = [node.left]
            elif (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_environment(node.func.value)
            ):
                keys = node.args[:1]
            elif isinstance(node, ast.keyword) and node.arg == "envvar":
                keys = [node.value]
            found |= {key.value for key in keys if isinstance(key, ast.Constant) and str(key.value).isupper()}
    return found


def test_every_variable_that_is_read_is_in_the_table() -> None:
    assert names_read() - FOR_OTHERS <= KNOWN


def test_the_page_is_the_table() -> None:
    assert (ROOT / "docs/environment.md").read_text(encoding="utf-8") == page()


def test_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abc")
    monkeypatch.setenv("STRATA_API_KEY", "k-abc")
    assert {"HF_TOKEN", "STRATA_API_KEY"} <= set(set_variables())
    assert "abc" not in str(describe_environment())
