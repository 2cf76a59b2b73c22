"""``/v1/responses``: items and streaming events."""

from __future__ import annotations

import json
from typing import Any

from tests.gateway.conftest import House

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


def test_a_stream_tells_every_item_from_start_to_end(house: House) -> None:
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
