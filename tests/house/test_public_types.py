"""What the public functions return has a type of its own, and so has its JSON."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import strata_pack
from strata_pack.compare.full import Comparison
from strata_pack.pack import inspect_path
from strata_pack.replay import replay_log
from strata_pack.smoke import prove_pack, run_smoke
from strata_pack.weights import fetch_repo

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
AS_JSON = ["chat.golden.check.GoldenReport", "pack.inspect.Inspection", "replay.replay.Replay", "report.model.Report"]
AS_JSON += ["smoke.prove.Proof", "weights.hub.outcome.FetchPlan", "weights.hub.outcome.FetchResult"]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_public_function_returns_a_type_of_its_own(function: Callable[..., Any]) -> None:
    assert not inspect.signature(function).return_annotation.startswith(("dict", "Any", "Mapping", "object"))


@pytest.mark.parametrize("path", AS_JSON)
def test_the_json_of_a_result_is_typed(path: str) -> None:
    module, _, name = path.rpartition(".")
    kind = getattr(__import__(f"strata_pack.{module}", fromlist=[name]), name)
    assert inspect.signature(kind.to_dict).return_annotation == f"{name}Dict"


def test_the_json_of_a_comparison_is_typed() -> None:
    assert inspect.signature(Comparison.to_dict).return_annotation == "ComparisonDict"
