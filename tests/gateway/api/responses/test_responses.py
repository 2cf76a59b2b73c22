"""``/v1/responses``: items and streaming events."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from strata_pack.gateway.api.responses.encrypted_content import PREFIX, carried, thinking_of
from strata_pack.gateway.api.responses.reply import ResponsesWriter
from strata_pack.gateway.api.responses.request import ResponsesRequest, ResponsesTurn, responses_turn
from strata_pack.gateway.api.responses.store import EmptyMemory
from strata_pack.gateway.failures import ApiError
from strata_pack.gateway.outcome import GenerationOutcome
from strata_pack.gateway.reply import Choice
from strata_pack.parsing import Counters, Event, ToolCall
from tests.gateway.conftest import House, events

TOOL = {"type": "function", "name": "lookup", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}
CALL = "<tool_call>\n<function=lookup>\n<parameter=q>\ntea\n</parameter>\n</function>\n</tool_call>"


def ask(house: House, text: str, **fields: Any) -> dict[str, Any]:
    house.says(text)
    answer = house.post({"input": "Hi", **fields}, "/v1/responses")
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


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


# Items of a conversation


USER = {"role": "user", "content": "Q"}


def reasoning(text: str | None = None, **more: Any) -> dict[str, Any]:
    content = None if text is None else [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": "r", "summary": [], "content": content, **more}


def call(call_id: str, name: str = "lookup") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"}


def result(call_id: str, output: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def turn_of(**body: Any) -> ResponsesTurn:
    return responses_turn(ResponsesRequest.model_validate_json(json.dumps({"input": "Hi", **body})), EmptyMemory())


def messages_of(*items: dict[str, Any]) -> list[dict[str, Any]]:
    return turn_of(input=list(items)).messages


def refusal(house: House, **body: Any) -> dict[str, Any]:
    answer = house.post({"input": "Hi", **body}, "/v1/responses")
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_consecutive_reasoning_items_are_one_turn() -> None:
    _, turn, _ = messages_of(USER, reasoning("One."), reasoning("Two."), call("c1"), result("c1", "x"))
    assert turn["reasoning_content"] == "One.\n\nTwo."
    assert len(turn["tool_calls"]) == 1


def test_a_reasoning_item_that_cannot_be_read_does_not_cut_a_turn_in_two() -> None:
    unreadable = reasoning(encrypted_content="gAAAA-of-another-server")
    _, turn = messages_of(USER, unreadable, reasoning("Look."), unreadable, said("Wait."), unreadable, call("c1"))
    assert (turn["reasoning_content"], turn["content"], len(turn["tool_calls"])) == ("Look.", "Wait.", 1)


@pytest.mark.parametrize("before", [said("Done."), call("c1")])
def test_reasoning_after_an_answer_or_a_call_begins_a_new_turn(before: dict[str, Any]) -> None:
    roles = [message["role"] for message in messages_of(USER, before, reasoning("Next."), said("More."))]
    assert roles == ["user", "assistant", "assistant"]


def test_parallel_results_reach_the_model_in_the_order_of_their_calls(house: House) -> None:
    items = [USER, call("c1"), call("c2"), result("c2", "leaves-2"), result("c1", "leaves-1")]
    ask(house, "</think>\n\nok", input=items, tools=[TOOL])
    assert house.prompt.index("leaves-1") < house.prompt.index("leaves-2")


def test_the_summary_is_read_where_there_is_no_content() -> None:
    summary = [{"type": "summary_text", "text": "One."}, {"type": "summary_text", "text": "Two."}]
    _, turn = messages_of(USER, {"type": "reasoning", "id": "r", "summary": summary})
    assert turn["reasoning_content"] == "One.\n\nTwo."


def test_messages_of_one_turn_are_paragraphs() -> None:
    assert messages_of(USER, said("One."), said(""), said("Two."))[-1]["content"] == "One.\n\nTwo."


def test_very_many_messages_of_one_turn_are_read_quickly() -> None:
    items = [{"role": "assistant", "content": "a" * 50}] * 50_000
    request = ResponsesRequest.model_validate({"input": items})
    start = time.process_time()
    responses_turn(request, EmptyMemory())
    assert time.process_time() - start < 5


def test_an_effort_that_the_template_refuses_is_named(house: House) -> None:
    assert refusal(house, reasoning={"effort": "frantic"})["param"] == "reasoning.effort"


def test_an_output_of_parts_is_their_text() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert messages_of(USER, call("c1"), result("c1", parts))[-1]["content"] == "ab"


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
EMPTY = {"type": "input_text", "text": None}


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"role": "user", "content": [{"type": "input_text", "text": "a"}, IMAGE]}, "input.1.content.1"),
        ({"role": "user", "content": [{"type": "input_file", "file_data": "AAAA"}]}, "input.1.content.0"),
        ({"role": "user", "content": [{"type": "input_text", "text": "a"}, EMPTY]}, "input.1.content.1.text"),
        ({"role": "assistant", "content": [{**EMPTY, "type": "output_text"}]}, "input.1.content.0.text"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input.1.content.0.text"),
        ({"role": "user", "content": [{"type": 1, "text": "a"}]}, "input.1.content.0.type"),
        ({"role": "user", "content": ["a"]}, "input.1.content.0"),
        ({"role": "assistant", "content": [{"type": "reasoning_text", "text": "a"}]}, "input.1.content.0"),
        (reasoning(content=[{**EMPTY, "type": "reasoning_text"}]), "input.1.content.0.text"),
        (reasoning(summary=[{**EMPTY, "type": "summary_text"}]), "input.1.summary.0.text"),
        (reasoning(summary=5), "input.1.summary"),
        (result("c1", [EMPTY]), "input.1.output.0.text"),
        (result("c1", {"text": "a"}), "input.1.output"),
        ({"type": "function_call", "call_id": "c1", "arguments": "{}"}, "input.1.name"),
        ({"type": "function_call", "call_id": "c1", "name": "", "arguments": "{}"}, "input.1.name"),
        ({"type": "function_call", "call_id": "c1", "name": "f", "arguments": {}}, "input.1.arguments"),
        ({"type": "function_call", "call_id": None, "name": "f", "arguments": "{}"}, "input.1.call_id"),
        ({"type": "item_reference"}, "input.1.id"),
        ({"content": "a"}, "input.1.role"),
    ],
)
def test_what_cannot_be_read_of_an_item_is_named(item: dict[str, Any], param: str, house: House) -> None:
    error = refusal(house, input=[USER, item])
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")


def test_media_have_their_code(house: House) -> None:
    assert refusal(house, input=[{"role": "user", "content": [IMAGE]}])["code"] == "unsupported_media"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("previous_response_id", "resp_1"),
        ("conversation", "conv_1"),
        ("conversation", {"id": "conv_1"}),
        ("prompt", {"id": "pmpt_1"}),
        ("background", True),
    ],
)
def test_what_only_a_server_that_stores_could_serve_is_refused(field: str, value: Any, house: House) -> None:
    assert refusal(house, **{field: value})["param"] == field


# Thinking that is carried by the client


def test_thinking_is_carried_only_when_asked_for(house: House) -> None:
    item = ask(house, "Hm.\n</think>\n\nText.")["output"][0]
    assert "encrypted_content" not in item


@pytest.mark.parametrize("text", ["", "Hm.", "Grüße \N{PILE OF POO} </think>\n", "x" * 10_000])
def test_carried_thinking_comes_back_as_it_was(text: str) -> None:
    assert thinking_of(carried(text)) == text


@pytest.mark.parametrize("value", ["", "gAAAAABo", PREFIX + "!", PREFIX + "a", PREFIX + "_w==", PREFIX + "SG0u ", "ü"])
def test_a_value_that_is_not_ours_carries_nothing(value: str) -> None:
    assert thinking_of(value) == ""


def test_carried_thinking_alone_brings_the_thinking_back(house: House) -> None:
    carries = {"include": ["reasoning.encrypted_content"], "store": False, "tools": [TOOL]}
    thought, called = ask(house, f"Hm, tea.\n</think>\n\n{CALL}", **carries)["output"]
    items = [{"type": "reasoning", "summary": [], "encrypted_content": thought["encrypted_content"]}, called]
    ask(house, "</think>\n\nok", input=[USER, *items, result(called["call_id"], "leaves")], **carries)
    assert "<think>\nHm, tea.\n</think>\n\n<tool_call>\n<function=lookup>" in house.prompt


def test_readable_thinking_counts_before_carried_thinking() -> None:
    _, turn = messages_of(USER, reasoning("Read.", encrypted_content=carried("Carried.")))
    assert turn["reasoning_content"] == "Read."


def test_a_stream_carries_the_thinking_in_the_finished_item(house: House) -> None:
    streamed = house.stream(
        "Hm.\n</think>\n\nText.", "/v1/responses", input="Hi", include=["reasoning.encrypted_content"]
    )
    items = {event["type"]: event["item"] for event in streamed if event.get("output_index") == 0 and "item" in event}
    assert "encrypted_content" not in items["response.output_item.added"]
    carried_ = items["response.output_item.done"]["encrypted_content"]
    assert thinking_of(carried_) == items["response.output_item.done"]["content"][0]["text"]
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
    body = writer.start(0) + writer.delta(0, written, None)
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
    writer.delta(0, [Event("reasoning", "Hm."), Event("content", "Te")], None)
    (failed,) = events(writer.failure(ApiError(503, "gone", kind="x")).decode())
    assert [item["type"] for item in failed["response"]["output"]] == ["reasoning"]
