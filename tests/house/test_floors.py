"""The floors of the house: a room imports the rooms below it, and nothing else of the project."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict

import pytest

from tests.house.imports import Import, imports, modules, room, trees

STOREYS = (
    ("doors",),
    ("", "errors"),
    ("extras", "files", "locks", "outputs", "parsing", "plural", "prefixes", "progress", "resources", "suggest"),
    ("cache", "environment", "policy"),
    ("llama", "replay", "report"),
    ("chat", "weights"),
    ("pack",),
    ("compare", "gateway", "smoke"),
    ("publish",),
    ("release",),
    ("cli",),
    ("__main__",),
)
"""The rooms from the ground up; "" is ``strata_pack`` itself."""

pytestmark = pytest.mark.xdist_group("house")  # the package is parsed once

FLOORS = {name: floor for floor, names in enumerate(STOREYS) for name in names}


def runtime_graph() -> dict[str, set[str]]:
    """Return what each module imports when it runs, function-level imports included."""
    graph: dict[str, set[str]] = defaultdict(set)
    for found in imports():
        if not found.typing_only and found.importer != found.imported:
            graph[found.importer].add(found.imported)
    return graph


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules of one import cycle, in order; an empty list if there is none."""
    done: set[str] = set()
    for start in sorted(graph):
        path: list[str] = []
        stack = [(start, iter(sorted(graph[start])))] if start not in done else []
        path += [start] if stack else []
        while stack:
            node, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                done.add(node)
                stack.pop()
                path.pop()
            elif following in path:
                return [*path[path.index(following) :], following]
            elif following not in done:
                path.append(following)
                stack.append((following, iter(sorted(graph.get(following, ())))))
    return []


def is_private(found: Import) -> bool:
    names = [*found.imported.split("."), found.name or ""]
    return any(name.startswith("_") and not name.startswith("__") for name in names)


def test_every_room_has_a_floor() -> None:
    assert {room(name) for name in modules()} <= set(FLOORS)


def test_a_room_imports_only_lower_floors() -> None:
    wrong = [
        str(found)
        for found in imports()
        if (above := room(found.importer)) != (below := room(found.imported)) and FLOORS[above] <= FLOORS[below]
        if not (above == "" and found.typing_only)
    ]
    assert wrong == []


def test_no_module_is_part_of_an_import_cycle() -> None:
    assert cycle(runtime_graph()) == []


def test_no_private_name_crosses_rooms() -> None:
    crossing = [str(found) for found in imports() if room(found.importer) != room(found.imported) and is_private(found)]
    assert crossing == []


def test_no_import_is_relative() -> None:
    relative = [
        f"{name}:{node.lineno}"
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


def test_the_parser_imports_the_standard_library_alone() -> None:
    foreign = {
        name
        for module, tree in trees().items()
        if room(module) == "parsing"
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
        if name.split(".")[0] not in sys.stdlib_module_names and not name.startswith("strata_pack.parsing")
    }
    assert foreign == set()


def test_there_is_one_http_client() -> None:
    others = {"requests", "urllib3", "aiohttp", "httpx", "http.client", "urllib.request"}
    imported = {
        f"{module} imports {name}"
        for module, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
        if name in others
    }
    assert imported == set()


def test_the_search_for_cycles_finds_one() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
