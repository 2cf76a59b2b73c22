"""Reads the answer: decides whether a tag begins a call, or is in code and therefore text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strata_pack.parsing.calls import CallStates
from strata_pack.parsing.content import SpanLookout
from strata_pack.parsing.machine import ParserState
from strata_pack.parsing.tags import held_from, one_of
from strata_pack.parsing.tokens import Token


class AnswerStates(CallStates):
    """The states of the answer."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Functions, not methods: those would refer back to the parser, which then only the garbage collector frees.
        self._in_content_at: dict[str, Callable[[Any, str, int], int]] = {
            self._call_open: AnswerStates._call_in_content,
            self._function_open: AnswerStates._function_in_content,
            self._think_close: AnswerStates._think_close_in_content,
            self._call_close: AnswerStates._call_close_in_content,
        }

    def _content_tags(self) -> tuple[str, ...]:
        tags = []
        if self._calls:
            tags.append(self._call_open)
            if self._functions and self._function_open:
                tags.append(self._function_open)
        if self._think_close_due:
            tags.append(self._think_close)
        if self._wrapped_prose:
            tags.append(self._call_close)
        return tuple(tags)

    def _in_content(self, text: str, pos: int) -> int:
        tags = self._content_tags()
        found = one_of(tags).search(text, pos) if tags else None
        if found is None:
            end = len(text)
            for each in tags:
                held = held_from(text, pos, self._beginnings[each])
                if held < end and (each != self._function_open or self._at_line_start(text, pos, held)):
                    end = held
            self._answer(text[pos:end])
            return self._wait(text, end)
        at, tag = found.start(), found[0]
        self._answer(text[pos:at])
        return self._in_content_at[tag](self, text, at)

    def _at_line_start(self, text: str, pos: int, at: int) -> bool:
        return (text[at - 1] if at > pos else self._last[-1:]) in ("", "\n")

    def _text_tag(self, tag: str, at: int) -> int:
        self._answer(tag)
        return at + len(tag)

    def _call_in_content(self, text: str, at: int) -> int:
        if self._tracker.fenced():
            return self._text_tag(self._call_open, at)
        openers = self._tags.openers.match(text, at)
        if openers is not None and not self._tracker.open_ticks():
            self._wrapped_prose = self._wrapped_prose or "\n" in openers[0]
            self._answer(openers[0])
            return openers.end()
        self._held.write(self._call_open)
        self._ticks = self._tracker.open_ticks()
        if self._ticks:
            self._lookout = SpanLookout(self._ticks)
            self._state = ParserState.SPAN
        else:
            self._state = ParserState.OPENER
        return at + len(self._call_open)

    def _function_in_content(self, text: str, at: int) -> int:
        if self._wrapped_prose or not self._at_line_start(text, at, at) or self._tracker.fenced():
            return self._text_tag(self._function_open, at)
        tag = self._tags.read(text, at, ())
        if tag.token is Token.OPEN:
            return self._wait(text, at)
        if tag.name not in self._functions:
            return self._text_tag(self._function_open, at)
        self._opener = ""
        self._open_call(bare=True)
        return at

    def _think_close_in_content(self, text: str, at: int) -> int:
        if self._tracker.fenced():
            return self._text_tag(self._think_close, at)
        quoted = self._is_quoted(text, at)
        if quoted is None:
            return self._wait(text, at)
        if quoted:
            return self._text_tag(self._think_close, at)
        self._after_think_close(second=True)
        return at + len(self._think_close)

    def _call_close_in_content(self, _text: str, at: int) -> int:
        self._wrapped_prose = False
        return self._text_tag(self._call_close, at)

    def _in_span(self, text: str, pos: int) -> int:
        """After a backtick that may open a code span: if the span closes on this line, the tag is quoted."""
        end, found = self._lookout.feed(text, pos)
        self._held.write(text[pos:end])
        if found is not None:
            self._leave_span(quoted=found)
        return end

    def _leave_span(self, *, quoted: bool) -> None:
        text = self._take_held()
        if quoted:
            self._state = ParserState.CONTENT
            self._answer(text)
        else:
            self._tracker.drop_span()
            self._held.write(self._call_open)
            self._state = ParserState.OPENER
            self._read_again(text[len(self._call_open) :])

    def _after_span(self, text: str, pos: int) -> int:
        """After a complete call that such a backtick precedes: if the span closes on this line, the call was quoted."""
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
            self._state = ParserState.CONTENT
            self._answer(self._opener + reader.text() + text)
        else:
            reader.again = []
            self._deliver(reader)
            self._read_again(text)
