"""Treats a tag as text if the caller knows that ordinary tokens spell it.

Such a tag passes through the machine with ``SPELLED`` in place of its ``<``, so that no state recognises it; the events
get the ``<`` back.
"""

from __future__ import annotations

import re
from typing import Any

from strata_pack.parsing.dialect import Dialect
from strata_pack.parsing.events import Event, ToolCall
from strata_pack.parsing.tags import held_from, prefixes

SPELLED = "\ufdd0"
"""A noncharacter, which Unicode reserves for internal use: exchanged text does not contain it."""

_ESCAPED = re.compile(r"(?<!\\)((?:\\\\)*)\\ufdd0")
"""The same in JSON text that is written in ASCII."""


class Spelling:
    """Marks the tags that ordinary tokens spell.

    ``rest`` is the beginning of an incomplete tag; ``used`` is whether the reply contained such a tag.
    """

    __slots__ = ("_beginnings", "_tags", "rest", "used")

    def __init__(self, dialect: Dialect) -> None:
        self._tags = dialect.tags
        self._beginnings = prefixes(dialect.tags)
        self.rest = ""
        self.used = False

    def read(self, text: str, special: bool | None) -> str:
        """Return the part of the text so far that goes to the machine now."""
        text, self.rest = self.rest + text, ""
        if special is not False:
            return text
        for tag in self._tags:
            if tag in text:
                self.used = True
                text = text.replace(tag, SPELLED + tag[1:])
        end = held_from(text, 0, self._beginnings)
        text, self.rest = text[:end], text[end:]
        return text

    def flush(self) -> str:
        """Return the incomplete tag at the end of the text."""
        rest, self.rest = self.rest, ""
        return rest


def spelled_out(event: Event) -> Event:
    """Return ``event`` with the ``<`` of its tags restored."""
    text, call = event.text, event.call
    if event.kind == "tool_args":
        text = _ESCAPED.sub(r"\1<", text)
    if call is not None and call.arguments:
        call = ToolCall(call.name, _spelled_out(call.arguments), call.id)
    return Event(event.kind, text.replace(SPELLED, "<"), call)


def _spelled_out(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace(SPELLED, "<")
    if isinstance(value, list):
        return [_spelled_out(item) for item in value]
    if isinstance(value, dict):
        return {_spelled_out(key): _spelled_out(item) for key, item in value.items()}
    return value
