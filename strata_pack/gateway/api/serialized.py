"""Tool results that a client sends as the JSON text of their parts.

The Vercel AI SDK sends a result with an image as the JSON of its parts, because chat completions have no images in tool
results, and clients of MCP servers (OpenAI's Agents SDK) send the JSON of MCP's content blocks. The model would get the
image as base64 text: this module decodes the parts again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from strata_pack.gateway.media import KINDS, MediaPart, media_part

_BEGINNING = re.compile(r'\s*(?:\[\s*)?\{\s*"')
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
_SCHEMES = ("https://", "http://", "data:")
_OF_MCP = ("image", "audio")
"""Types of MCP's content blocks with media; a single block, and the whole result, are objects."""


def parts_of(text: str) -> list[dict[str, Any]] | None:
    """Return the parts encoded in ``text``, ``None`` if it is not the JSON of parts with media."""
    if ('"mediaType"' not in text and '"mimeType"' not in text) or not _BEGINNING.match(text):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, dict):
        found = found["content"] if isinstance(found.get("content"), list) else [found] if _is_of_mcp(found) else []
    if not all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in found):
        return None
    media = [_media(part) for part in found]
    if not any(media):
        return None
    return [one or _text(part) for one, part in zip(media, found, strict=True)]


def pieces_of(where: str, text: str) -> list[str | MediaPart] | None:
    """Return the texts and media encoded in ``text`` at path ``where``, ``None`` as ``parts_of``."""
    parts = parts_of(text)
    if parts is None:
        return None
    return [
        part["text"] if part["type"] == "text" else media_part(KINDS[part["type"]], where, part, "the JSON of media")
        for part in parts
    ]


def _is_of_mcp(part: Mapping[str, Any]) -> bool:
    return part.get("type") in _OF_MCP and "mimeType" in part


def _media(part: dict[str, Any]) -> dict[str, Any] | None:
    """Return the media part for an image or a file given as base64 or URL, ``None`` for other parts."""
    kind, data = part.get("mediaType", part.get("mimeType") if _is_of_mcp(part) else None), part.get("data")
    if isinstance(data, dict):  # since version 7: the type, then the value under the type's name
        data = data.get("data", data.get("url"))
    if not isinstance(kind, str) or not isinstance(data, str):
        return None
    if not data.startswith(_SCHEMES):
        if not _BASE64.fullmatch(data):
            return None
        data = f"data:{kind};base64,{data}"
    if kind.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": data}}
    if kind.startswith("audio/"):
        return {"type": "input_audio", "input_audio": {"data": data}}
    return {"type": "file", "file": {"file_data": data}}


def _text(part: dict[str, Any]) -> dict[str, Any]:
    text = part.get("text")
    shown = text if part["type"] == "text" and isinstance(text, str) else json.dumps(part, ensure_ascii=False)
    return {"type": "text", "text": shown}
