"""A gateway before a server with a projector, requests with images in three APIs, and what reaches the server."""

from __future__ import annotations

import base64
import io
from typing import Any

from PIL import Image

from strata_pack.chat.library import load_shipped
from strata_pack.chat.render.template import ChatTemplate
from strata_pack.gateway.control_tokens import ControlTokens
from strata_pack.gateway.engine import RunningModel
from strata_pack.gateway.fetching import Fetcher, NotFetched
from strata_pack.gateway.prompt import Prompts
from strata_pack.gateway.service import Gateway
from strata_pack.gateway.upstream import Upstream
from strata_pack.gateway.vision import Vision
from tests.gateway.conftest import CONTROL, TEMPLATE_ID, House
from tests.gateway.images import base64_of, data_url, encoded, picture
from tests.gateway.replay import MARKER

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
            raise NotFetched("has an address that is not public")
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


CALL = {"id": "c", "type": "function", "function": {"name": "view", "arguments": "{}"}}


def with_image(body: dict[str, Any]) -> dict[str, Any]:
    """Return a request with one more message, which holds an image."""
    return {**body, "messages": [*body["messages"], user("Look", chat_image())]}
