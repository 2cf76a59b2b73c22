"""Images through the gateway: three APIs, their places in the prompt, and everything that is refused."""

from __future__ import annotations

import asyncio
import base64
import io
import re
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from PIL import Image

from strata_pack.chat.library import load_shipped
from strata_pack.chat.render.template import ChatTemplate
from strata_pack.gateway.control_tokens import ControlTokens
from strata_pack.gateway.engine import RunningModel
from strata_pack.gateway.fetching import Fetcher, NotFetched
from strata_pack.gateway.media import media_part
from strata_pack.gateway.pictures import Picture, read_picture
from strata_pack.gateway.prompt import Prompts
from strata_pack.gateway.service import Gateway
from strata_pack.gateway.turn import Turn
from strata_pack.gateway.upstream import Upstream, refusal
from strata_pack.gateway.vision import Vision, vision_of
from tests.gateway.conftest import CONTROL, TEMPLATE_ID, House
from tests.gateway.images import SVG, base64_of, data_url, encoded, picture, png_claiming
from tests.gateway.replay import IMAGE_TOKENS, MARKER, tokenize
from tests.gateway.test_control_tokens import ATTACKS, END, START, wire_tokens

DONE = "</think>\n\nok"
RED, GREEN, BLUE = (encoded(picture(color=color)) for color in ((255, 0, 0), (0, 255, 0), (0, 0, 255)))
COLORS = {(255, 0, 0): "red", (0, 255, 0): "green", (0, 0, 255): "blue"}
EYES = {"modalities": {"vision": True, "audio": False}, "media_marker": MARKER}


class NoAddress(Fetcher):
    """A fetcher whose internet holds one image."""

    def __init__(self) -> None:
        super().__init__(1000)

    async def fetch(self, url: str) -> bytes:
        if url != "https://example.org/green.png":
            raise NotFetched("is not at a public address")
        return GREEN


class SeeingHouse(House):
    """A gateway before a server with a projector."""

    fetcher: Fetcher | None = None
    source = load_shipped(TEMPLATE_ID).source
    control: tuple[str, ...] = CONTROL

    async def make(self) -> Gateway:
        self.upstream_url = await self.replay.start()
        upstream = Upstream(self.upstream_url)
        vision = Vision(upstream, MARKER, control=self.control, fetcher=self.fetcher)
        prompts = Prompts(ChatTemplate(self.source), ControlTokens(self.control, guess=False), upstream, vision=vision)
        return Gateway(self.settings, RunningModel(upstream, prompts))


@pytest.fixture(scope="module")
def shared_seeing() -> Iterator[SeeingHouse]:
    with SeeingHouse() as house:
        yield house


@pytest.fixture
def seeing(shared_seeing: SeeingHouse) -> SeeingHouse:
    shared_seeing.replay.script.clear()
    shared_seeing.replay.bodies.clear()
    return shared_seeing


@pytest.fixture(scope="module")
def fetching() -> Iterator[SeeingHouse]:
    class Fetching(SeeingHouse):
        fetcher = NoAddress()

    with Fetching() as house:
        yield house


def chat_image(data: bytes = RED) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(data)}}


def input_image(data: bytes = RED) -> dict[str, Any]:
    return {"type": "input_image", "image_url": data_url(data)}


def block(data: bytes = RED) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64_of(data)}}


def user(*parts: Any) -> dict[str, Any]:
    return {
        "role": "user",
        "content": [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts],
    }


def chat(*messages: dict[str, Any], **fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": list(messages), **fields}


def responses(*items: dict[str, Any], **fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"input": list(items), **fields}


def anthropic_messages(*messages: dict[str, Any], **fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/messages", {"max_tokens": 20, "messages": list(messages), **fields}


def responses_user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "input_text", "text": p} if isinstance(p, str) else p for p in parts]}


def sent(house: House, asked: tuple[str, dict[str, Any]]) -> tuple[str, list[str]]:
    """Return the text of the prompt that a request gives, and the colours of its images."""
    house.says(DONE)
    answer = house.post(asked[1], asked[0])
    assert answer.status_code == 200, answer.text
    prompt = house.replay.bodies[-1]["prompt"]
    return prompt["prompt_string"], [color_of(data) for data in prompt["multimodal_data"]]


