"""The text of the answer: which newlines around calls belong to it, and the look-out for the end of a code span."""

from __future__ import annotations

import re
from collections.abc import Callable

from strata_pack.parsing.held import HeldText

NEWLINES = "\r\n"

_STOP = re.compile(r"`+|\n")


class ContentText:
    """Passes content on, all but the newlines directly before and after a call.

    Where text stands on both sides of a call, one ``\\n`` joins the two if at least one newline stood there.
    """

    __slots__ = ("_emit", "_has_text", "_joint", "_newlines", "holds")

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._has_text = False
        self._newlines = HeldText()
        self._joint: bool | None = None
        """Behind a call and before any text: whether a newline stood there. Elsewhere None."""
        self.holds = False
        """Whether newlines wait for what follows them."""

    @property
    def flows(self) -> bool:
        """Whether text without newlines would be passed on as it is."""
        return self._has_text and self._joint is None and not self.holds

    def text(self, text: str) -> None:
        """Take the next piece of the answer."""
        if self._joint is not None:
            bare = text.lstrip(NEWLINES)
            self._joint = self._joint or len(bare) < len(text)
            if not bare:
                return
            if self._joint and self._has_text:
                self._emit("\n")
            self._joint, text = None, bare
        body = text.rstrip(NEWLINES)
        newlines = text[len(body) :]
        if body:
            self._has_text = True
            self._emit(self._take_newlines() + body if self.holds else body)
        if newlines:
            self._newlines.write(newlines)
            self.holds = True

    def _take_newlines(self) -> str:
        text = self._newlines.text()
        self._newlines.clear()
        self.holds = False
        return text

    def call(self) -> None:
        """A call stands here."""
        self._joint = bool(self._joint) or self.holds
        self._take_newlines()

    def dropped_newline(self) -> None:
        """A newline behind a call was dropped elsewhere."""
        if self._joint is not None:
            self._joint = True

    def finish(self) -> None:
        """End the answer."""
        if self.holds:
            self._emit(self._take_newlines())


class SpanLookout:
    """Looks for a run of exactly ``length`` backticks before the end of the line."""

    __slots__ = ("_length", "_run")

    def __init__(self, length: int) -> None:
        self._length = length
        self._run = 0

    def feed(self, text: str, pos: int) -> tuple[int, bool | None]:
        """Read on from ``text[pos]``; return where reading stopped and whether the run was found (None: not yet)."""
        while pos < len(text):
            if self._run and text[pos] != "`":
                if self._run == self._length:
                    return pos, True
                self._run = 0
            stop = _STOP.search(text, pos)
            if stop is None:
                return len(text), None
            if stop[0] == "\n":
                return stop.start(), False
            self._run += stop.end() - stop.start()
            pos = stop.end()
        return pos, None

    def finish(self) -> bool:
        """End the text: return whether the run was found."""
        return self._run == self._length
