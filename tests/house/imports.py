"""Who imports whom inside ``strata_pack``, read from the source: module level, functions, typing."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "strata_pack"


@dataclass(frozen=True)
class Import:
    """One imported module, with the line it is imported in; ``typing_only`` inside ``if TYPE_CHECKING``."""

    importer: str
    imported: str
    name: str | None
    line: int
    typing_only: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}" + (f".{self.name}" if self.name else "")


@functools.cache
def modules() -> dict[str, Path]:
    """Return every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of every module."""
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in modules().items()}


@functools.cache
def imports() -> list[Import]:
    """Return every import of one module of the package by another."""
    return [found for name, tree in trees().items() for found in _of_module(name, tree)]


def room(module: str) -> str:
    """Return the room of a module: ``strata_pack.chat.render.budget`` lies in ``chat``; the package itself is ""."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def _of_module(name: str, tree: ast.Module) -> Iterator[Import]:
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "strata_pack":
                    yield Import(name, alias.name, None, node.lineno, node in typing_only)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "strata_pack":
            assert node.module is not None
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in trees():
                    yield Import(name, full, None, node.lineno, node in typing_only)
                else:
                    yield Import(name, node.module, alias.name, node.lineno, node in typing_only)
