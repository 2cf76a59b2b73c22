"""Items of a conversation in the Responses API, and what the gateway makes of them."""

from __future__ import annotations

import json
from typing import Any

from strata_pack.gateway.api.responses.request import ResponsesRequest, ResponsesTurn, responses_turn
from strata_pack.gateway.api.responses.store import EmptyMemory
from tests.gateway.conftest import House

TOOL = {"type": "function", "name": "lookup", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}
CALL = "<tool_call>\n<function=lookup>\n<parameter=q>\ntea\n</parameter>\n</function>\n</tool_call>"


def ask(house: House, text: str, **fields: Any) -> dict[str, Any]:
    house.says(text)
    answer = house.post({"input": "Hi", **fields}, "/v1/responses")
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


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
