"""``/v1/messages``: Anthropic's shapes in both directions."""

from __future__ import annotations

import json
from typing import Any

from tests.gateway.conftest import House, events

TOOL = {
    "name": "lookup",
    "description": "d",
    "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}},
}
CALL = "<tool_call>\n<function=lookup>\n<parameter=q>\ntea\n</parameter>\n</function>\n</tool_call>"


def ask(house: House, text: str, **fields: Any) -> dict[str, Any]:
    house.says(text)
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1000, **fields}
    answer = house.post(body, "/v1/messages")
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


def test_blocks_come_in_the_order_thinking_text_tool_use(house: House) -> None:
    reply = ask(house, f"Hm.\n</think>\n\nOne moment.\n\n{CALL}", tools=[TOOL])
    assert [block["type"] for block in reply["content"]] == ["thinking", "text", "tool_use"]
    assert reply["content"][2]["input"] == {"q": "tea"}
    assert reply["stop_reason"] == "tool_use"
    assert reply["usage"]["input_tokens"] == len(house.prompt)


def test_a_stop_sequence_is_named(house: House) -> None:
    reply = ask(house, "</think>\n\nab END cd", stop_sequences=["END"])
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", "END")
    assert reply["content"][-1]["text"] == "ab "


def test_the_history_keeps_thinking_calls_and_results(house: House) -> None:
    messages = [
        {"role": "user", "content": "Q"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Look it up.", "signature": ""},
                {"type": "text", "text": "Wait."},
                {"type": "tool_use", "id": "t1", "name": "lookup", "input": {"q": "tea"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "leaves"}]},
                {"type": "text", "text": "Go on."},
            ],
        },
    ]
    ask(house, "</think>\n\nok", messages=messages, tools=[TOOL], system=[{"type": "text", "text": "Be brief."}])
    assert (
        "<think>\nLook it up.\n</think>\n\nWait.\n\n<tool_call>\n<function=lookup>\n<parameter=q>\ntea" in house.prompt
    )
    assert "<tool_response>\nleaves\n</tool_response>" in house.prompt
    assert "<|im_start|>user\nGo on.<|im_end|>" in house.prompt
    assert "Be brief.<|im_end|>" in house.prompt


def test_disabled_thinking_and_a_final_assistant_message_reach_the_prompt(house: House) -> None:
    ask(house, "ok", thinking={"type": "disabled"})
    assert house.prompt.endswith("<think>\n\n</think>\n\n")
    ask(house, "ok", messages=[{"role": "user", "content": "x"}, {"role": "assistant", "content": "The answer is"}])
    assert house.prompt.endswith("The answer is")


def test_a_thinking_budget_is_a_reasoning_budget(house: House) -> None:
    house.replay.script.clear()
    house.says(["a "] * 50)
    house.says(["\n", "done"])
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 100,
        "thinking": {"type": "enabled", "budget_tokens": 10},
    }
    reply = house.post(body, "/v1/messages").json()
    assert reply["content"][-1] == {"type": "text", "text": "done"}
    assert house.prompt.endswith("a " * 10 + "\n</think>\n\n")


def test_a_stream_has_well_formed_blocks(house: House) -> None:
    streamed = house.stream(f"Hm.\n</think>\n\nText.\n{CALL}\n{CALL}", "/v1/messages", max_tokens=500, tools=[TOOL])
    assert streamed[0]["type"] == "message_start"
    assert streamed[-1]["type"] == "message_stop"
    kinds, open_block, pieces = [], None, ""
    for event in streamed:
        if event["type"] == "content_block_start":
            assert open_block is None
            open_block = event["index"]
            kinds.append(event["content_block"]["type"])
        elif event["type"] == "content_block_delta":
            assert event["index"] == open_block
            pieces += event["delta"].get("partial_json", "")
        elif event["type"] == "content_block_stop":
            assert event["index"] == open_block
            open_block = None
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    assert open_block is None
    assert pieces == json.dumps({"q": "tea"}) * 2
    assert streamed[-2]["delta"]["stop_reason"] == "tool_use"


def test_tokens_are_counted_without_generating(house: House) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL]}
    answer = house.post(body, "/v1/messages/count_tokens").json()
    assert house.replay.bodies == []
    assert 500 < answer["input_tokens"] < 3000


def test_an_upstream_that_is_away_is_an_overload_in_anthropics_words(house: House) -> None:
    house.says("x", error={"code": 503, "message": "Loading model", "type": "unavailable_error"}, status=503)
    answer = house.post({"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}, "/v1/messages")
    assert answer.status_code == 503
    assert answer.json()["error"]["type"] == "overloaded_error"
    assert events("") == []
