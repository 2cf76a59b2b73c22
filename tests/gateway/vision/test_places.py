"""An image stands in the prompt where the client put it, whatever API and template."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.gateway.conftest import House
from tests.gateway.images import base64_of, data_url
from tests.gateway.replay import MARKER
from tests.gateway.vision.seeing import (
    BLUE,
    CALL,
    DONE,
    GREEN,
    RED,
    SeeingHouse,
    anthropic_messages,
    block,
    chat,
    chat_image,
    input_image,
    responses,
    responses_user,
    sent,
    user,
)

USERS = [
    chat(user("What is ", chat_image(), "this?")),
    responses(responses_user("What is ", input_image(), "this?")),
    anthropic_messages(user("What is ", block(), "this?")),
]


@pytest.mark.parametrize("asked", USERS, ids=["chat", "responses", "messages"])
def test_a_users_image_stands_where_the_user_put_it(asked: Any, seeing: House) -> None:
    text, colors = sent(seeing, asked)
    assert re.search(rf"What is \s*{re.escape(MARKER)}\s*this\?<\|im_end\|>", text), text
    assert colors == ["red"]
    assert "vision_start" not in text


RESULTS = [
    chat(
        user("Look"),
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "a.png"}, chat_image(BLUE)]},
    ),
    responses(
        responses_user("Look"),
        {"type": "function_call", "call_id": "c", "name": "view", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [
            {"type": "input_text", "text": "a.png"}, input_image(BLUE),
        ]},
    ),
    anthropic_messages(
        user("Look"),
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "view", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [
            {"type": "text", "text": "a.png"}, block(BLUE),
        ]}]},
    ),
]  # fmt: skip


@pytest.mark.parametrize("asked", RESULTS, ids=["chat", "responses", "messages"])
def test_an_image_in_a_tool_result_stands_there(asked: Any, seeing: House) -> None:
    text, colors = sent(seeing, asked)
    assert re.search(rf"<tool_response>\na.png\s*{re.escape(MARKER)}\n</tool_response>", text), text
    assert colors == ["blue"]


def test_images_of_several_messages_keep_their_order(seeing: House) -> None:
    calls = [{**CALL, "id": name} for name in ("first", "second")]
    text, colors = sent(seeing, chat(
        user(chat_image(RED), "Compare"),
        {"role": "assistant", "tool_calls": calls},
        # Results come in any order, and go into the prompt in that of their calls.
        {"role": "tool", "tool_call_id": "second", "content": [chat_image(BLUE)]},
        {"role": "tool", "tool_call_id": "first", "content": [chat_image(GREEN)]},
    ))  # fmt: skip
    assert colors == ["red", "green", "blue"]
    assert text.count(MARKER) == 3


@pytest.mark.parametrize(
    "part",
    [
        chat_image(),
        {"type": "image_url", "image_url": data_url(RED)},
        {"type": "image", "image": data_url(RED)},
        {"type": "image", "data": base64_of(RED), "mimeType": "image/png"},
        {"type": "input_image", "image_url": data_url(RED, "image/jpeg")},
        {"type": "image_url", "image_url": {"url": base64_of(RED), "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "DATA:image/png;charset=x;BASE64,\n" + base64_of(RED)}},
        block(),
    ],
    ids=["chat", "a text", "Qwen", "MCP", "responses", "bare base64", "an odd data URL", "messages"],
)
def test_every_spelling_of_an_image_is_read(part: dict[str, Any], seeing: House) -> None:
    assert sent(seeing, chat(user("x", part)))[1] == ["red"]


def test_vision_ids_stay(seeing: House) -> None:
    asked = chat(user(chat_image(), chat_image(BLUE)), chat_template_kwargs={"add_vision_id": True})
    assert f"Picture 1: {MARKER}Picture 2: {MARKER}" in sent(seeing, asked)[0]


def test_a_prompt_without_images_goes_as_ever(seeing: House) -> None:
    seeing.says(DONE)
    assert seeing.post(chat(user("Hi"))[1]).status_code == 200
    assert isinstance(seeing.replay.bodies[-1]["prompt"], str)


def test_what_follows_the_thinking_is_asked_with_the_images_again(seeing: House) -> None:
    seeing.says("Hm.\n</think>")
    seeing.says('{"a": 1}')
    answer = seeing.post(chat(user("x", chat_image()), response_format={"type": "json_object"})[1])
    assert answer.status_code == 200, answer.text
    first, second = (body["prompt"] for body in seeing.replay.bodies)
    assert second["multimodal_data"] == first["multimodal_data"]
    assert second["prompt_string"] == first["prompt_string"] + "Hm.\n</think>\n\n"


TEMPLATES = {
    "parts of text alone": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    ),
    "strings alone": (
        "{% for m in messages %}{% if m.content is not string %}{{ raise_exception('no list') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    ),
    "images of users alone": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
        "{% if m.role == 'tool' %}{{ raise_exception('no list') }}{% endif %}"
        "{% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}"
        "{{ p.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    ),
    "the last message alone": (
        "<|im_start|>user\n{% for p in messages[-1].content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|>"
        "<|vision_end|>{% else %}{{ p.text }}{% endif %}{% endfor %}<|im_end|>\n"
    ),
    "lists as Python prints them": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
def test_images_reach_the_model_whatever_the_template_knows_of_them(name: str) -> None:
    class Other(SeeingHouse):
        source = TEMPLATES[name]

    with Other() as house:
        result = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "it: "}, chat_image(BLUE)]}
        history = [user("a", chat_image(RED), "b"), {"role": "assistant", "tool_calls": [CALL]}, result]
        text, colors = sent(house, chat(*history))
        if name == "the last message alone":
            assert (text.count(MARKER), colors) == (1, ["blue"])
        else:
            assert f"a{MARKER}b" in text
            assert f"it: {MARKER}" in text
            assert colors == ["red", "blue"]
