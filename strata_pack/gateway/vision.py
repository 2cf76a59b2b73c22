"""Image support: convert the images of a conversation for llama-server's ``/completion``.

The prompt of a conversation with images is an object: a text with a marker for each image, and the images. The server
parses all of that text, so it cannot be cut into pieces as other prompts are (see ``control_tokens``). Where a user
wrote a control token, a zero-width character is inserted after its first one: the text looks the same, and no tokenizer
finds the token in it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from strata_pack.gateway.failures import ApiError, bad_request
from strata_pack.gateway.fetching import Fetcher, NotFetched
from strata_pack.gateway.media import MediaPart
from strata_pack.gateway.pictures import (
    MAX_BYTES,
    MAX_PIXELS_TOGETHER,
    TOO_MANY_TOGETHER,
    BadPicture,
    Picture,
    read_picture,
)
from strata_pack.gateway.upstream import Upstream

MAX_IMAGES = 100
"""Most images of one prompt; more fill any context."""

MAX_FETCHED = 20
"""Most images of one prompt fetched from URLs: a request must not cause many others."""

MAX_CHARACTERS = 128 << 20
"""Most characters (base64) of all pictures of one prompt."""

CACHED_CHARACTERS = 64 << 20
"""Characters (base64) of cached pictures: an agent sends all images of its session with every turn."""

CACHED_COUNTS = 4096
AT_A_TIME = 2
"""Images decoded at a time, each in up to 0.5 GB."""

OLDER_MARKER = "<__media__>"
"""The marker of servers that do not create one at each start."""

BREAKERS = ("\u200b", "\u2060", "\u200c", "\ufeff")
"""Zero-width characters, the best supported first."""

BAD_IMAGE = "invalid_image"


class Vision:
    """Image support of one server. ``marker`` is its text for an image in a prompt, ``fetcher`` reads https URLs.

    ``control`` are the texts of the vocabulary's control tokens.
    """

    def __init__(
        self, upstream: Upstream, marker: str, *, control: Sequence[str] = (), fetcher: Fetcher | None = None
    ) -> None:
        self.marker = marker
        self._breaker = next((one for one in BREAKERS if not any(one in text for text in control)), BREAKERS[0])
        self._upstream = upstream
        self._fetcher = fetcher
        self._decoding = asyncio.Semaphore(AT_A_TIME)
        self._kept: OrderedDict[bytes, Picture] = OrderedDict()
        self._kept_size = 0
        self._counts: OrderedDict[tuple[int, int], int] = OrderedDict()

    def sees(self, part: MediaPart) -> bool:
        """Return whether an image in the history, which no user can remove, can be shown to the model."""
        address = _address(part)
        return address is not None and (self._fetcher is not None or not _is_remote(address))

    async def read(self, parts: Sequence[MediaPart]) -> tuple[Picture, ...]:
        """Return the pictures of ``parts``. Raises ``ApiError`` 400 for the first unacceptable one."""
        if len(parts) > MAX_IMAGES:
            raise bad_request(f"messages: there are {len(parts)} images; at most {MAX_IMAGES} are accepted", "messages")
        remote = [part for part in parts if _is_remote(_address(part) or "")]
        if len(remote) > MAX_FETCHED:
            raise _refused(remote[MAX_FETCHED]["where"], f"is one of more than {MAX_FETCHED} at URLs")
        pictures: list[Picture] = []
        room, pixels = MAX_CHARACTERS, MAX_PIXELS_TOGETHER
        for part in parts:
            pictures.append(await self._picture(part, pixels))
            room -= len(pictures[-1].data)
            pixels -= pictures[-1].source_pixels
            if room < 0:
                raise _refused(part["where"], "and those before it are too large together")
        return tuple(pictures)

    async def _picture(self, part: MediaPart, pixels: int) -> Picture:
        """Return the picture of ``part``; ``pixels`` is the number that its request may still use."""
        where = part["where"]
        address = _address(part)
        if address is None:
            raise _refused(where, "has no data; send it as a data URL, as base64 or as an https URL")
        try:
            data: bytes | None = None
            if _is_remote(address):
                if self._fetcher is None:
                    raise NotFetched("is at an address, and this gateway fetches none (--fetch-images); send its data")
                data = await self._fetcher.fetch(address)
            async with self._decoding:
                digest, picture = await asyncio.to_thread(self._decoded, data, address, pixels)
        except (BadPicture, NotFetched) as error:
            raise _refused(where, str(error)) from error
        self._keep(digest, picture)
        return picture

    def _decoded(self, data: bytes | None, address: str, pixels: int) -> tuple[bytes, Picture]:
        """Return the hash of an image's bytes and its picture, computed in this thread."""
        data = _from_base64(address) if data is None else data
        digest = hashlib.sha256(data).digest()
        picture = self._kept.get(digest) or read_picture(data, pixels)
        if picture.source_pixels > pixels:
            raise BadPicture(TOO_MANY_TOGETHER)
        return digest, picture

    def _keep(self, digest: bytes, picture: Picture) -> None:
        if digest not in self._kept:
            self._kept_size += len(picture.data)
        self._kept[digest] = picture
        self._kept.move_to_end(digest)
        while self._kept_size > CACHED_CHARACTERS:
            self._kept_size -= len(self._kept.popitem(last=False)[1].data)

    def text(self, pieces: Sequence[str]) -> str:
        """Return the prompt's text: its ``pieces``, joined with an invisible character."""
        return self._breaker.join(piece for piece in pieces if piece)

    def wire(self, pieces: Sequence[str], pictures: Sequence[Picture]) -> dict[str, Any]:
        """Return a prompt in the form of ``/completion``; ``pieces`` contain ``marker`` for each of ``pictures``."""
        return {"prompt_string": self.text(pieces), "multimodal_data": [picture.data for picture in pictures]}

    async def count(self, picture: Picture) -> int:
        """Return the number of tokens of a picture, including those that the server adds around it."""
        # It depends only on the size in pixels.
        if picture.size not in self._counts:
            self._counts[picture.size] = await self._counted_by_server(picture) or await self._read_to_count(picture)
            if len(self._counts) > CACHED_COUNTS:
                self._counts.popitem(last=False)
        return self._counts[picture.size]

    async def _counted_by_server(self, picture: Picture) -> int:
        """Return the difference in tokens of messages with two pictures and with one; 0 if unknown.

        The server counts them without running its tower. Older ones count none of them, or do not count at all.
        """
        part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture.data}"}}
        counts: list[int] = []
        for number in (1, 2):
            body = {"messages": [{"role": "user", "content": [part] * number}]}
            try:
                answer = await self._upstream.json("POST", "/v1/chat/completions/input_tokens", body)
            except ApiError as error:
                if error.status == 503:
                    raise
                return 0
            found = answer.get("input_tokens")
            counts.append(found if isinstance(found, int) else 0)
        return max(0, counts[1] - counts[0])

    async def _read_to_count(self, picture: Picture) -> int:
        """Return the tokens of a picture by letting the server process it."""
        counts = []
        for text, pictures in (("a", []), (f"a{self.marker}", [picture])):
            prompt = self.wire([text], pictures) if pictures else text
            body = {"prompt": prompt, "n_predict": 0, "cache_prompt": False}
            tokens = (await self._upstream.json("POST", "/completion", body, generates=True)).get("tokens_evaluated")
            if not isinstance(tokens, int):
                raise ApiError(502, "the llama.cpp server did not count the tokens", kind="upstream_error")
            counts.append(tokens)
        return counts[1] - counts[0]


