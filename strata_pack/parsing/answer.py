"""The states of the answer: where a tag is text, because it stands in code, and where it begins a call."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from strata_pack.parsing.calls import CallStates
from strata_pack.parsing.content import SpanLookout
from strata_pack.parsing.machine import BEGINNINGS, State
from strata_pack.parsing.tags import CALL_CLOSE, CALL_OPEN, FUNCTION_OPEN, THINK_CLOSE, Token, held_from, read_tag


class AnswerStates(CallStates):
    """The text of the answer."""

    def _content_tags(self) -> tuple[str, ...]:
        tags = []
        if self._calls:
            tags.append(CALL_OPEN)
            if self._functions:
                tags.append(FUNCTION_OPEN)
        if self._think_close_due:
            tags.append(THINK_CLOSE)
        if self._wrapped_prose:
            tags.append(CALL_CLOSE)
        return tuple(tags)

    def _in_content(self, text: str, pos: int) -> int:
        tags = self._content_tags()
        found = _pattern(tags).search(text, pos) if tags else None
        if found is None:
            end = len(text)
            for each in tags:
                held = held_from(text, pos, BEGINNINGS[each])
                if held < end and (each != FUNCTION_OPEN or self._at_line_start(text, pos, held)):
                    end = held
            self._answer(text[pos:end])
            return self._wait(text, end)
        at, tag = found.start(), found[0]
        self._answer(text[pos:at])
        return _IN_CONTENT[tag](self, text, at)

    def _at_line_start(self, text: str, pos: int, at: int) -> bool:
        return (text[at - 1] if at > pos else self._last[-1:]) in ("", "\n")

    def _text_tag(self, tag: str, at: int) -> int:
        self._answer(tag)
        return at + len(tag)

    def _call_in_content(self, _text: str, at: int) -> int:
        if self._tracker.fenced():
            return self._text_tag(CALL_OPEN, at)
        self._held.write(CALL_OPEN)
        self._ticks = self._tracker.open_ticks()
        if self._ticks:
            self._lookout = SpanLookout(self._ticks)
            self._state = State.SPAN
        else:
            self._state = State.OPENER
        return at + len(CALL_OPEN)

    def _function_in_content(self, text: str, at: int) -> int:
        if self._wrapped_prose or not self._at_line_start(text, at, at) or self._tracker.fenced():
            return self._text_tag(FUNCTION_OPEN, at)
        tag = read_tag(text, at, ())
        if tag.token is Token.OPEN:
            return self._wait(text, at)
        if tag.name not in self._functions:
            return self._text_tag(FUNCTION_OPEN, at)
        self._opener = ""
        self._open_call(bare=True)
        return at

    def _think_close_in_content(self, text: str, at: int) -> int:
        if self._tracker.fenced():
            return self._text_tag(THINK_CLOSE, at)
        quoted = self._is_quoted(text, at)
        if quoted is None:
            return self._wait(text, at)
        if quoted:
            return self._text_tag(THINK_CLOSE, at)
        self._behind_think_close(second=True)
        return at + len(THINK_CLOSE)

    def _call_close_in_content(self, _text: str, at: int) -> int:
        self._wrapped_prose = False
        return self._text_tag(CALL_CLOSE, at)

    def _in_span(self, text: str, pos: int) -> int:
        """Behind a backtick that may open a code span: if it closes on this line, the tag is quoted."""
        end, found = self._lookout.feed(text, pos)
        self._held.write(text[pos:end])
        if found is not None:
            self._leave_span(quoted=found)
        return end

    def _leave_span(self, *, quoted: bool) -> None:
        text = self._take_held()
        if quoted:
            self._state = State.CONTENT
            self._answer(text)
        else:
            self._tracker.drop_span()
            self._held.write(CALL_OPEN)
            self._state = State.OPENER
            self._read_again(text[len(CALL_OPEN) :])

    def _behind_span(self, text: str, pos: int) -> int:
        """Behind a whole call with such a backtick before it: if the span closes on this line, it was quoted."""
        end, found = self._lookout.feed(text, pos)
        self._held.write(text[pos:end])
        if found is not None:
            self._leave_call_in_span(quoted=found)
        return end

    def _leave_call_in_span(self, *, quoted: bool) -> None:
        text, reader = self._take_held(), self._reader
        self._ticks = 0
        if reader is None:
            return
        if quoted:
            self._reader = None
            self._state = State.CONTENT
            self._answer(self._opener + reader.text() + text)
        else:
            reader.again = []
            self._deliver(reader)
            self._read_again(text)


@cache
def _pattern(tags: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, tags)))


_IN_CONTENT: dict[str, Callable[[AnswerStates, str, int], int]] = {
    CALL_OPEN: AnswerStates._call_in_content,
    FUNCTION_OPEN: AnswerStates._function_in_content,
    THINK_CLOSE: AnswerStates._think_close_in_content,
    CALL_CLOSE: AnswerStates._call_close_in_content,
}
