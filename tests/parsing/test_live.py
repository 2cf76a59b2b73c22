"""The failures seen live, the mentions that must stay mentions, and what each policy makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from strata_pack.parsing import ImplicitEnd, Reply, parse
from tests.parsing.data import read_object
from tests.parsing.invariants import check

DATA = read_object("live.json")
TOOLS = DATA["tools"]
REAL = DATA["real_call"]
LIVE = pytest.mark.parametrize("case", DATA["live"], ids=lambda case: case["id"])
MENTION = pytest.mark.parametrize("case", DATA["mentions"], ids=lambda case: case["id"])


def calls_of(reply: Reply) -> list[dict[str, Any]]:
    return [{"name": call.name, "arguments": call.arguments} for call in reply.calls]


def test_there_are_four_failures_and_ten_mentions_and_one_value_of_6_kilobytes() -> None:
    assert (len(DATA["live"]), len(DATA["mentions"])) == (4, 10)
    assert max(len(case["input"]) for case in DATA["live"]) > 6 * 1024


@LIVE
def test_a_call_at_the_end_of_the_thinking_is_delivered(case: dict[str, Any]) -> None:
    reply = parse(case["input"], tools=TOOLS)
    assert calls_of(reply) == [case["call"]]
    assert (reply.reasoning, reply.content) == (case["reasoning"], "")
    assert reply.counters.implicit_ends == 1
    assert not reply.counters.ended_inside_thinking


@LIVE
def test_followed_by_the_end_of_the_thinking_and_a_real_call_both_are_delivered(case: dict[str, Any]) -> None:
    reply = parse(f"{case['input']}\n</think>\n\n{REAL['input']}", tools=TOOLS)
    assert calls_of(reply) == [case["call"], REAL["call"]]
    assert (reply.reasoning, reply.content) == (case["reasoning"], "")
    assert (reply.counters.implicit_ends, reply.counters.implicit_calls) == (1, 1)


@LIVE
def test_live_failure_holds_every_invariant(case: dict[str, Any]) -> None:
    text = case["input"] if len(case["input"]) < 2000 else case["input"][:900] + case["input"][-400:]
    check(text, [5, 60, 200], "stop", tools=TOOLS)


@MENTION
def test_a_mention_stays_reasoning(case: dict[str, Any]) -> None:
    reply = parse(case["text"], tools=TOOLS)
    assert (reply.reasoning, reply.content, reply.calls) == (case["text"], "", ())
    assert reply.counters.rejected_candidates[case["reason"]] == 1
    assert reply.counters.ended_inside_thinking


@MENTION
def test_a_mention_before_a_real_call_changes_nothing(case: dict[str, Any]) -> None:
    reply = parse(f"{case['text']}</think>\n\n{REAL['input']}", tools=TOOLS)
    assert (reply.reasoning, reply.content) == (case["text"], "")
    assert calls_of(reply) == [REAL["call"]]
    assert reply.counters.implicit_ends == 0


CALL = REAL["input"]
POLICIES: list[tuple[str, str, dict[ImplicitEnd, int]]] = [
    ("at the end", f"Go.\n{CALL}", {"off": 0, "any": 1, "guarded": 1, "strict": 1}),
    ("mid-line", f"Go: {CALL}", {"off": 0, "any": 1, "guarded": 0, "strict": 0}),
    ("fenced", f"```\n{CALL}\n```\n", {"off": 0, "any": 1, "guarded": 0, "strict": 0}),
    ("prose behind", f"Go.\n{CALL}\nThen I wait.", {"off": 0, "any": 1, "guarded": 1, "strict": 0}),
    ("two calls", f"Go.\n{CALL}\n{CALL}\n", {"off": 0, "any": 2, "guarded": 2, "strict": 2}),
    ("its </think> behind", f"Go.\n{CALL}\n</think>\n\nDone.", {"off": 0, "any": 1, "guarded": 1, "strict": 1}),
    ("unfinished", "Go.\n<tool_call>\n<function=run_code>\n", {"off": 0, "any": 0, "guarded": 0, "strict": 0}),
    (
        "undeclared",
        "Go.\n<tool_call>\n<function=other>\n</function>\n</tool_call>",
        {"off": 0, "any": 1, "guarded": 1, "strict": 0},
    ),
]


@pytest.mark.parametrize("policy", ["off", "any", "guarded", "strict"])
@pytest.mark.parametrize(("text", "expected"), [row[1:] for row in POLICIES], ids=[row[0] for row in POLICIES])
def test_policy(text: str, expected: dict[ImplicitEnd, int], policy: ImplicitEnd) -> None:
    outcome = check(text, [3, 9], "stop", tools=TOOLS, implicit_end=policy)
    assert len(outcome.calls) == expected[policy]


def test_strict_refuses_a_reply_that_was_cut() -> None:
    text = f"Go.\n{CALL}\n</think>\n\nThe answer is"
    reply = parse(text, tools=TOOLS, implicit_end="strict", finish_reason="length")
    assert (reply.reasoning, reply.content, reply.calls) == (f"Go.\n{CALL}\n", "The answer is", ())
    assert reply.counters.stranded_calls == 1


def test_strict_takes_a_later_call_after_refusing_a_draft() -> None:
    reply = parse(f"Draft:\n{CALL}\nLooks right.\n{CALL}", tools=TOOLS, implicit_end="strict")
    assert reply.reasoning == f"Draft:\n{CALL}\nLooks right.\n"
    assert calls_of(reply) == [REAL["call"]]


def test_an_implicit_call_that_is_cut_gives_the_result_of_the_policy_off() -> None:
    text = "Draft:\n<tool_call>\n<function=run_code>\n<parameter=code>\nx\n</think>\n\nSo: " + CALL
    guarded = parse(text, tools=TOOLS)
    off = parse(text, tools=TOOLS, implicit_end="off")
    assert (guarded.reasoning, guarded.content) == (off.reasoning, off.content)
    assert calls_of(guarded) == calls_of(off) == [REAL["call"]]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"See {CALL}", "mid_line"),
        (f"See\n  {CALL}", "indented"),
        (f"```\n{CALL}\n```", "fenced"),
        (f"`{CALL}`", "quoted"),
        (f"```python\nnever closed\n\n{CALL}", "fenced"),
    ],
)
def test_a_whole_call_that_stays_reasoning_is_counted_as_stranded(text: str, reason: str) -> None:
    counters = parse(text, tools=TOOLS).counters
    assert counters.stranded_calls == 1
    assert counters.to_dict()["rejected_candidates"][reason] == 1


def test_json_calls_end_the_thinking_only_where_the_parser_expects_them() -> None:
    text = 'Go.\n<tool_call>\n{"name": "list_jobs", "arguments": {}}\n</tool_call>'
    assert [len(parse(text, tools=TOOLS, call_format=form).calls) for form in ("auto", "xml", "json")] == [0, 0, 1]
    assert parse(text, tools=TOOLS).counters.stranded_calls == 1
