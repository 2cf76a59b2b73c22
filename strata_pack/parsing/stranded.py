"""Counts the complete calls that remain text in the thinking, without holding text back."""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import cache

from strata_pack.parsing.dialect import Dialect
from strata_pack.parsing.tags import held_from, one_of, prefixes


class _Seen(Enum):
    NOTHING = auto()
    CALL = auto()
    """``<tool_call>`` and white space."""
    FUNCTION = auto()
    JSON = auto()
    FUNCTION_END = auto()


_NOTHING = _Seen.NOTHING  # asked for at every delta: in Python 3.11 each look-up in an Enum is a call into Python


@cache
def _call_tags(dialect: Dialect) -> tuple[re.Pattern[str], frozenset[str]]:
    """Return a pattern of the tags of calls, and their beginnings."""
    tags = (dialect.call_open, dialect.call_close, dialect.function_open, dialect.function_close)
    return one_of(tuple(tag for tag in dict.fromkeys(tags) if tag)), prefixes([tag for tag in tags if tag])


class StrandedCalls:
    """Reads the text that stays reasoning; ``count`` is the number of complete calls in it.

    A complete call is ``<tool_call>``, directly followed by ``<function=`` or ``{``, and later ``</function>`` or ``}``
    followed by ``</tool_call>``. This is an approximation: the count shows an operator that calls are lost.
    """

    __slots__ = ("_beginnings", "_dialect", "_last", "_rest", "_seen", "_tag", "count")

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._tag, self._beginnings = _call_tags(dialect)
        self.count = 0
        self._seen = _NOTHING
        self._rest = ""
        self._last = ""

    @property
    def idle(self) -> bool:
        """Whether text without ``<`` has no effect."""
        return self._seen is _NOTHING and not self._rest

    def feed(self, text: str) -> None:
        """Read the next piece; nearly free while no ``<tool_call>`` is open."""
        if "<" not in text and self.idle:
            return
        text = self._rest + text
        pos, end = 0, held_from(text, 0, self._beginnings)
        self._rest = text[end:]
        for found in self._tag.finditer(text, 0, end):
            if found.start() > pos:
                self._read_text(text[pos : found.start()])
            self._read_tag(found[0])
            pos = found.end()
        if pos < end:
            self._read_text(text[pos:end])

    def finish(self) -> None:
        """End the thinking: a call of which only ``</tool_call>`` is missing counts."""
        self.count += self._seen is _Seen.FUNCTION_END
        self._seen, self._rest = _Seen.NOTHING, ""

    def _read_text(self, text: str) -> None:
        bare = text.strip(" \t\r\n")
        if not bare:
            return
        if self._seen is _Seen.CALL:
            name_follows = not self._dialect.function_open
            self._seen = _Seen.JSON if bare[0] == "{" else _Seen.FUNCTION_END if name_follows else _Seen.NOTHING
        self._last = bare[-1]

    def _read_tag(self, tag: str) -> None:
        seen = self._seen
        if tag == self._dialect.call_open:
            self.count += seen is _Seen.FUNCTION_END
            self._seen = _Seen.CALL
        elif tag == self._dialect.call_close:
            self.count += seen is _Seen.FUNCTION_END or (seen is _Seen.JSON and self._last == "}")
            self._seen = _Seen.NOTHING
        elif tag == self._dialect.function_open:
            self._seen = _Seen.FUNCTION if seen in (_Seen.CALL, _Seen.FUNCTION, _Seen.FUNCTION_END) else _Seen.NOTHING
        elif seen is _Seen.FUNCTION:
            self._seen = _Seen.FUNCTION_END
