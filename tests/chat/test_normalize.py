"""What the gateway makes of the messages of a request before the template sees them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.chat.golden.cases import load_suite
from strata_pack.chat.library import load_shipped
from strata_pack.chat.normalize import normalize_messages
from strata_pack.chat.render.template import ChatTemplate, TemplateRefused
from strata_pack.chat.repair.rules import split_stranded
from strata_pack.parsing import DIALECTS, Dialect

DATA = Path(__file__).parent.parent / "data" / "chat"
HISTORY = [json.loads(line) for line in (DATA / "history.jsonl").read_text().splitlines()]
SHIPPED = load_shipped("qwen3.8-flash-next")
TEMPLATE = ChatTemplate(SHIPPED.source)
SUITE = load_suite(SHIPPED.golden_dir)

CALL = "<tool_call>\n<function=list_jobs>\n</function>\n</tool_call>"


def _render(case: dict[str, Any], messages: list[dict[str, Any]]) -> str:
    variables = {"add_generation_prompt": True, "enable_thinking": case["thinking"], **case.get("template_kwargs", {})}
    return TEMPLATE.render(messages, case["tools"] or None, **variables)


def _assert_expected(case: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    expect = case["expect"]
    if "error_contains" in expect:
        with pytest.raises(TemplateRefused) as caught:
            _render(case, messages)
        assert expect["error_contains"] in caught.value.message
        return
    prompt = _render(case, messages)
    assert [text for text in expect.get("render_contains", []) if text not in prompt] == []
    assert [text for text in expect.get("render_not_contains", []) if text in prompt] == []


@pytest.mark.parametrize("case", HISTORY, ids=[f"{case['id']}: {case['why']}" for case in HISTORY])
def test_history_case_holds_after_normalizing(case: dict[str, Any]) -> None:
    _assert_expected(case, normalize_messages(case["input"]))


TEMPLATE_LAYER = [case for case in HISTORY if case["layer"] == "template"]


@pytest.mark.parametrize("case", TEMPLATE_LAYER, ids=[case["id"] for case in TEMPLATE_LAYER])
def test_history_case_of_the_template_holds_by_the_template_alone(case: dict[str, Any]) -> None:
    _assert_expected(case, case["input"])


READ_ON_PURPOSE = "golden: reasoning that is not a string is ignored"
"""The template ignores thinking in parts; a gateway reads it (HI-053)."""


def _renders_without_error() -> list[Any]:
    return [case for case in SUITE.cases if case.error is None and case.id != READ_ON_PURPOSE]


@pytest.mark.parametrize("case", _renders_without_error(), ids=lambda case: case.id)
def test_normalizing_changes_no_prompt_of_a_golden_case(case: Any) -> None:
    continues = bool(case.variables.get("continue_final_message"))
    inputs = case.inputs() | {"messages": normalize_messages(case.messages, continues=continues)}
    prompt = TEMPLATE.render(**inputs)
    if "<think>" not in json.dumps([message.get("content") for message in case.messages]):
        assert prompt == case.expected
    else:
        assert "</think>\n\n<think>" not in prompt


@pytest.mark.parametrize("case", SUITE.cases, ids=lambda case: case.id)
def test_normalizing_twice_is_normalizing_once_and_leaves_the_request_alone(case: Any) -> None:
    before = copy.deepcopy(case.messages)
    once = normalize_messages(case.messages)
    assert normalize_messages(once) == once
    assert case.messages == before


def _assistant(**fields: Any) -> dict[str, Any]:
    return normalize_messages([{"role": "assistant", **fields}])[0]


@pytest.mark.parametrize(
    ("given_calls", "arguments"),
    [
        (
            [{"function": {"name": "f", "arguments": '{"a": 1.0, "b": 12345678901234567890}'}}],
            {"a": 1.0, "b": 12345678901234567890},
        ),
        ([{"function": {"name": "f", "arguments": ""}}], {}),
        ([{"function": {"name": "f", "arguments": None}}], {}),
        ([{"function": {"name": "f"}}], {}),
        ([{"name": "f", "arguments": {"a": 1}}], {"a": 1}),
        ([{"function": {"name": "f", "arguments": '{"a": "te'}}], {"arguments": '{"a": "te'}),
        ([{"function": {"name": "f", "arguments": "[1, 2]"}}], {"arguments": [1, 2]}),
        ([{"function": {"name": "f", "arguments": "[" * 100_000}}], {"arguments": "[" * 100_000}),
    ],
    ids=["JSON text", "blank", "null", "missing", "flat call", "truncated", "a list", "nested too deeply"],
)
def test_arguments_become_an_object(given_calls: list[Any], arguments: dict[str, Any]) -> None:
    call = _assistant(content=None, tool_calls=given_calls)["tool_calls"][0]
    assert call["function"] == {"name": "f", "arguments": arguments}


def test_a_legacy_function_call_becomes_a_tool_call() -> None:
    message = _assistant(content=None, function_call={"name": "f", "arguments": '{"a": 1}'})
    assert message["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize(
    "value", ["Count.", [{"type": "text", "text": "Count."}], [{"type": "thinking", "thinking": "Count."}]]
)
def test_thinking_is_found_under_every_name_and_in_parts(key: str, value: Any) -> None:
    assert _assistant(content="Two.", **{key: value})["reasoning_content"] == "Count."


@pytest.mark.parametrize(
    "part",
    [
        {"type": "thinking", "thinking": "Count."},
        {"type": "thinking", "thinking": [{"type": "text", "text": "Count."}]},
        {"type": "reasoning_text", "text": "Count."},
    ],
)
def test_thinking_among_the_parts_of_an_answer_is_moved_out_of_it(part: dict[str, Any]) -> None:
    message = _assistant(content=[part, {"type": "text", "text": "Two."}])
    assert message["reasoning_content"] == "Count."
    assert message["content"] == [{"type": "text", "text": "Two."}]


def test_an_answer_of_thinking_parts_alone_is_empty() -> None:
    message = _assistant(content=[{"type": "thinking", "thinking": "Count."}])
    assert message == {"role": "assistant", "content": "", "reasoning_content": "Count."}


def test_thinking_that_is_there_twice_is_taken_once() -> None:
    message = _assistant(content=[{"type": "thinking", "thinking": "Count."}], reasoning_content="Count.")
    assert message["reasoning_content"] == "Count."


def test_closed_thinking_in_the_content_is_moved_to_reasoning_content() -> None:
    message = _assistant(content="<think>\nCount.\n</think>\n\nTwo.")
    assert (message["reasoning_content"].strip(), message["content"]) == ("Count.", "Two.")


def test_thinking_in_the_content_stays_if_there_is_reasoning_content_already() -> None:
    message = _assistant(content="<think> is a tag.", reasoning_content="Explain.")
    assert message == {"role": "assistant", "content": "<think> is a tag.", "reasoning_content": "Explain."}


OPEN_CALL = f"<think>\nRead it.\n{CALL}"


@pytest.mark.parametrize(
    ("reasoning", "content", "expected"),
    [
        ("Plan.", OPEN_CALL, ("Plan.\n\nRead it.", CALL)),
        ("Read it.", OPEN_CALL, ("Read it.", CALL)),
        ("Plan.", f"<think>\n{CALL}", ("Plan.", CALL)),
        ("Plan.", "<think>\nPlan.\n</think>\n\nDone.", ("Plan.", "Done.")),
    ],
    ids=["in both", "sent twice", "nothing but the call", "closed and sent twice"],
)
def test_thinking_in_two_places_becomes_one_thinking(reasoning: str, content: str, expected: tuple[str, str]) -> None:
    message = _assistant(content=content, reasoning_content=reasoning)
    assert (message["reasoning_content"], message["content"]) == expected


def test_a_turn_that_is_continued_keeps_its_stranded_call() -> None:
    turn = {"role": "assistant", "content": "", "reasoning_content": f"Need it.\n{CALL}"}
    assert normalize_messages([turn], continues=True)[0]["reasoning_content"] == f"Need it.\n{CALL}"
    assert normalize_messages([turn])[0]["content"] == CALL


STRANDED = {
    "seed-oss": "<seed:tool_call>\n<function=f>\n<parameter=q>tea</parameter>\n</function>\n</seed:tool_call>",
    "minimax-m2": '<minimax:tool_call>\n<invoke name="f">\n</invoke>\n</minimax:tool_call>',
    "glm": "<tool_call>f\n<arg_key>q</arg_key>\n<arg_value>tea</arg_value>\n</tool_call>",
}


@pytest.mark.parametrize("name", STRANDED)
def test_a_stranded_call_of_another_dialect_is_closed(name: str) -> None:
    dialect, call = DIALECTS[name], STRANDED[name]
    for message in (
        {"role": "assistant", "reasoning_content": f"Look.\n\n{call}"},
        {"role": "assistant", "content": f"{dialect.think_open}\nLook.\n\n{call}"},
    ):
        (normal,) = normalize_messages([message], dialect=dialect)
        assert (normal["reasoning_content"], normal["content"]) == ("Look.", call)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
def test_thinking_in_the_content_is_found_by_the_dialect_s_tags(dialect: Dialect) -> None:
    content = f"{dialect.think_open}\nHm.{dialect.think_close}\n\nYes."
    (normal,) = normalize_messages([{"role": "assistant", "content": content}], dialect=dialect)
    assert (normal["reasoning_content"], normal["content"]) == ("Hm.", "Yes.")


def test_json_calls_are_closed_for_models_that_write_them() -> None:
    turn = {
        "role": "assistant",
        "content": "",
        "reasoning_content": 'Need it.\n<tool_call>\n{"name": "f"}\n</tool_call>',
    }
    assert normalize_messages([turn], form="json")[0]["reasoning_content"] == "Need it."
    assert normalize_messages([turn])[0]["reasoning_content"] == turn["reasoning_content"]


@pytest.mark.parametrize("role", ["user", "tool", "system"])
def test_texts_of_others_are_verbatim(role: str) -> None:
    text = f"<think>\r\nx\n{CALL}\r\n"
    assert normalize_messages([{"role": role, "content": text}]) == [{"role": role, "content": text}]


@pytest.mark.parametrize(("old", "new"), [("developer", "system"), ("function", "tool")])
def test_role_has_the_name_that_templates_know(old: str, new: str) -> None:
    assert normalize_messages([{"role": old, "content": "x"}])[0]["role"] == new


def _called(*ids: str | None) -> dict[str, Any]:
    calls = [{"id": one, "function": {"name": "f", "arguments": {}}} for one in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _result(identity: str | None, content: str) -> dict[str, Any]:
    return {"role": "tool", "content": content} | ({} if identity is None else {"tool_call_id": identity})


@pytest.mark.parametrize(
    ("ids", "results", "order"),
    [
        (["1", "2"], [("2", "g"), ("1", "f")], ["f", "g"]),
        (["1", "2", "3"], [("3", "c"), ("1", "a"), ("2", "b")], ["a", "b", "c"]),
        (["1", "2"], [("2", "g"), ("x", "?"), ("1", "f")], ["f", "?", "g"]),
        (["1", "2"], [("2", "g"), (None, "?"), ("1", "f")], ["f", "?", "g"]),
        (["1", "2"], [("2", "g1"), ("1", "f"), ("2", "g2")], ["f", "g1", "g2"]),
        (["1", "1"], [("1", "b"), ("1", "a")], ["b", "a"]),
        (["1", "2", "1"], [("2", "b"), ("1", "a")], ["b", "a"]),
        (["1", None], [("1", "b"), (None, "a")], ["b", "a"]),
        (["", "2"], [("2", "b"), ("", "a")], ["b", "a"]),
    ],
    ids=[
        "swapped", "rotated", "unknown id", "missing id", "two for one call", "one id", "doubled", "no id", "blank id",
    ],
)  # fmt: skip
def test_results_are_put_in_the_order_of_their_calls(
    ids: list[str | None], results: list[tuple[str | None, str]], order: list[str]
) -> None:
    messages = normalize_messages([_called(*ids), *(_result(*one) for one in results)])
    assert [message["content"] for message in messages[1:]] == order


def test_results_are_ordered_within_their_turn_only() -> None:
    turns = [_called("1", "2"), _result("2", "b"), {"role": "user", "content": "?"}, _result("1", "a")]
    assert normalize_messages(turns)[1:] == turns[1:]
    twice = [_called("1", "2"), _result("2", "b"), _result("1", "a")]
    contents = [message["content"] for message in normalize_messages(twice * 2)]
    assert contents == ["", "a", "b"] * 2


@given(st.permutations(["1", "2", "3", "x"]))
@settings(derandomize=True, deadline=None)
def test_ordering_results_loses_none(order: list[str]) -> None:
    results = [_result(one, one) for one in order]
    found = normalize_messages([_called("3", "1", "2"), *results])[1:]
    assert [message["tool_call_id"] for message in found if message["tool_call_id"] != "x"] == ["3", "1", "2"]
    assert found.index(_result("x", "x")) == order.index("x")


LINES = st.lists(
    st.sampled_from(
        ["<tool_call>", "<function=f>", "</function>", "</tool_call>", "```", "~~~", " ```", "", "  ", "prose"]
    ),
    min_size=1,
    max_size=14,
)


@given(LINES)
@settings(max_examples=400, derandomize=True, deadline=None)
def test_template_closes_exactly_what_the_rules_in_python_close(lines: list[str]) -> None:
    hay = "\n".join(lines).strip()
    prompt = TEMPLATE.render([{"role": "assistant", "content": "", "reasoning_content": hay}], enable_thinking=False)
    before, call = split_stranded(hay, "xml") or (hay, "")
    assert prompt == f"<|im_start|>assistant\n<think>\n{before}\n</think>\n\n{call}<|im_end|>\n"
