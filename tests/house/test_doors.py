"""The doors: every public name is there, typed as it is, and opening a room imports nothing."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys

import pytest

from tests.house.imports import modules

DOORS = [name for name, path in modules().items() if "__all__ = door(" in path.read_text(encoding="utf-8")]
ROOMS = [name for name, path in modules().items() if path.name == "__init__.py" and name.count(".") == 1]


def typed_names(door: str) -> set[tuple[str, str]]:
    """Return (module, name) of what the door imports for type checkers."""
    tree = ast.parse(modules()[door].read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    found = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {(str(node.module), alias.name) for node in found for alias in node.names}


@pytest.mark.parametrize("door", DOORS)
def test_every_name_is_the_one_that_type_checkers_see(door: str) -> None:
    package = importlib.import_module(door)
    seen = {(module, name): getattr(importlib.import_module(module), name) for module, name in typed_names(door)}
    assert {name: getattr(package, name) for name in package.__all__} == {
        name: value for (_, name), value in seen.items()
    }


@pytest.mark.parametrize("door", DOORS)
def test_no_public_name_is_a_module_of_the_room(door: str) -> None:
    inside = {name.removeprefix(f"{door}.").partition(".")[0] for name in modules() if name.startswith(f"{door}.")}
    assert not inside & set(importlib.import_module(door).__all__)


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_says_what_it_does(room: str) -> None:
    assert importlib.import_module(room).__doc__


def test_opening_every_door_imports_no_room() -> None:
    code = f"import sys, {', '.join(DOORS)}; print([n for n in sys.modules if n.startswith('strata_pack')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(ast.literal_eval(done.stdout)) == {*DOORS, "strata_pack", "strata_pack.doors"}


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        importlib.import_module("strata_pack.chat").nothing  # noqa: B018