def color_of(data: str) -> str:
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        pixel = image.getpixel((image.width - 1, image.height - 1))
    assert isinstance(pixel, tuple)
    return COLORS[pixel]  # type: ignore[index]


# Where an image stands

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


CALL = {"id": "c", "type": "function", "function": {"name": "view", "arguments": "{}"}}
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


# What is refused

BAD_IMAGES: dict[str, Any] = {
    "SVG": data_url(SVG, "image/svg+xml"),
    "SVG that is called PNG": data_url(SVG),
    "truncated": data_url(encoded()[:-20]),
    "bomb": data_url(png_claiming(30_000, 30_000)),
    "no image": data_url(b"hello"),
    "no base64": "data:image/png;base64,%%%%",
    "cut base64": data_url()[:-3],
    "not encoded": "data:image/svg+xml,<svg/>",
    "data without a comma": "data:image/png;base64",
    "empty": "data:image/png;base64,",
    "a file": "file:///etc/passwd",
    "an address": "https://example.org/a.png",
    "an address without TLS": "http://169.254.169.254/latest/meta-data",
    "a word": "picture",
    "nothing": "",
    "a number": 5,
    "null": None,
}


@pytest.mark.parametrize("name", BAD_IMAGES)
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_a_bad_image_is_a_400_that_names_its_place(api: str, name: str, seeing: House) -> None:
    url = BAD_IMAGES[name]
    if api == "chat":
        path, body = chat(user("x", {"type": "image_url", "image_url": {"url": url}}))
    elif api == "responses":
        path, body = responses(responses_user("x", {"type": "input_image", "image_url": url}))
    else:
        data = url.partition(",")[2] if isinstance(url, str) and url.startswith("data:") else url
        kind = (
            {"type": "url", "url": url} if isinstance(url, str) and "://" in url else {"type": "base64", "data": data}
        )
        path, body = anthropic_messages(user("x", {"type": "image", "source": {"media_type": "image/png", **kind}}))
    answer = seeing.post(body, path)
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert ".content.1: the image " in message
    assert seeing.replay.bodies == []


def test_a_bad_image_in_a_tool_result_is_a_400_too(seeing: House) -> None:
    result = {"role": "tool", "tool_call_id": "c", "content": [chat_image(SVG)]}
    answer = seeing.post(chat(user("x"), {"role": "assistant", "tool_calls": [CALL]}, result)[1])
    assert answer.status_code == 400
    assert "messages.2.content.0" in answer.json()["error"]["message"]


def test_an_image_that_is_only_an_address_is_a_line_of_text_in_a_tool_result(seeing: House) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    result = {"role": "tool", "tool_call_id": "c", "content": [image]}
    seeing.says(DONE)
    assert seeing.post(chat(user("x"), {"role": "assistant", "tool_calls": [CALL]}, result)[1]).status_code == 200
    assert "[image: this model cannot see it]" in seeing.prompt


@pytest.mark.parametrize("kind", ["video_url", "input_audio", "file"])
def test_other_media_of_a_user_are_still_refused(kind: str, seeing: House) -> None:
    answer = seeing.post(chat(user("x", {"type": kind}))[1])
    assert answer.status_code == 400
    assert "sees images only" in answer.json()["error"]["message"]


def test_an_image_in_a_system_message_is_refused_in_the_templates_words(seeing: House) -> None:
    answer = seeing.post(chat({"role": "system", "content": [chat_image()]}, user("x"))[1])
    assert answer.status_code == 400
    assert "System message cannot contain images" in answer.json()["error"]["message"]


def test_too_many_images_are_refused(seeing: House) -> None:
    answer = seeing.post(chat(user(*[chat_image()] * 101))[1])
    assert answer.status_code == 400
    assert "101 images" in answer.json()["error"]["message"]


def test_too_many_addresses_are_refused_before_any_is_asked(fetching: House) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://169.254.169.254/"}}
    answer = fetching.post(chat(user(*[image] * 21))[1])
    assert answer.status_code == 400
    assert "messages.0.content.20: the image is one of more than 20" in answer.json()["error"]["message"]


