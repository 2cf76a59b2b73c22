"""Locates every item and member of a JSON text, so that one can be changed and the rest stays as it is.

Reading and writing a file anew would keep what it means and lose how it is written: order, spaces, escapes, line ends.
The text must be JSON already (``json.loads`` has read it).
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
    """A value and where it stands: ``text[start:end]``. ``key_start`` is where its key begins, in an object."""

    value: Any
    start: int
    end: int
    key_start: int = -1


@dataclass(frozen=True)
class Edit:
    """``text[start:end]`` becomes ``new``."""

    start: int
    end: int
    new: str


def whole(text: str) -> Span:
    """Return the value that ``text`` holds, perhaps after a byte order mark."""
    return _value(text, 1 if text.startswith("\ufeff") else 0)


def items(text: str, array: Span) -> Iterator[Span]:
    """Yield the items of a list."""
    at = _skip(text, array.start + 1)
    while text[at] != "]":
        item = _value(text, at)
        yield item
        at = _next(text, item.end)


def members(text: str, object_: Span) -> dict[str, Span]:
    """Return the members of an object by key; of two with one key the last counts, as for ``json.loads``."""
    found: dict[str, Span] = {}
    at = _skip(text, object_.start + 1)
    while text[at] != "}":
        key = _value(text, at)
        member = _value(text, _skip(text, key.end) + 1)
        found[key.value] = Span(member.value, member.start, member.end, at)
        at = _next(text, member.end)
    return found


def edited(text: str, edits: Iterable[Edit]) -> str:
    """Return ``text`` with ``edits``, which do not overlap, made."""
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
    """Return where the next item begins, or the bracket that ends them all."""
    at = _skip(text, at)
    return _skip(text, at + 1) if text[at] == "," else at
