"""Read the token counts of replies that are passed on unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from strata_pack.gateway.metrics import RequestRecord

LAST_PIECES = 3
"""Pieces at the end of a stream that may have the counts: the last event is followed by "[DONE]"."""

LONGEST = 4000
"""Most bytes of an object with counts."""

_decode = json.JSONDecoder().raw_decode


def note_usage(record: RequestRecord, pieces: Iterable[bytes]) -> None:
    """Set the token counts of ``record`` from a reply (JSON, or the last events of a stream), if it has them.

    ``usage`` is OpenAI's object, ``timings`` llama-server's, which streams have without being asked. Only these objects
    are decoded, because a reply may have millions of numbers.
    """
    data = b"".join(pieces)
    usage, timings = _last_object(data, b'"usage":'), _last_object(data, b'"timings":')
    details = usage.get("prompt_tokens_details")
    cached = _count(details if isinstance(details, dict) else {}, "cached_tokens") or _count(timings, "cache_n")
    prompt = _count(usage, "prompt_tokens") or cached + _count(timings, "prompt_n")
    record.prompt_tokens, record.cached_tokens, record.tokens_read_again = prompt, cached, prompt - cached
    record.completion_tokens = _count(usage, "completion_tokens") or _count(timings, "predicted_n")


def _last_object(data: bytes, key: bytes) -> dict[str, Any]:
    """Return the object after the last ``key``, ``{}`` if there is none; texts in JSON have no unescaped quote."""
    _, found, rest = data.rpartition(key)
    if not found:
        return {}
    try:
        value, _ = _decode(rest[:LONGEST].decode("utf-8", "replace").lstrip())
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _count(value: dict[str, Any], name: str) -> int:
    found = value.get(name)
    return found if isinstance(found, int) else 0
