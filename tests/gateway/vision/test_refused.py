"""Images that are refused, each as a 400 that names its place; addresses that are fetched or not."""

from __future__ import annotations

from typing import Any

import pytest

from strata_pack.gateway.pictures import read_picture
from tests.gateway.conftest import House
from tests.gateway.images import SVG, data_url, encoded, png_claiming
from tests.gateway.vision.seeing import (
    BLUE,
    CALL,
    DONE,
    GREEN,
    RED,
    anthropic_messages,
    chat,
    chat_image,
    responses,
    responses_user,
    sent,
    user,
)

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
