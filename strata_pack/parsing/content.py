"""Collects the text of the answer: drops the newlines next to calls, and looks for the end of a code span."""

from __future__ import annotations

import re

from strata_pack.parsing.held import HeldText

NEWLINES = "\r\n"

_STOP = re.compile(r"`+|\n")


class ContentText:
    """Passes content on, except for the newlines directly before and after a call.

    If there is text on both sides of a call, one ``\\n`` joins the two texts if there was at least one newline.
    """

    __slots__ = ("_further", "_has_text", "_joint", "_newlines", "flows", "holds")

    def __init__(self) -> None:
        self._has_text = False
        self._newlines = ""
        self._further: HeldText | None = None
        """Newlines after ``_newlines`` in later pieces: rare, so the list is created when needed."""
        self._joint: bool | None = None
        """After a call and before any text: whether there was a newline. Elsewhere None."""
        self.holds = False
        """Whether newlines are held until it is known what follows them."""
        self.flows = False
        """Whether text that does not end in a newline is passed on unchanged."""

    def text(self, text: str) -> str:
        """Take the next piece of the answer, at least one character; return the part that is passed on now."""
        if self.flows and text[-1] not in NEWLINES:
            return text
        joint = ""
        if self._joint is not None:
            bare = text.lstrip(NEWLINES)
            self._joint = self._joint or len(bare) < len(text)
            if not bare:
                return ""
            if self._joint and self._has_text:
                joint = "\n"
            self._joint, text = None, bare
        body = text.rstrip(NEWLINES)
        if body:
            self._has_text = True
            if self.holds:
                joint = self._take_newlines()
        if len(body) < len(text):
            self._hold(text[len(body) :])
        else:
            self.flows = True
        return joint + body

    def _hold(self, newlines: str) -> None:
        self.flows = False
        if not self.holds:
            self._newlines = newlines
            self.holds = True
        else:
            if self._further is None:
                self._further = HeldText()
            self._further.write(newlines)

    def _take_newlines(self) -> str:
        text = self._newlines
        if self._further is not None:
            text += self._further.text()
            self._further = None
        self._newlines = ""
        self.holds = False
        return text

    def call(self) -> None:
        """Record a call at this position."""
        self._joint = bool(self._joint) or self.holds
        self._take_newlines()
        self.flows = False

    def dropped_newline(self) -> None:
        """Record that the caller dropped a newline after a call."""
        if self._joint is not None:
            self._joint = True

    def finish(self) -> str:
        """End the answer; return the newlines held at its end."""
        return self._take_newlines()


class SpanLookout:
    """Looks for a run of exactly ``length`` backticks before the end of the line."""

    __slots__ = ("_length", "_run")

    def __init__(self, length: int) -> None:
        self._length = length
        self._run = 0

    def feed(self, text: str, pos: int) -> tuple[int, bool | None]:
        """Read on from ``text[pos]``; return the position reached and whether the run was found (None: not yet)."""
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
