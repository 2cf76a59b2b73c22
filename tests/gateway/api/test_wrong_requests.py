"""Requests that are refused: the field that is wrong is named, in the words of each API."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from strata_pack.gateway.api.fields import read_body
from strata_pack.gateway.server.generate import CompletionRequest
from tests.gateway.api.bodies import LIST_CALL, USER
from tests.gateway.conftest import LIST_JOBS, House

WRONG_CHAT: list[tuple[dict[str, Any], str]] = [
    ({}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "[]"}, "messages"),
    ({"messages": [5]}, "messages.0"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0"),
    ({"messages": [{"role": "user", "content": [{"type": ["image"]}]}]}, "messages.0.content.0.type"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages.0.content.0.text"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]}, "messages.0.content.0.text"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
    ({"messages": [{"role": "user", "content": [{"text": None}]}]}, "messages.0.content.0.text"),
    ({"messages": [{"role": "user", "content": [{"type": "other", "text": None}]}]}, "messages.0.content.0.text"),
    (
        {"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": None}]}]},
        "messages.0.content.0.thinking",
    ),
    ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages.0.tool_calls"),
    ({"messages": [*USER, {"role": "assistant", "tool_calls": [{}]}]}, "messages.1.tool_calls.0.function.name"),
    (
        {"messages": [*USER, {"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}]},
        "messages.1.tool_calls.0.function.name",
    ),
    (
        {"messages": [*USER, {"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}]},
        "messages.1.tool_calls.0.function.name",
    ),
    (
        {"messages": [*USER, {"role": "assistant", "tool_calls": [{"name": 5, "arguments": {}}]}]},
        "messages.1.tool_calls.0.name",
    ),
    ({"messages": [*USER, {"role": "assistant", "function_call": {}}]}, "messages.1.function_call.name"),
    ({"messages": USER, "temperature": "0.5"}, "temperature"),
    ({"messages": USER, "temperature": -1}, "temperature"),
    ({"messages": USER, "top_p": 2}, "top_p"),
    ({"messages": USER, "top_k": 1.5}, "top_k"),
    ({"messages": USER, "n": 0}, "n"),
    ({"messages": USER, "n": 100}, "n"),
    ({"messages": USER, "max_tokens": 0}, "max_tokens"),
    ({"messages": USER, "max_completion_tokens": True}, "max_completion_tokens"),
    ({"messages": USER, "stop": 5}, "stop"),
    ({"messages": USER, "stop": ["a", 5]}, "stop.1"),
    ({"messages": USER, "stream": "yes"}, "stream"),
    ({"messages": USER, "seed": "1"}, "seed"),
    ({"messages": USER, "tools": {}}, "tools"),
    ({"messages": USER, "tools": [{"type": "function"}]}, "tools.0.function"),
    ({"messages": USER, "tools": [{"type": "function", "function": {"name": ""}}]}, "tools.0.function.name"),
    ({"messages": USER, "tool_choice": "sometimes", "tools": [LIST_JOBS]}, "tool_choice"),
    ({"messages": USER, "tool_choice": "required"}, "tool_choice"),
    ({"messages": USER, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
    ({"messages": USER, "tool_choice": {"type": "function"}}, "tool_choice.function"),
    ({"messages": USER, "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
    (
        {"messages": USER, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "any", "tools": []}}},
        "tool_choice.allowed_tools.mode",
    ),
    (
        {
            "messages": USER,
            "tools": [LIST_JOBS],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "x"}}]},
            },
        },
        "tool_choice.allowed_tools.tools.0.function.name",
    ),
    ({"messages": USER, "functions": [{}]}, "functions.0.name"),
    ({"messages": USER, "functions": [{"name": "f"}], "tools": [LIST_JOBS]}, "functions"),
    ({"messages": USER, "functions": [{"name": "f"}], "tool_choice": "auto"}, "functions"),
    ({"messages": USER, "functions": [{"name": "f"}], "function_call": {"name": "x"}}, "function_call"),
    ({"messages": USER, "functions": [{"name": "f"}], "function_call": {}}, "function_call.name"),
    ({"messages": USER, "function_call": "auto"}, "function_call"),
    ({"messages": USER, "reasoning_effort": "heroic"}, "reasoning_effort"),
    ({"messages": [{"role": "user", "content": [{"type": "x"}]}], "reasoning_effort": "heroic"}, "reasoning_effort"),
    ({"messages": [{"role": "user", "content": [{"type": "x"}]}], "reasoning_effort": "max"}, "messages"),
    (
        {"messages": USER, "chat_template_kwargs": {"reasoning_effort": "heroic"}},
        "chat_template_kwargs.reasoning_effort",
    ),
    ({"messages": USER, "response_format": {"type": "yaml"}}, "response_format.type"),
    ({"messages": USER, "response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
    ({"messages": USER, "logit_bias": {"x": 1}}, "logit_bias"),
    ({"messages": USER, "top_logprobs": 50}, "top_logprobs"),
    ({"messages": USER, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"messages": USER, "reasoning_budget": -2}, "reasoning_budget"),
    ({"messages": USER, "continue_final_message": True}, "continue_final_message"),
    (
        {"messages": [*USER, {"role": "assistant", "tool_calls": [LIST_CALL]}], "continue_final_message": True},
        "continue_final_message",
    ),
    (
        {
            "messages": [*USER, {"role": "assistant", "function_call": {"name": "list_jobs"}}],
            "continue_final_message": True,
        },
        "continue_final_message",
    ),
]

WRONG_MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"messages": USER}, "max_tokens"),
    ({"max_tokens": 5}, "messages"),
    ({"messages": USER, "max_tokens": 5, "system": 5}, "system"),
    ({"messages": USER, "max_tokens": 5, "tools": [{"type": "custom"}]}, "tools.0.name"),
    ({"messages": USER, "max_tokens": 5, "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}], "max_tokens": 5}, "projector"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}], "max_tokens": 5}, "messages.0.content.0"),
    (
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": 5}]}], "max_tokens": 5},
        "messages.0.content.0.name",
    ),
]

WRONG_RESPONSES: list[tuple[dict[str, Any], str]] = [
    ({}, "input"),
    ({"input": []}, "input"),
    ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
    ({"input": "x", "background": True}, "background"),
    ({"input": "x", "tools": [{"type": "function"}]}, "tools.0.name"),
    ({"input": [{"content": "x"}]}, "input.0.role"),
    ({"input": [{"type": "function_call", "name": 1}]}, "input.0.name"),
    ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0"),
    ({"input": [{"role": "user", "content": [{"type": {}}]}]}, "input.0.content.0.type"),
]


@pytest.mark.parametrize(("body", "field"), WRONG_CHAT, ids=[f"{field}-{i}" for i, (_, field) in enumerate(WRONG_CHAT)])
def test_a_wrong_chat_field_is_named(body: dict[str, Any], field: str, house: House) -> None:
    answer = house.post(body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == field
    assert field in error["message"]


@pytest.mark.parametrize(("body", "word"), WRONG_MESSAGES)
def test_a_wrong_anthropic_field_is_refused_in_anthropics_words(body: dict[str, Any], word: str, house: House) -> None:
    answer = house.post(body, "/v1/messages")
    assert answer.status_code == 400, answer.text
    value = answer.json()
    assert value["type"] == "error"
    assert value["error"]["type"] == "invalid_request_error"
    assert word in value["error"]["message"]


@pytest.mark.parametrize(("body", "field"), WRONG_RESPONSES)
def test_a_wrong_responses_field_is_named(body: dict[str, Any], field: str, house: House) -> None:
    answer = house.post(body, "/v1/responses")
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == field


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"5", b"null", b'"x"', b"\xff\xfe", b'{"messages": NaN}', b"[" * 100_000, b'{"a":' * 10_000],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"])
def test_a_body_that_is_no_request_is_a_400(data: bytes, path: str, house: House) -> None:
    import httpx2 as httpx

    answer = httpx.post(house.url + path, content=data, headers={"content-type": "application/json"})
    assert answer.status_code == 400


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1E+999", "1" * 5000, f"{'9' * 300}E50"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"])
def test_a_number_that_json_does_not_have_is_a_400_wherever_it_stands(number: str, path: str, house: House) -> None:
    schema = f'{{"type": "object", "x": {number}}}'
    tool = f'{{"type": "function", "name": "f", "function": {{"name": "f", "parameters": {schema}}}}}'
    body = f'{{"messages": [{{"role": "user", "content": "x"}}], "input": "x", "prompt": "x", "tools": [{tool}]}}'
    answer = house.http.post(house.url + path, content=body)
    assert answer.status_code == 400
    assert "it contains the number" in answer.json()["error"]["message"]


def test_runs_of_digits_cost_a_body_little() -> None:
    data = json.dumps({"prompt": ("9" * 999 + " ") * 2000}).encode()
    began = time.process_time()
    read_body(CompletionRequest, data)
    assert time.process_time() - began < 0.3  # a search for a thousand digits at every place took two seconds


def test_what_looks_like_such_a_number_in_a_text_is_text(house: House) -> None:
    house.says("</think>\n\nok")
    answer = house.post({"messages": [{"role": "user", "content": f"NaN 1e999 Infinity {'1' * 5000}"}]})
    assert answer.status_code == 200
    assert "1e999" in house.prompt


def test_an_empty_list_is_not_called_a_wrong_type(house: House) -> None:
    message = house.post({"input": []}, "/v1/responses").json()["error"]["message"]
    assert "at least 1 item" in message
