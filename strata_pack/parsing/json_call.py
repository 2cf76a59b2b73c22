"""Reads calls in JSON form incrementally: ``{"name": ..., "arguments": {...}}`` up to ``</tool_call>``.

The end is found by counting braces outside strings, so a tag inside a string is text. Only the complete text shows
whether it is a call, so it is never sent in pieces. Several objects in one wrapper are several calls, if each object is
a valid call.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Any

from strata_pack.parsing.dialect import Dialect
from strata_pack.parsing.events import Event, ToolCall, new_id
from strata_pack.parsing.held import HeldText
from strata_pack.parsing.places import ReaderStatus
from strata_pack.parsing.spelling import Spelling
from strata_pack.parsing.tags import WHITESPACE, prefixes
from strata_pack.parsing.values import read_json

_MARK = re.compile(r'["{}<]')
_STRING_MARK = re.compile(r'["\\]')


class _Place(Enum):
    OBJECT = auto()
    STRING = auto()
    ESCAPE = auto()
    AFTER_OBJECT = auto()
    """After the last brace: the closing tag must follow."""


def read_call(text: str) -> tuple[str, dict[str, Any]] | None:
    """Return name and arguments of the call in ``text``, None if it is not a call.

    The key ``parameters`` is accepted for ``arguments``, and arguments in the form of a JSON string are parsed again.
    """
    try:
        value = read_json(text, constants_as_text=True)
        if not isinstance(value, dict):
            return None
        arguments = value.get("arguments", value.get("parameters"))
        if isinstance(arguments, str):
            arguments = read_json(arguments, constants_as_text=True)
    except (ValueError, RecursionError):
        return None
    name = value.get("name")
    arguments = {} if arguments is None else arguments
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return name, arguments


class JsonCall:
    """Reads the calls of one wrapper from ``{`` on; the same interface as ``XmlCall``."""

    function_follows = False
    announced = False
    coercion_failures = 0
    dropped_text = 0
    holds = True

    def __init__(self, dialect: Dialect, spelling: Spelling) -> None:
        self.status = ReaderStatus.READING
        self.events: list[Event] = []
        self.again: list[str] = []
        self.calls: list[ToolCall] = []
        self.suspects: list[str] = []
        self.unfinished = False
        self.half_closer = ""
        self._spelling = spelling
        self._closer = dialect.call_close
        self._after_tags = (dialect.call_close, dialect.call_open, dialect.think_close)
        self._beginnings = prefixes(self._after_tags)
        self._raw = HeldText()
        self._objects: list[tuple[int, int]] = []
        """Start and end of each complete object in the text."""
        self._object_at = 0
        self._place = _Place.OBJECT
        self._depth = 0

    def text(self) -> str:
        """Return all text read so far, unchanged (without the text in ``again``)."""
        whole = self._raw.text()
        return whole[: len(whole) - sum(map(len, self.again))]

    def take_value(self, _text: str) -> list[Event] | None:
        """Return None: every character must be examined, because a quote matters."""
        return None

    def feed(self, text: str, pos: int) -> int:
        """Read ``text`` from ``pos`` on; return the position reached: before an incomplete tag, or after the call."""
        while pos < len(text) and self.status is ReaderStatus.READING:
            end = self._after_object(text, pos) if self._place is _Place.AFTER_OBJECT else self._step(text, pos)
            if end == pos and self._place is _Place.AFTER_OBJECT:
                break
            pos = end
        return pos

    def finish(self, rest: str, *, cut: bool) -> None:
        """End the text after ``rest``, an incomplete tag."""
        if self._place is _Place.AFTER_OBJECT and not cut and self._closer.startswith(rest):
            self._complete(closed=False)
            self.half_closer = rest
        else:
            self.unfinished = True
            self.status = ReaderStatus.FAILED
        if self.status is ReaderStatus.FAILED:
            self._raw.write(rest)

    def _step(self, text: str, pos: int) -> int:
        """Read up to the next character that matters in an object or string."""
        if self._place is _Place.ESCAPE:
            self._place = _Place.STRING
            self._raw.write(text[pos])
            return pos + 1
        found = (_MARK if self._place is _Place.OBJECT else _STRING_MARK).search(text, pos)
        if found is None:
            self._raw.write(text[pos:])
            return len(text)
        end, mark = found.end(), found[0]
        if mark == "<":  # not valid in JSON outside a string
            self._raw.write(text[pos : end - 1])
            self.status = ReaderStatus.FAILED
            return end - 1
        self._raw.write(text[pos:end])
        if mark == '"':
            self._place = _Place.STRING if self._place is _Place.OBJECT else _Place.OBJECT
        elif mark == "\\":
            self._place = _Place.ESCAPE
        else:
            self._depth += 1 if mark == "{" else -1
            if self._depth == 0:
                self._place = _Place.AFTER_OBJECT
                self._objects.append((self._object_at, self._raw.size))
        return end

    def _after_object(self, text: str, pos: int) -> int:
        """Read what follows an object: the next one, ``</tool_call>``, or an end that replaces it."""
        space = WHITESPACE.match(text, pos)
        end = space.end() if space else pos
        self._raw.write(text[pos:end])
        if end == len(text):
            return end
        if text[end] == "{":
            self._object_at = self._raw.size
            self._place = _Place.OBJECT
            return end
        for tag in self._after_tags:
            if text.startswith(tag, end):
                self._complete(closed=tag == self._closer)
                if self.status is ReaderStatus.DONE and tag == self._closer:
                    self._raw.write(tag)
                    return end + len(tag)
                return end
        if text[end:] not in self._beginnings:
            self.status = ReaderStatus.FAILED
        return end

    def _complete(self, *, closed: bool) -> None:
        text = self._raw.text()
        found = [read_call(self._spelling.spelled_out(text[start:end])) for start, end in self._objects]
        calls = [ToolCall(each[0], each[1], new_id()) for each in found if each is not None]
        if len(calls) < len(found):
            self.status = ReaderStatus.FAILED
            return
        self.calls = calls
        end = self._objects[-1][1]
        if not closed and len(text) > end:
            self.again = [text[end:]]
        self.status = ReaderStatus.DONE