def vision_of(props: Mapping[str, Any], upstream: Upstream, control: Sequence[str], *, fetch: bool) -> Vision | None:
    """Return the image support of a server with these properties, ``None`` without one.

    ``fetch``: images at https addresses are fetched.
    """
    modalities = props.get("modalities")
    if not isinstance(modalities, Mapping) or modalities.get("vision") is not True:
        return None
    marker = props.get("media_marker")
    return Vision(
        upstream,
        marker if isinstance(marker, str) and marker else OLDER_MARKER,
        control=control,
        fetcher=Fetcher(MAX_BYTES) if fetch else None,
    )


def _refused(where: str, reason: str) -> ApiError:
    return bad_request(f"{where}: the image {reason}", where, code=BAD_IMAGE)


def _address(part: MediaPart) -> str | None:
    """Return the data URL, https URL or base64 of an image, from any API's form."""
    return next((text for text in _addresses(part["given"]) if text), None)


def _addresses(given: Mapping[str, Any]) -> Iterator[str]:
    source = given.get("source")
    places = (given, source) if isinstance(source, Mapping) else (given,)
    for place in places:
        for name in ("image_url", "image", "url", "data"):
            value = place.get(name)
            value = value.get("url") if isinstance(value, Mapping) else value
            if isinstance(value, str):
                yield value.strip()


def _is_remote(address: str) -> bool:
    """Return whether an address is a remote URL; base64 and empty values have no colon."""
    return address[:5].lower() != "data:" and ":" in address[:64]


def _from_base64(address: str) -> bytes:
    """Return the bytes of a data URL or of base64. Raises ``BadPicture``."""
    encoded = address
    if address[:5].lower() == "data:":
        head, comma, encoded = address.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise BadPicture("is a data URL that is not in base64")
    if len(encoded) > MAX_BYTES * 3 // 2:
        raise BadPicture(f"has more than {MAX_BYTES:,} bytes")
    try:
        return base64.b64decode("".join(encoded.split()), validate=True)
    except (binascii.Error, ValueError):
        raise BadPicture("is not in base64") from None
