"""The public cases, each cut into every kind of delta."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from strata_pack.parsing import OutputParser, parse
from tests.parsing.data import read_lines, tools_of
from tests.parsing.invariants import Outcome, read_events

CASES = read_lines("cases.jsonl")
SERVER_CASES = read_lines("server_cases.jsonl")
Cuts = Callable[[dict[str, Any]], Iterator[list[str]]]


def outcome_of(case: dict[str, Any], deltas: list[str], *, stream_tools: bool) -> Outcome:
    parser = OutputParser(thinking=case["thinking"], tools=tools_of(case), stream_tools=stream_tools)
    events = [event for delta in deltas for event in parser.feed(delta)]
    events += parser.finish(case["finish"])
    return read_events(events, stream_tools=stream_tools)


def some_cuts(case: dict[str, Any]) -> Iterator[list[str]]:
    """Yield the case's own deltas, every size from 1 to 8, and random sizes."""
    text = case["input"]
    yield case.get("deltas") or [text]
    yield [text]
    for size in range(1, 9):
        yield [text[start : start + size] for start in range(0, len(text), size)]
    chance = random.Random(case["id"])
    for _ in range(10):
        cuts = sorted(chance.choices(range(len(text) + 1), k=chance.randint(1, 12)))
        yield [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def cuts_in_two(case: dict[str, Any]) -> Iterator[list[str]]:
    """Yield every cut of the text in two."""
    text = case["input"]
    for cut in range(1, len(text), 1 if len(text) < 1000 else 17):
        yield [text[:cut], text[cut:]]


@pytest.mark.parametrize("cuts", [some_cuts, pytest.param(cuts_in_two, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stream_tools", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case_holds_for_every_cut(case: dict[str, Any], stream_tools: bool, cuts: Cuts) -> None:
    expected = case["expect"]
    calls = [(call["name"], call["arguments"]) for call in expected["calls"]]
    for deltas in cuts(case):
        outcome = outcome_of(case, deltas, stream_tools=stream_tools)
        assert outcome.calls == calls, deltas
        assert outcome.reasoning == expected["reasoning"], deltas
        if not outcome.open_calls:  # an announced call that was cut is not repeated as content
            assert outcome.content == expected["content"], deltas


def test_there_are_all_the_cases() -> None:
    assert len(CASES) == 184


@pytest.mark.parametrize("case", SERVER_CASES, ids=lambda case: case["id"])
def test_server_case_is_parsed_as_expected(case: dict[str, Any]) -> None:
    reply = parse(case["generated"], thinking=case["thinking"], tools=case["tools"] or None)
    expected = case["expect"]
    if "calls" in expected:
        assert [{"name": call.name, "arguments": call.arguments} for call in reply.calls] == expected["calls"]
    for kind in ("reasoning", "content"):
        if kind in expected:
            assert getattr(reply, kind) == expected[kind]


@pytest.mark.parametrize(("case_id", "ends", "calls"), [("SA-001", 1, 1), ("SA-002", 0, 0), ("SA-003", 1, 2)])
def test_implicit_ends_count_ends_and_implicit_calls_count_calls(case_id: str, ends: int, calls: int) -> None:
    case = next(case for case in SERVER_CASES if case["id"] == case_id)
    counters = parse(case["generated"], thinking=True, tools=case["tools"]).counters
    assert (counters.implicit_ends, counters.implicit_calls) == (ends, calls)


def test_a_reply_without_an_end_of_the_thinking_is_flagged() -> None:
    case = next(case for case in SERVER_CASES if case["id"] == "SA-005")
    assert parse(case["generated"], thinking=True).counters.ended_inside_thinking


def test_parallel_calls_have_ids_of_their_own() -> None:
    case = next(case for case in SERVER_CASES if case["id"] == "SA-015")
    first, second = parse(case["generated"], thinking=True, tools=case["tools"]).calls
    assert first.id != second.id