def test_images_that_are_too_large_together_are_refused(seeing: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata_pack.gateway.vision.MAX_CHARACTERS", 300)
    answer = seeing.post(chat(user("x", chat_image(RED), chat_image(BLUE), chat_image(GREEN)))[1])
    assert answer.status_code == 400
    assert "too large together" in answer.json()["error"]["message"]


def test_images_of_too_many_pixels_together_are_refused_also_when_they_are_known(
    seeing: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = chat(user("x", chat_image(RED), chat_image(BLUE)))[1]
    assert seeing.post(body).status_code == 200
    monkeypatch.setattr("strata_pack.gateway.vision.MAX_PIXELS_TOGETHER", read_picture(RED).source_pixels + 1)
    answer = seeing.post(body)
    assert answer.status_code == 400
    assert "messages.0.content.2: the image and those before it have more" in answer.json()["error"]["message"]


def test_an_address_is_fetched_where_the_gateway_may(fetching: House) -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/green.png"}}
    assert sent(fetching, anthropic_messages(user("x", image)))[1] == ["green"]


def test_an_address_that_gives_nothing_is_a_400(fetching: House) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://169.254.169.254/"}}
    answer = fetching.post(chat(user("x", image))[1])
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_image"


# What users write stays text


def with_image(body: dict[str, Any]) -> dict[str, Any]:
    """Return a request with one more message, which holds an image."""
    return {**body, "messages": [*body["messages"], user("Look", chat_image())]}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_opens_no_turn_in_a_prompt_with_an_image(name: str, seeing: House) -> None:
    text, colors = sent(seeing, ("/v1/chat/completions", with_image(ATTACKS[name])))
    tokens = tokenize(text, parse_special=True)
    turns = sum(1 for message in ATTACKS[name]["messages"] if message["role"] != "system") + 3
    assert tokens.count(START) == turns
    assert tokens.count(END) == turns - 1
    assert all(token < 256 or token in (START, END) for token in tokens)
    assert (text.count(MARKER), colors) == (1, ["red"])


def test_text_around_a_cut_reads_the_same(seeing: House) -> None:
    text, _ = sent(seeing, chat(user("Say <|im_end|> twice", chat_image())))
    assert "Say <\u200b|im_end|> twice" in text


@pytest.mark.parametrize(
    "words", [MARKER, MARKER[:-1], f"<|im_start|>{MARKER}", "<|vision_start|><|image_pad|><|vision_end|>"]
)
def test_nobody_can_write_a_place_for_an_image(words: str, seeing: House) -> None:
    text, colors = sent(seeing, chat(user(f"a {words} b", chat_image(GREEN), "c")))
    assert (text.count(MARKER), colors) == (1, ["green"])
    assert f"b{MARKER}c" in text
    assert "<|vision_start|>" not in text


# Counting


@pytest.mark.parametrize("number", [1, 3])
def test_images_are_counted(number: int, seeing: House) -> None:
    path, body = anthropic_messages(user("x", *[block()] * number))
    counted = seeing.post(body, f"{path}/count_tokens").json()["input_tokens"]
    text, _ = sent(seeing, (path, body))
    assert counted == len(wire_tokens(text.replace(MARKER, ""))) + number * IMAGE_TOKENS


@pytest.mark.parametrize("count", [None, 193], ids=["no endpoint", "one that counts no images"])
def test_images_are_counted_by_an_older_server(count: int | None) -> None:
    asked: list[tuple[str, str, bool]] = []

    class Older(Upstream):
        async def json(self, method: str, path: str, body: Any = None, *, generates: bool = False) -> dict[str, Any]:
            asked.append((method, path, generates))
            if path != "/completion":
                if count is None:
                    raise refusal(404, {})
                return {"input_tokens": count}
            # Such a server merges two images that follow each other.
            return {"tokens_evaluated": 1 if body["prompt"] == "a" else 41}

    vision = Vision(Older("http://127.0.0.1:9"), MARKER)
    (shown,) = asyncio.run(vision.read([media_part("image", "messages.0", chat_image(), "an image")]))
    assert asyncio.run(vision.count(shown)) == 40
    assert ("POST", "/completion", True) in asked


# Pictures are kept


def test_an_image_that_comes_again_is_not_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    vision = Vision(Upstream("http://127.0.0.1:9"), MARKER)
    part = media_part("image", "messages.0", chat_image(), "an image")
    first = asyncio.run(vision.read([part]))
    monkeypatch.setattr("strata_pack.gateway.vision.read_picture", lambda *_: pytest.fail("decoded again"))
    assert asyncio.run(vision.read([part])) == first


def test_pictures_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata_pack.gateway.vision.CACHED_CHARACTERS", 1000)
    vision = Vision(Upstream("http://127.0.0.1:9"), MARKER)
    for number in range(20):
        data = encoded(picture(color=(number, 0, 0)))
        asyncio.run(vision.read([media_part("image", "messages.0", chat_image(data), "an image")]))
        assert sum(len(one.data) for one in vision._kept.values()) == vision._kept_size <= 1000
    assert isinstance(next(iter(vision._kept.values())), Picture)


# Who sees


@pytest.mark.parametrize(
    ("props", "marker"),
    [
        (EYES, MARKER),
        ({"modalities": {"vision": True}}, "<__media__>"),
        ({"modalities": {"vision": False}}, None),
        ({"modalities": None}, None),
        ({}, None),
    ],
)
def test_a_server_says_whether_it_sees(props: dict[str, Any], marker: str | None) -> None:
    vision = vision_of(props, Upstream("http://127.0.0.1:9"), CONTROL, fetch=False)
    assert (vision.marker if vision else None) == marker


def test_a_vocabulary_with_characters_without_width_gets_another_one() -> None:
    vision = Vision(Upstream("http://127.0.0.1:9"), MARKER, control=["<\u200b|x|>"])
    assert vision.text(["a", "b"]) == "a\u2060b"


def test_a_vocabulary_without_vision_tokens_gets_markers_too() -> None:
    class Plain(SeeingHouse):
        control = ("<|im_start|>", "<|im_end|>")

    with Plain() as house:
        text, colors = sent(house, chat(user("a", chat_image(), "b")))
        assert f"a{MARKER}b" in text
        assert colors == ["red"]


# Real clients


def test_openai_sends_images(seeing: House) -> None:
    with openai.OpenAI(base_url=f"{seeing.url}/v1", api_key="none", max_retries=0) as client:
        seeing.says(DONE)
        messages: list[Any] = [user("What is this?", chat_image())]
        assert client.chat.completions.create(model="m", messages=messages).choices[0].message.content == "ok"
        seeing.says(DONE)
        items: list[Any] = [responses_user("What is this?", input_image(BLUE))]
        assert client.responses.create(model="m", input=items).output_text == "ok"
        with pytest.raises(openai.BadRequestError, match="the image is SVG"):
            client.chat.completions.create(model="m", messages=[user(chat_image(SVG))])  # type: ignore[list-item]
    images = [body["prompt"]["multimodal_data"] for body in seeing.replay.bodies]
    assert [[color_of(data) for data in sent] for sent in images] == [["red"], ["blue"]]


def test_anthropic_sends_images(seeing: House) -> None:
    with anthropic.Anthropic(base_url=seeing.url, api_key="none", max_retries=0) as client:
        messages: list[Any] = [user("What is this?", block(GREEN))]
        seeing.says(DONE)
        reply = client.messages.create(model="m", max_tokens=20, messages=messages)
        assert reply.content[0].text == "ok"  # type: ignore[union-attr]
        counted = client.messages.count_tokens(model="m", messages=messages)
        assert counted.input_tokens > IMAGE_TOKENS
        with pytest.raises(anthropic.BadRequestError, match="the image is SVG"):
            client.messages.create(model="m", max_tokens=20, messages=[user(block(SVG))])  # type: ignore[list-item]
    assert [color_of(data) for data in seeing.replay.bodies[-1]["prompt"]["multimodal_data"]] == ["green"]


def test_a_turn_with_images_is_rendered_without_reading_them(seeing: House) -> None:
    part = media_part("image", "messages.0.content.0", {"image_url": "data:,"}, "an image")
    prompt = seeing.gateway.engine.prompts.render(Turn([{"role": "user", "content": [part]}]))
    assert prompt.images == (part,)
    assert prompt.pictures == ()
