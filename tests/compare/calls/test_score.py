"""Tasks and verdicts, without any model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_pack.compare.calls.score import Share, problems, score_reply
from strata_pack.compare.calls.tasks import KINDS, MOST, PER_KIND, CallTask, ExpectedCall, make_tasks, tools
from strata_pack.parsing import OutputParser

TASKS = make_tasks(0)


def written(task: CallTask, change: Callable[[ExpectedCall], ExpectedCall] = lambda call: call) -> str:
    """Return a perfect reply to ``task`` in the XML form, its calls changed by ``change``."""
    text = "" if task.calls else "Fine."
    for call in map(change, task.calls):
        text += f"<tool_call>\n<function={call.name}>\n"
        for name, value in call.arguments.items():
            shown = value if isinstance(value, str) else json.dumps(value)
            text += f"<parameter={name}>\n{shown}\n</parameter>\n"
        text += "</function>\n</tool_call>"
    return text


def verdict(task: CallTask, reply: str, *, thinking: bool = False) -> str:
    return score_reply(task, reply, tools(), OutputParser(thinking=thinking, tools=tools()), "stop").verdict


def one(kind: str) -> CallTask:
    return next(task for task in TASKS if task.kind == kind)


def test_there_are_at_least_sixty_tasks_of_nine_kinds() -> None:
    assert len(TASKS) >= 60
    assert len(Counter(task.kind for task in TASKS)) == len(KINDS) == 9


def test_no_two_tasks_are_alike_and_more_begin_with_the_fewer() -> None:
    many = make_tasks(0, MOST)
    assert len({repr(task.messages) for task in many}) == len(many) == MOST * len(KINDS)
    assert many[:PER_KIND] == TASKS[:PER_KIND]


def test_one_seed_gives_the_same_tasks_and_another_gives_others() -> None:
    assert make_tasks(0) == TASKS
    assert make_tasks(1) != TASKS


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_the_expected_calls_fit_their_tools(task: CallTask) -> None:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools()}
    assert not [problem for call in task.calls for problem in problems(schemas[call.name], dict(call.arguments))]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_a_perfect_reply_is_right(task: CallTask) -> None:
    assert verdict(task, written(task)) == "right"


def test_a_call_written_inside_the_thinking_is_right_and_stranded() -> None:
    task = one("one-call")
    parser = OutputParser(thinking=True, tools=tools())
    found = score_reply(task, "I look it up.\n\n" + written(task), tools(), parser, "stop")
    assert (found.verdict, found.stranded, found.drifted) == ("right", True, False)


def test_a_drifted_call_is_right_and_counted() -> None:
    task = one("enum")
    reply = written(task).replace("</parameter>\n</function>", "</function>")
    found = score_reply(task, reply, tools(), OutputParser(thinking=False, tools=tools()), "stop")
    assert (found.verdict, found.drifted) == ("right", True)


def test_the_json_form_is_read_too() -> None:
    task = one("nested")
    call = task.calls[0]
    text = json.dumps({"name": call.name, "arguments": call.arguments})
    parser = OutputParser(thinking=False, tools=tools())
    found = score_reply(task, f"<tool_call>\n{text}\n</tool_call>", tools(), parser, "stop")
    assert (found.verdict, found.drifted) == ("right", False)


def test_parallel_calls_may_come_in_any_order() -> None:
    task = one("parallel")
    assert verdict(task, written(replace(task, calls=task.calls[::-1]))) == "right"


def test_a_wrong_number_is_wrong_arguments() -> None:
    def change(call: ExpectedCall) -> ExpectedCall:
        return ExpectedCall(call.name, {**call.arguments, "price": 1.0})

    assert verdict(one("numbers"), written(one("numbers"), change)) == "wrong arguments"


@pytest.mark.parametrize(("value", "expected"), [(10**400, "wrong arguments"), (1.5, "invalid"), (True, "invalid")])
def test_a_number_of_another_kind_or_size_is_no_fault_of_the_judge(value: object, expected: str) -> None:
    task = one("enum")
    reply = written(task, lambda call: replace(call, arguments={**call.arguments, "ticket": value}))
    assert verdict(task, reply) == expected


def test_an_integer_may_be_written_with_a_point() -> None:
    schema = {"type": "integer"}
    assert problems(schema, 3.0) == []
    assert problems(schema, 3.5)


def test_a_value_outside_the_enum_is_invalid() -> None:
    def change(call: ExpectedCall) -> ExpectedCall:
        return ExpectedCall(call.name, {**call.arguments, "state": "finished"})

    assert verdict(one("enum"), written(one("enum"), change)) == "invalid"


def test_another_tool_is_a_wrong_name() -> None:
    def change(_: ExpectedCall) -> ExpectedCall:
        return ExpectedCall("read_file", {"path": "a"})

    assert verdict(one("one-call"), written(one("one-call"), change)) == "wrong name"


def test_prose_instead_of_a_call_is_missing() -> None:
    assert verdict(one("one-call"), "It is sunny.") == "missing"


def test_one_of_two_calls_is_missing() -> None:
    task = one("parallel")
    assert verdict(task, written(replace(task, calls=task.calls[:1]))) == "missing"


def test_a_call_where_none_is_needed_is_needless() -> None:
    assert verdict(one("none-needed"), written(one("one-call"))) == "needless"


def test_a_call_that_was_cut_off_is_missing() -> None:
    task = one("long-string")
    reply = written(task)[:80]
    found = score_reply(task, reply, tools(), OutputParser(thinking=False, tools=tools()), "length")
    assert found.verdict == "missing"


@pytest.mark.parametrize(
    ("right", "tasks", "low", "high"), [(0, 10, 0.0, 0.278), (5, 10, 0.237, 0.763), (10, 10, 0.722, 1.0)]
)
def test_the_interval_is_wilsons(right: int, tasks: int, low: float, high: float) -> None:
    assert Share(right, tasks).interval == pytest.approx((low, high), abs=1e-3)


@given(st.integers(1, 500), st.data())
def test_the_share_lies_in_its_interval(tasks: int, data: st.DataObject) -> None:
    share = Share(data.draw(st.integers(0, tasks)), tasks)
    low, high = share.interval
    assert 0 <= low <= share.value + 1e-12
    assert share.value - 1e-12 <= high <= 1
