"""Tool results that a client sends as the JSON text of their parts.

Chat completions have no images in tool results. The Vercel AI SDK sends a result with an image as the JSON of its
parts, so the model would get the image as base64 text: this module decodes the parts again.
"""

from __future__ import annotations

import json
import re
from typing import Any

_BEGINNING = re.compile(r'\s*\[\s*\{\s*"')
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
_SCHEMES = ("https://", "http://", "data:")


def parts_of(text: str) -> list[dict[str, Any]] | None:
    """Return the parts encoded in ``text``, ``None`` if it is not the JSON of parts with media."""
    if '"mediaType"' not in text or not _BEGINNING.match(text):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in found):
        return None
    media = [_media(part) for part in found]
    if not any(media):
        return None
    return [one or _text(part) for one, part in zip(media, found, strict=True)]


def _media(part: dict[str, Any]) -> dict[str, Any] | None:
    """Return the media part for an image or a file given as base64 or URL, ``None`` for other parts."""
    kind, data = part.get("mediaType"), part.get("data")
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
    return {"type": "file", "file": {"file_data": data}}


def _text(part: dict[str, Any]) -> dict[str, Any]:
    text = part.get("text")
    shown = text if part["type"] == "text" and isinstance(text, str) else json.dumps(part, ensure_ascii=False)
    return {"type": "text", "text": shown}
