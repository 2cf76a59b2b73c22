"""Images in conversations that a model without eyes reads: as a line of text where they cannot be taken back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.api.bodies import PIXEL, chat, messages, responses, served
from tests.gateway.conftest import House

VIEW_CALL = {"id": "c", "type": "function", "function": {"name": "view", "arguments": "{}"}}
IN_RESULTS: list[tuple[str, dict[str, Any]]] = [
    chat(messages=[
        {"role": "user", "content": "Look"},
        {"role": "assistant", "tool_calls": [VIEW_CALL]},
        {"role": "tool", "tool_call_id": "c", "content": [
            {"type": "text", "text": "a.png"}, {"type": "image_url", "image_url": {"url": PIXEL}},
        ]},
    ]),
    responses(
        {"type": "function_call", "call_id": "c", "name": "view", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [
            {"type": "input_text", "text": "a.png"}, {"type": "input_image", "image_url": PIXEL},
        ]},
    ),
    messages(
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "view", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [
            {"type": "text", "text": "a.png"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
        ]}]},
    ),
]  # fmt: skip


@pytest.mark.parametrize("asked", IN_RESULTS, ids=["chat", "responses", "messages"])
def test_an_image_in_a_tool_result_is_a_line_of_text(asked: tuple[str, dict[str, Any]], house: House) -> None:
    served(house, asked)
    assert "<tool_response>\na.png\n[image: this model cannot see it]\n</tool_response>" in house.prompt
    assert "iVBOR" not in house.prompt


@pytest.mark.parametrize(
    "block",
    [
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "image", "source": {}}]}},
        {"type": "block_of_next_year"},
    ],
)
def test_whatever_a_tool_returns_the_loop_goes_on(block: dict[str, Any], house: House) -> None:
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "view", "input": {}}]}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [block]}
    served(house, messages(use, {"role": "user", "content": [result]}))
    assert "this model cannot" in house.prompt


def test_a_failed_result_that_is_an_image_alone_says_so(house: House) -> None:
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "view", "input": {}}]}
    result = {"type": "tool_result", "tool_use_id": "c", "is_error": True, "content": [{"type": "image", "source": {}}]}
    served(house, messages(use, {"role": "user", "content": [result]}))
    assert "<tool_response>\nError\n[image: this model cannot see it]\n</tool_response>" in house.prompt


def test_tokens_of_a_conversation_with_an_image_are_counted(house: House) -> None:
    path, body = IN_RESULTS[2]
    answer = house.post(body, f"{path}/count_tokens")
    assert answer.json()["input_tokens"] > 0, answer.text


@pytest.mark.parametrize(
    "asked",
    [
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]}]),
        responses({"role": "user", "content": [{"type": "input_image", "image_url": PIXEL}]}),
        messages({"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "https://x/"}}]}),
    ],
    ids=["chat", "responses", "messages"],
)
def test_an_image_in_a_users_own_message_is_refused(asked: tuple[str, dict[str, Any]], house: House) -> None:
    answer = house.post(asked[1], asked[0])
    assert answer.status_code == 400
    assert "no projector" in json.dumps(answer.json())


RUN = {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f"}}]}
SEEN = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "read a.png"}


@pytest.mark.parametrize(
    "more",
    [[RUN, RESULT, SEEN], [RUN, RESULT, {"role": "user", "content": "It is:"}, SEEN], [SEEN, RUN, RESULT]],
    ids=["after a result", "after its announcement", "answered"],
)
def test_an_image_that_the_user_cannot_take_back_is_a_text(more: list[dict[str, Any]], house: House) -> None:
    served(house, chat(messages=[{"role": "user", "content": "Hi"}, *more]))
    assert house.prompt.count("[image: this model cannot see it]") == 1


@pytest.mark.parametrize(
    "more",
    [[SEEN], [RUN, RESULT, {"role": "assistant", "content": "Red."}, SEEN]],
    ids=["first", "after an answer"],
)
def test_an_image_that_the_user_sends_now_is_a_400(more: list[dict[str, Any]], house: House) -> None:
    answer = house.post({"messages": [{"role": "user", "content": "Hi"}, *more]})
    assert answer.status_code == 400
    assert "no projector" in answer.json()["error"]["message"]


BASE64 = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB"
NOTE = {"type": "text", "text": "a note"}


@pytest.mark.parametrize(
    "image",
    [
        {"type": "media", "mediaType": "image/png", "data": BASE64},
        {"type": "image-data", "data": BASE64, "mediaType": "image/png"},
        {"type": "file", "mediaType": "image/png", "data": {"type": "data", "data": BASE64}},
        {"type": "file", "mediaType": "image/png", "data": {"type": "url", "url": "https://x/a.png"}},
        {"type": "image", "mimeType": "image/png", "data": BASE64},
    ],
    ids=["5", "6", "7", "url", "mcp"],
)
def test_a_result_that_is_the_json_of_its_parts_becomes_parts(image: dict[str, Any], house: House) -> None:
    result = {"role": "tool", "tool_call_id": "c1", "content": json.dumps([NOTE, image])}
    served(house, chat(messages=[{"role": "user", "content": "Hi"}, RUN, result]))
    assert "<tool_response>\na note\n[image: this model cannot see it]\n</tool_response>" in house.prompt


OF_MCP = {"type": "image", "mimeType": "image/png", "data": BASE64}
RUN_ITEM = {"type": "function_call", "call_id": "c", "name": "view", "arguments": "{}"}
RUN_BLOCK = {"type": "tool_use", "id": "c", "name": "view", "input": {}}


@pytest.mark.parametrize(
    "result", [OF_MCP, [OF_MCP], {"content": [OF_MCP], "isError": False}], ids=["one", "all", "result"]
)
def test_the_json_of_an_mcp_result_is_its_media_on_all_apis(result: Any, house: House) -> None:
    text = json.dumps(result)
    block = {"type": "tool_result", "tool_use_id": "c", "content": text}
    for asked in (
        chat(
            messages=[{"role": "user", "content": "Hi"}, RUN, {"role": "tool", "tool_call_id": "c1", "content": text}]
        ),
        responses(RUN_ITEM, {"type": "function_call_output", "call_id": "c", "output": text}),
        messages({"role": "assistant", "content": [RUN_BLOCK]}, {"role": "user", "content": [block]}),
    ):
        served(house, asked)
        assert "<tool_response>\n[image: this model cannot see it]\n</tool_response>" in house.prompt


@pytest.mark.parametrize(
    "text",
    [
        '[{"mediaType": "image/png"}]',
        '{"type": "report", "mimeType": "image/png", "data": "' + BASE64 + '"}',
        '[{"type": "file", "mediaType": "image/png", "data": "not base64!"}]',
        '[{"type": "file", "mediaType": "image/png", "data": "' + BASE64,
        '{"type": "file", "mediaType": "image/png", "data": "' + BASE64 + '"}',
        '[{"type": "text", "text": "\\"mediaType\\""}]',
        '[{"type": "file", "mediaType": "image/png"}, 1]',
    ],
)
def test_a_result_of_other_json_stays_its_text(text: str, house: House) -> None:
    result = {"role": "tool", "tool_call_id": "c1", "content": text}
    served(house, chat(messages=[{"role": "user", "content": "Hi"}, RUN, result]))
    assert f"<tool_response>\n{text}\n</tool_response>" in house.prompt
