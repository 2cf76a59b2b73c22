"""Results of tools that a client wrote as the JSON text of their parts.

Chat completions know no images in results. The Vercel AI SDK sends a result that holds one as the JSON of its parts,
and the image would reach the model as its base64: here the parts become parts again.
"""

from __future__ import annotations

import json
import re
from typing import Any

_BEGINNING = re.compile(r'\s*\[\s*\{\s*"')
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
_SCHEMES = ("https://", "http://", "data:")


def parts_of(text: str) -> list[dict[str, Any]] | None:
    """Return the parts of which ``text`` is the JSON, ``None`` where it is that of no parts with media in them."""
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
    """Return the part for an image or a file that ``part`` holds as base64 or by its address, ``None`` for others."""
    kind, data = part.get("mediaType"), part.get("data")
    if isinstance(data, dict):  # since version 7: what it is, and then that
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
