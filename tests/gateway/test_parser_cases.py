"""The parser's cases, end to end: generated text replayed in deltas, through the gateway, to what a client gets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.conftest import House, cases, events, join_chunks

CASES = cases("parsing/cases.jsonl")


def deltas(case: dict[str, Any], size: int) -> list[str]:
    text: str = case["input"]
    return case.get("deltas") or [text[i : i + size] for i in range(0, len(text), size)]


def ask(house: House, case: dict[str, Any], size: int, *, stream: bool) -> dict[str, Any]:
    """Return reasoning, content, calls (name and arguments) and finish reason of the reply."""
    stop_type = "limit" if case["finish"] == "length" else "eos"
    house.says(deltas(case, size), stop_type=stop_type)
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": case["tools"],
        "enable_thinking": case["thinking"],
        "stream": stream,
        **case.get("request", {}),
    }
    answer = house.post(body)
    assert answer.status_code == 200, answer.text
    return streamed_reply(events(answer.text)) if stream else whole_reply(answer.json())


def streamed_reply(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return reasoning, content, whole calls (name and arguments) and finish reason of a streamed reply."""
    joined = join_chunks(chunks)
    complete = [call for call in joined["calls"] if _is_json(call["arguments"])]
    calls = [{"name": call["name"], "arguments": json.loads(call["arguments"])} for call in complete]
    return {**joined, "calls": calls}


def whole_reply(reply: dict[str, Any]) -> dict[str, Any]:
    """Return the same of a reply that came whole."""
    (choice,) = reply["choices"]
    message = choice["message"]
    calls = [
        {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}
        for call in message.get("tool_calls", [])
    ]
    return {
        "reasoning": message.get("reasoning_content", ""),
        "content": message["content"] or "",
        "calls": calls,
        "finish": choice["finish_reason"],
    }


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_parser_case_reaches_the_client(case: dict[str, Any], house: House) -> None:
    expect = case["expect"]
    whole = ask(house, case, 7, stream=False)
    assert {name: whole[name] for name in ("reasoning", "content", "calls")} == expect
    if case["finish"] == "length":
        assert whole["finish"] == "length"
    else:
        assert whole["finish"] == ("tool_calls" if expect["calls"] else "stop")
    streamed = ask(house, case, 3, stream=True)
    assert streamed["reasoning"] == expect["reasoning"]
    assert streamed["finish"] == whole["finish"]
    if case["finish"] != "length":  # a call that was announced and then cut is not repeated as content
        assert streamed["content"] == expect["content"]
        assert streamed["calls"] == expect["calls"]
