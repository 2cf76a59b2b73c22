"""``/v1/responses``: items and streaming events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strata_pack.gateway.api.responses.encrypted_content import PREFIX, decode_thinking, encode_thinking
from strata_pack.gateway.api.responses.reply import ResponsesWriter
from strata_pack.gateway.failures import ApiError
from strata_pack.gateway.outcome import GenerationOutcome
from strata_pack.gateway.reply import Choice
from strata_pack.parsing import Counters, Event, ToolCall
from tests.gateway.api.responses.items import (
    CALL,
    TOOL,
    USER,
    ask,
    messages_of,
    reasoning,
    refusal,
    result,
    turn_of,
)
from tests.gateway.conftest import House, events


def test_items_come_in_order(house: House) -> None:
    reply = ask(house, f"Hm.\n</think>\n\nText.\n{CALL}", tools=[TOOL])
    assert [item["type"] for item in reply["output"]] == ["reasoning", "message", "function_call"]
    assert reply["status"] == "completed"
    assert json.loads(reply["output"][2]["arguments"]) == {"q": "tea"}


def test_a_cut_response_is_incomplete(house: House) -> None:
    reply = ask(house, "</think>\n\nabcdefghijkl", max_output_tokens=5)
    assert reply["status"] == "incomplete"
    assert reply["incomplete_details"] == {"reason": "max_output_tokens"}
    assert reply["output"][-1]["status"] == "incomplete"


def test_input_items_become_one_conversation(house: House) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Q"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Look."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]},
        {"type": "function_call", "call_id": "c1", "name": "lookup", "arguments": '{"q": "tea"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "leaves"},
    ]
    ask(house, "</think>\n\nok", input=items, instructions="Be brief.", tools=[TOOL])
    assert "<think>\nLook.\n</think>\n\nWait.\n\n<tool_call>\n<function=lookup>\n<parameter=q>\ntea" in house.prompt
    assert "<tool_response>\nleaves\n</tool_response>" in house.prompt
    assert "Be brief.<|im_end|>" in house.prompt


def test_effort_and_format_are_read_where_this_api_has_them(house: House) -> None:
    house.says("x\n</think>")
    house.says('{"a": 1}')
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    body = {
        "input": "Hi",
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}},
    }
    reply = house.post(body, "/v1/responses").json()
    assert "set to low" in house.prompt
    assert house.replay.bodies[-1]["json_schema"] == schema
    assert reply["output"][-1]["content"][0]["text"] == '{"a": 1}'


def test_a_stream_has_events_for_every_item_from_start_to_end(house: House) -> None:
    streamed = house.stream(f"Hm.\n</think>\n\nText.\n{CALL}", "/v1/responses", input="Hi", tools=[TOOL])
    assert [event["sequence_number"] for event in streamed] == list(range(len(streamed)))
    assert [event["type"] for event in streamed[:2]] == ["response.created", "response.in_progress"]
    added = [event["item"]["type"] for event in streamed if event["type"] == "response.output_item.added"]
    done = [event["item"] for event in streamed if event["type"] == "response.output_item.done"]
    assert added == [item["type"] for item in done] == ["reasoning", "message", "function_call"]
    final = streamed[-1]
    assert final["type"] == "response.completed"
    assert final["response"]["output"] == done
    arguments = "".join(
        event["delta"] for event in streamed if event["type"] == "response.function_call_arguments.delta"
    )
    assert arguments == done[2]["arguments"]
    assert json.loads(arguments) == {"q": "tea"}


def test_a_stream_that_breaks_ends_with_failed(house: House) -> None:
    house.says(["a"] * 10, break_after=3)
    answer = house.post({"input": "Hi", "stream": True}, "/v1/responses")
    assert '"type":"response.failed"' in answer.text


# Thinking that the client keeps and returns


def test_thinking_is_carried_only_when_asked_for(house: House) -> None:
    item = ask(house, "Hm.\n</think>\n\nText.")["output"][0]
    assert "encrypted_content" not in item


@pytest.mark.parametrize("text", ["", "Hm.", "Grüße \N{PILE OF POO} </think>\n", "x" * 10_000])
def test_carried_thinking_comes_back_as_it_was(text: str) -> None:
    assert decode_thinking(encode_thinking(text)) == text


@pytest.mark.parametrize("value", ["", "gAAAAABo", PREFIX + "!", PREFIX + "a", PREFIX + "_w==", PREFIX + "SG0u ", "ü"])
def test_a_value_that_is_not_ours_carries_nothing(value: str) -> None:
    assert decode_thinking(value) == ""


def test_carried_thinking_alone_brings_the_thinking_back(house: House) -> None:
    carries = {"include": ["reasoning.encrypted_content"], "store": False, "tools": [TOOL]}
    thought, called = ask(house, f"Hm, tea.\n</think>\n\n{CALL}", **carries)["output"]
    items = [{"type": "reasoning", "summary": [], "encrypted_content": thought["encrypted_content"]}, called]
    ask(house, "</think>\n\nok", input=[USER, *items, result(called["call_id"], "leaves")], **carries)
    assert "<think>\nHm, tea.\n</think>\n\n<tool_call>\n<function=lookup>" in house.prompt


def test_readable_thinking_counts_before_carried_thinking() -> None:
    _, turn = messages_of(USER, reasoning("Read.", encrypted_content=encode_thinking("Carried.")))
    assert turn["reasoning_content"] == "Read."


def test_a_stream_carries_the_thinking_in_the_finished_item(house: House) -> None:
    streamed = house.stream(
        "Hm.\n</think>\n\nText.", "/v1/responses", input="Hi", include=["reasoning.encrypted_content"]
    )
    items = {event["type"]: event["item"] for event in streamed if event.get("output_index") == 0 and "item" in event}
    assert "encrypted_content" not in items["response.output_item.added"]
    carried_ = items["response.output_item.done"]["encrypted_content"]
    assert decode_thinking(carried_) == items["response.output_item.done"]["content"][0]["text"]
    assert streamed[-1]["response"]["output"][0]["encrypted_content"] == carried_


# Choosing tools

OTHER = {"type": "function", "name": "other", "parameters": None, "strict": True}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": name} for name in names]}


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_allowed_tools_may_be_called(mode: str) -> None:
    turn = turn_of(tools=[TOOL, OTHER], tool_choice=allowed(mode, "other"))
    assert turn.tool_choice == mode
    assert [tool["function"]["name"] for tool in turn.callable_tools] == ["other"]


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        (allowed("auto", "lookup", "nothing"), "tool_choice.tools.1.name"),
        (allowed("auto"), "tool_choice.tools"),
        (allowed("none", "lookup"), "tool_choice.mode"),
        ({"type": "allowed_tools", "mode": "auto"}, "tool_choice.tools"),
        ({"type": "allowed_tools", "tools": [{"type": "function", "name": "lookup"}]}, "tool_choice.mode"),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp"}]}, "tool_choice"),
        ({"type": "function"}, "tool_choice.name"),
        ({"type": "function", "name": "nothing"}, "tool_choice"),
        ({"type": "web_search"}, "tool_choice.type"),
    ],
)
def test_a_choice_that_cannot_be_met_is_named(choice: Any, param: str, house: House) -> None:
    assert refusal(house, tools=[TOOL, OTHER], tool_choice=choice)["param"] == param


# What a response repeats

SCHEMA = {"type": "object", "properties": {"a": {"type": ["integer", "null"], "default": None}}}
FORMAT = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True, "description": "d"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("instructions", "Be brief."),
        ("metadata", {"k": "v"}),
        ("truncation", "auto"),
        ("reasoning", {"effort": "none", "summary": None}),
        ("reasoning", {"effort": "low", "summary": "auto"}),
        ("text", {"format": FORMAT, "verbosity": "low"}),
        ("tools", [{**TOOL, "strict": True, "description": "d"}, OTHER]),
        ("max_output_tokens", 50),
        ("temperature", 0.5),
        ("top_p", 0.5),
        ("parallel_tool_calls", False),
    ],
)
def test_a_response_repeats_what_was_asked(field: str, value: Any) -> None:
    assert turn_of(**{field: value}).echoed[field] == value


@pytest.mark.parametrize(
    "choice", ["none", "required", {"type": "function", "name": "lookup"}, allowed("auto", "lookup")]
)
def test_a_response_repeats_the_choice_of_tools(choice: Any) -> None:
    assert turn_of(tools=[TOOL], tool_choice=choice).echoed["tool_choice"] == choice


def test_a_response_to_a_bare_request_has_the_defaults(house: House) -> None:
    reply = ask(house, "</think>\n\nText.")
    assert {
        name: reply[name] for name in ("instructions", "metadata", "reasoning", "text", "tool_choice", "tools")
    } == {
        "instructions": None,
        "metadata": {},
        "reasoning": {"effort": None, "summary": None},
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
    }
    assert reply["truncation"] == "disabled"


# Calls that a stream does not finish


def cut_call(finish_reason: Any) -> list[dict[str, Any]]:
    """Return the events of a stream that ends inside the arguments of a call."""
    writer = ResponsesWriter("r", "m", turn_of(tools=[TOOL]), show_extra=False)
    begun = ToolCall("lookup", {}, "call_1")
    written = [Event("tool_start", "", begun), Event("tool_args", '{"q": "te', begun)]
    body = writer.start(0) + writer.delta(0, written, None, {})
    return events((body + writer.finish(0, Choice(GenerationOutcome(finish_reason), Counters()))).decode())


def test_a_cut_call_is_incomplete_and_its_arguments_are_never_done() -> None:
    streamed = cut_call("length")
    assert "response.function_call_arguments.done" not in [event["type"] for event in streamed]
    done = next(event["item"] for event in streamed if event["type"] == "response.output_item.done")
    assert (done["status"], done["arguments"]) == ("incomplete", '{"q": "te')
    assert streamed[-1]["type"] == "response.incomplete"
    assert streamed[-1]["response"]["output"] == [done]


def test_a_call_that_the_limit_cuts_in_a_stream_is_incomplete(house: House) -> None:
    text = ["</think>\n\n", "<tool_call>\n<function=lookup>\n<parameter=q>\n", "tea and ", "cake and more", "x"]
    streamed = house.stream(text, "/v1/responses", input="Hi", tools=[TOOL], max_output_tokens=4)
    assert "response.function_call_arguments.done" not in [event["type"] for event in streamed]
    final = streamed[-1]["response"]
    assert final["status"] == "incomplete"
    assert [(item["type"], item["status"]) for item in final["output"]] == [("function_call", "incomplete")]


def test_a_cut_call_is_incomplete_whatever_the_stream_ended_with() -> None:
    assert cut_call("stop")[-1]["response"]["output"][0]["status"] == "incomplete"


def test_a_failed_response_has_what_was_finished() -> None:
    writer = ResponsesWriter("r", "m", turn_of(), show_extra=False)
    writer.delta(0, [Event("reasoning", "Hm."), Event("content", "Te")], None, {})
    (failed,) = events(writer.failure(ApiError(503, "gone", kind="x")).decode())
    assert [item["type"] for item in failed["response"]["output"]] == ["reasoning"]
