"""Reads the thinking: its beginning, its end, and each ``<tool_call>`` in it that may be its end."""

from __future__ import annotations

import re

from strata_pack.parsing.events import Reason
from strata_pack.parsing.fences import MarkdownTracker
from strata_pack.parsing.machine import Machine, ParserState
from strata_pack.parsing.tags import held_from, one_of

_NEWLINES = re.compile(r"[\r\n]*")


class ThinkingStates(Machine):
    """The states from the first character to the first one of the answer."""

    def _start(self, text: str, pos: int) -> int:
        end = self._hold_space(text, pos)
        if end == len(text):
            return end
        if text.startswith(self._think_open, end):
            self._held.clear()
            self._thinking = True
            self._state = ParserState.AFTER_THINK
            return end + len(self._think_open)
        if text[end:] in self._beginnings[self._think_open]:
            return self._wait(text, end)
        self._start_text()
        return end

    def _start_text(self) -> None:
        if not self._thinking:
            self._tracker = MarkdownTracker(spans=True)
        self._begin_text()
        self._plain(self._take_held())

    def _after_think_tag(self, text: str, pos: int) -> int:
        """Drop the line end after a ``<think>`` that the model wrote itself."""
        self._state = ParserState.REASONING
        if text.startswith("\r\n", pos):
            return pos + 2
        if text[pos:] == "\r":
            self._state = ParserState.AFTER_THINK
            return self._wait(text, pos)
        return pos + (text[pos] == "\n")

    def _in_reasoning(self, text: str, pos: int) -> int:
        tags = self._tags_of_reasoning()
        found = one_of(tags).search(text, pos)
        if found is None:
            end = min(held_from(text, pos, self._beginnings[tag]) for tag in tags)
            self._reason(text[pos:end])
            return self._wait(text, end)
        at = found.start()
        self._reason(text[pos:at])
        if found[0] == self._call_open:
            return self._candidate(text, at)
        quoted = self._is_quoted(text, at)
        if quoted is None:
            return self._wait(text, at)
        if quoted:
            self._reason(self._think_close)
        else:
            self._end_thinking()
        return at + len(self._think_close)

    def _tags_of_reasoning(self) -> tuple[str, ...]:
        return (self._think_close, self._call_open) if self._calls else (self._think_close,)

    def _candidate(self, text: str, at: int) -> int:
        """Decide whether a ``<tool_call>`` in the thinking may be its end."""
        end = at + len(self._call_open)
        if self._may_be_the_end(1):
            openers = self._tags.lines_of_openers.match(text, at)
            if openers is not None:
                self.counters.rejected_candidates["no_function"] += openers[0].count(self._call_open)
                self._reason(openers[0])
                return openers.end()
            self._held.write(self._call_open)
            self._state = ParserState.OPENER
            return end
        self._reason(self._call_open)
        more = self._tags.adjacent_openers.match(text, end)
        if more is None or self._may_be_the_end(more[0].count(self._call_open)):
            return end
        self._reason(more[0])
        return more.end()

    def _may_be_the_end(self, candidates: int) -> bool:
        """Return whether a call may end the thinking here; if not, count the ``candidates`` that stand here."""
        reason, here = self._position()
        if here and self._may_end and self._policy != "off":
            return True
        if reason is not None:
            self.counters.rejected_candidates[reason] += candidates
        return False

    def _position(self) -> tuple[Reason | None, bool]:
        """Return the objection to a call here (None: no objection), and whether the policy lets it end the thinking."""
        beginning = self._tracker.beginning()
        reason: Reason | None = None
        if self._tracker.fenced():
            reason = "fenced"
        elif self._last.endswith("`") or (beginning or "").lstrip(" \t").startswith(">"):
            reason = "quoted"
        elif beginning:
            reason = "indented" if not beginning.strip(" \t\r") else "mid_line"
        elif beginning is None:
            reason = "mid_line"
        return reason, reason is None or self._policy == "any"

    def _end_thinking(self) -> None:
        self._thinking = False
        self._stranded.finish()
        self._tracker = MarkdownTracker(spans=True)
        self._last = ""
        self._after_think_close(second=True)

    def _after_think_close(self, *, second: bool) -> None:
        self._think_close_due = False
        self._second_close = second
        self._state = ParserState.AFTER_THINKING

    def _after_thinking(self, text: str, pos: int) -> int:
        if not self._held.size:
            newlines = _NEWLINES.match(text, pos)
            if newlines and newlines.end() > pos:
                self._content.dropped_newline()
                self._tracker.feed("\n")
                self._last = "\n"
                pos = newlines.end()
        end = self._hold_space(text, pos)
        if end == len(text):
            return end
        if self._second_close:
            if text.startswith(self._think_close, end):
                self._held.clear()
                self._after_think_close(second=False)
                return end + len(self._think_close)
            if text[end:] in self._beginnings[self._think_close]:
                return self._wait(text, end)
        self._state = ParserState.CONTENT
        self._answer(self._take_held())
        return end

    def _stay_reasoning(self, text: str) -> None:
        """Read ``text``, which begins with a ``<tool_call>`` without a call, as if no call could end the thinking."""
        self._state = ParserState.REASONING
        self._reason(self._call_open)
        self._read_again(text[len(self._call_open) :], may_end=False)
