"""Every tolerated drift makes its call; what only looks like drift stays what it is."""

from __future__ import annotations

from typing import Any

import pytest

from strata_pack.parsing.tool_call import DRIFT, ROWS
from tests.parsing.data import read_object
from tests.parsing.invariants import check

DATA = read_object("drift.json")
TOOLS = [
    {"name": "save", "parameters": {"properties": {"path": {"type": "string"}, "text": {"type": "string"}}}},
    {"name": "jobs", "parameters": {"properties": {}}},
]


def named(calls: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    return [(call["name"], call["arguments"]) for call in calls]


@pytest.mark.parametrize("case", DATA["drift"], ids=lambda case: case["drift"])
def test_drift_makes_a_call(case: dict[str, Any]) -> None:
    tools = TOOLS if case["tools"] == "known" else None
    outcome = check(case["text"], [7, 19], "stop", thinking=False, tools=tools)
    assert outcome.calls == named(case["calls"])
    assert outcome.content == case["content"]


@pytest.mark.parametrize("case", DATA["no_drift"], ids=lambda case: case["why"])
def test_what_is_no_drift_stays_text_or_value(case: dict[str, Any]) -> None:
    outcome = check(case["text"], [7, 19], "stop", thinking=False, tools=TOOLS)
    assert outcome.calls == named(case["calls"])
    assert outcome.content == case["content"]


def test_every_drift_of_the_table_has_a_name_and_a_case() -> None:
    in_rows = {row.drift for row in ROWS if row.drift}
    assert in_rows == set(DRIFT)
    assert in_rows <= {case["drift"] for case in DATA["drift"]}


def test_no_place_has_two_rows_for_one_token() -> None:
    pairs = [(place, token) for row in ROWS for place in row.places for token in row.tokens]
    assert len(pairs) == len(set(pairs))


@pytest.mark.parametrize("case", [c for c in DATA["drift"] if c["drift"] == "call-closer-missing"])
def test_a_cut_reply_completes_no_call_that_misses_its_end(case: dict[str, Any]) -> None:
    whole = check(case["text"], [], "stop", thinking=False, tools=TOOLS)
    cut = check(case["text"], [], "length", thinking=False, tools=TOOLS)
    complete = case["text"].rstrip().endswith("</tool_call>")
    assert (cut.calls == whole.calls) is complete
