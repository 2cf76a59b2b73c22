"""Writes the JSON text of a call's arguments incrementally while the call is read."""

from __future__ import annotations

from typing import Any

from strata_pack.parsing.events import Event, ToolCall, json_string_body, json_text, new_event
from strata_pack.parsing.spelling import Spelling


def value_text(raw: str) -> str:
    """Return a value without the one line end after its opening tag and the one before its closing tag."""
    start = 2 if raw.startswith("\r\n") else 1 if raw.startswith("\n") else 0
    end = len(raw) - held_line_end(raw) if raw.endswith("\n") else len(raw)
    return raw[start : max(start, end)]


def held_line_end(text: str) -> int:
    """Return how many characters at the end of ``text`` may be the line end before a closing tag."""
    return 2 if text.endswith("\r\n") else 1 if text.endswith(("\n", "\r")) else 0


class ArgumentStream:
    """Turns arguments into ``tool_start`` and ``tool_args`` events, appended to ``events``."""

    __slots__ = ("_announced", "_call", "_count", "_events", "_fresh", "_held", "_spelling")

    def __init__(self, call: ToolCall, events: list[Event], spelling: Spelling) -> None:
        self._call = call
        self._events = events
        self._spelling = spelling
        self._announced = False
        self._count = 0
        self._fresh = False
        self._held = ""

    @property
    def announced(self) -> bool:
        """Whether ``tool_start`` was emitted for the call."""
        return self._announced

    @property
    def holds(self) -> bool:
        """Whether a line end is held until it is known what follows."""
        return bool(self._held)

    def _say(self, text: str) -> None:
        self._events.append(Event("tool_args", text, self._call))

    def announce(self) -> None:
        """Emit ``tool_start``, once."""
        if not self._announced:
            self._announced = True
            self._events.append(Event("tool_start", "", self._call))

    def _key(self, name: str) -> str:
        self._count += 1
        return f"{'{' if self._count == 1 else ', '}{json_text(name)}: "

    def whole_value(self, name: str, value: Any) -> None:
        """Write an argument whose value is known."""
        self._say(self._key(name) + json_text(value))

    def begin_text(self, name: str) -> None:
        """Begin a string that is streamed."""
        self._say(self._key(name) + '"')
        self._fresh = True
        self._held = ""

    def text(self, piece: str) -> None:
        """Write the next piece of the string, except a line end that may belong to the closing tag."""
        if self._spelling.used:
            piece = self._spelling.spelled_out(piece)
        if not self._held and not self._fresh and not piece.endswith(("\n", "\r")):
            if piece:
                self._events.append(new_event(Event, ("tool_args", json_string_body(piece), self._call)))
            return
        if self._held:
            piece = self._held + piece
            self._held = ""
        if self._fresh:
            if piece == "\r":
                self._held = piece
                return
            self._fresh = not piece
            if piece[:2] == "\r\n":
                piece = piece[2:]
            elif piece[:1] == "\n":
                piece = piece[1:]
        hold = held_line_end(piece)
        if hold:
            self._held = piece[-hold:]
            piece = piece[:-hold]
        if piece:
            self._events.append(Event("tool_args", json_string_body(piece), self._call))

    def end_text(self) -> None:
        """End the string: the line end before its closing tag is not part of it, a lone carriage return is."""
        if self._held == "\r":
            self._say(json_string_body(self._held))
        self._held = ""
        self._say('"')

    def close(self) -> None:
        """End the JSON object."""
        self._say("}" if self._count else "{}")
