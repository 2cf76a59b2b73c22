"""Images are counted, kept and sent on; which servers see, and how a place for an image is marked."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import openai
import pytest

from strata_pack.gateway.media import media_part
from strata_pack.gateway.pictures import Picture
from strata_pack.gateway.turn import Turn
from strata_pack.gateway.upstream import Upstream, refusal
from strata_pack.gateway.vision import Vision, vision_of
from tests.gateway.conftest import CONTROL, House
from tests.gateway.images import SVG, encoded, picture
from tests.gateway.replay import IMAGE_TOKENS, MARKER, tokenize
from tests.gateway.test_control_tokens import ATTACKS, END, START, wire_tokens
from tests.gateway.vision.seeing import (
    BLUE,
    DONE,
    EYES,
    GREEN,
    SeeingHouse,
    anthropic_messages,
    block,
    chat,
    chat_image,
    color_of,
    input_image,
    responses_user,
    sent,
    user,
    with_image,
)


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
