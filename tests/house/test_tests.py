"""The tests themselves: none asserts on the wall clock, which a busy machine stretches."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.conftest import ROOT

CLOCKS = ("time.monotonic()", "time.perf_counter()", "time.time()")


def elapsed(node: ast.AST) -> bool:
    """Say whether ``node`` asserts on the difference of a wall clock and an earlier look at it."""
    differences = (one for one in ast.walk(node) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Sub))
    return isinstance(node, ast.Assert) and any(ast.unparse(one.left) in CLOCKS for one in differences)


def wrong(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [f"{path.relative_to(ROOT)}:{node.lineno}" for node in ast.walk(tree) if elapsed(node)]  # type: ignore[attr-defined]


def test_no_test_asserts_on_the_wall_clock() -> None:
    assert [line for path in sorted((ROOT / "tests").rglob("*.py")) for line in wrong(path)] == []


def test_the_search_finds_one() -> None:
    assert elapsed(ast.parse("assert time.monotonic() - start < 5").body[0])
