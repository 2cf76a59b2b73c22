"""What the public functions return has a type of its own, and so has its JSON."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import strata_pack
from strata_pack.compare.many import ModelComparison
from strata_pack.pack import inspect_path
from strata_pack.replay import replay_log
from strata_pack.smoke import prove_pack, run_smoke
from strata_pack.weights import fetch_repo
from tests.house.imports import modules

FUNCTIONS = [
    strata_pack.build_pack,
    strata_pack.check_golden,
    strata_pack.repair_template,
    strata_pack.verify,
    fetch_repo,
    inspect_path,
    prove_pack,
    replay_log,
    run_smoke,
]
OPEN = {"GoldenCase", "Rule"}
"""A file format with keys of other programs, and a table of texts."""


def as_json() -> list[type]:
    """Return every class of a door that has ``to_dict``, and the results of ``compare``."""
    doors = [name for name, path in modules().items() if path.name == "__init__.py" and name.count(".") <= 1]
    doors.remove("strata_pack.cli")
    public = [getattr(module, name) for module in map(importlib.import_module, doors) for name in module.__all__]
    kinds = {one for one in (*public, ModelComparison) if inspect.isclass(one)}
    return [one for one in kinds if hasattr(one, "to_dict") and one.__name__ not in OPEN]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_public_function_returns_a_type_of_its_own(function: Callable[..., Any]) -> None:
    assert not inspect.signature(function).return_annotation.startswith(("dict", "Any", "Mapping", "object"))


def test_the_json_of_a_public_result_is_typed() -> None:
    written = {kind.__name__: inspect.signature(kind.to_dict).return_annotation for kind in as_json()}
    assert {name: found for name, found in written.items() if not re.fullmatch(r"[A-Z]\w+Dict", found)} == {}
