"""Locates every item and member of a JSON text, so that one can be changed without changing the rest.

Parsing and serialising a file would keep its meaning but lose its formatting: order, spaces, escapes, line ends. The
text must be valid JSON (``json.loads`` has accepted it).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

_GAP = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class Span:
    """A value and its position: ``text[start:end]``. ``key_start`` is the start of its key, if it is in an object."""

    value: Any
    start: int
    end: int
    key_start: int = -1


@dataclass(frozen=True)
class Edit:
    """Replaces ``text[start:end]`` by ``new``."""

    start: int
    end: int
    new: str


def whole(text: str) -> Span:
    """Return the span of the value in ``text``, which may begin with a byte order mark."""
    return _value(text, 1 if text.startswith("\ufeff") else 0)


def items(text: str, array: Span) -> Iterator[Span]:
    """Yield the items of a list."""
    at = _skip(text, array.start + 1)
    while text[at] != "]":
        item = _value(text, at)
        yield item
        at = _next(text, item.end)


def members(text: str, object_: Span) -> dict[str, Span]:
    """Return the members of an object by key; of repeated keys the last is taken, as by ``json.loads``."""
    found: dict[str, Span] = {}
    at = _skip(text, object_.start + 1)
    while text[at] != "}":
        key = _value(text, at)
        member = _value(text, _skip(text, key.end) + 1)
        found[key.value] = Span(member.value, member.start, member.end, at)
        at = _next(text, member.end)
    return found


def edited(text: str, edits: Iterable[Edit]) -> str:
    """Return ``text`` with ``edits`` applied, which must not overlap."""
    parts, at = [], 0
    for edit in sorted(edits, key=lambda one: one.start):
        parts += [text[at : edit.start], edit.new]
        at = edit.end
    return "".join([*parts, text[at:]])


def _value(text: str, at: int) -> Span:
    start = _skip(text, at)
    value, end = _DECODER.raw_decode(text, start)
    return Span(value, start, end)


def _skip(text: str, at: int) -> int:
    found = _GAP.match(text, at)
    return at if found is None else found.end()


def _next(text: str, at: int) -> int:
    """Return the position of the next item, or of the closing bracket."""
    at = _skip(text, at)
    return _skip(text, at + 1) if text[at] == "," else at
