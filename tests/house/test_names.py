"""One name means one thing: classes and type aliases are unique, and seconds are named one way."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.house.imports import trees

pytestmark = pytest.mark.xdist_group("house")  # the package is parsed once

CAMEL = re.compile(r"[A-Z][a-z]+(?:[A-Z0-9][a-z0-9]*)*")
SHORT_FOR_SECONDS = re.compile(r"_(?:s|sec|secs|timeout)$|^(?:timeout|secs?)$", re.IGNORECASE)
CONSTANT_OF_SECONDS = re.compile(r"(?:^|_)(?:TIMEOUT|INTERVAL|DELAY|PAUSE|POLL|GRACE|WAIT)$")
NOT_SECONDS = {"IQ1_S", "IQ2_S", "IQ3_S"}
FLAGS = {"start_timeout", "request_timeout"}
"""Parameters of commands: their names are the options that the user types."""


def types_of(module: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the public classes and type aliases of a module, each with the module or type it stands for.

    Annotated types are left out: they are the options of commands, and fields of requests.
    """
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, module
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, meaning = node.targets[0].id, ast.unparse(node.value)
            alias = isinstance(node.value, (ast.Subscript, ast.BinOp)) and not meaning.startswith("Annotated[")
            if alias and CAMEL.fullmatch(name):
                yield name, meaning


def bound(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield each parameter, field and variable with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def test_a_type_name_means_one_thing() -> None:
    meanings = defaultdict(set)
    for module, tree in trees().items():
        for name, meaning in types_of(module, tree):
            meanings[name].add(meaning)
    assert {name: found for name, found in meanings.items() if len(found) > 1} == {}


def test_numbers_of_seconds_are_called_seconds() -> None:
    wrong = [
        f"{module}:{line} {name}"
        for module, tree in trees().items()
        for name, line in bound(tree)
        if (SHORT_FOR_SECONDS.search(name) or CONSTANT_OF_SECONDS.search(name)) and name not in NOT_SECONDS | FLAGS
    ]
    assert wrong == []
