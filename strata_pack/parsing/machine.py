"""Defines the base of the parser's state machine: the states, the memory, and how text is held and released.

The states are spread over layers, each a subclass of the one below: ``Machine``, the thinking, the calls, the answer,
and ``LayeredParser``. A state is a method that reads from a position in the text and returns the position reached. Text
that it cannot decide yet stays in ``_rest`` (an incomplete tag, short) or is held (white space after ``<tool_call>``, a
whole implicit call), so no character is examined again at every delta. ``docs/parsing.md`` has a diagram of the
machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any, ClassVar, Literal, get_args

from strata_pack.parsing.content import ContentText, SpanLookout
from strata_pack.parsing.dialect import QWEN, Dialect, read_dialect
from strata_pack.parsing.events import Counters, Event, EventKind
from strata_pack.parsing.fences import MarkdownTracker
from strata_pack.parsing.held import HeldText
from strata_pack.parsing.json_call import JsonCall
from strata_pack.parsing.schema import read_tools
from strata_pack.parsing.spelling import Spelling
from strata_pack.parsing.stranded import StrandedCalls
from strata_pack.parsing.tags import WHITESPACE, tags_of
from strata_pack.parsing.tool_call import XmlCall

ImplicitEnd = Literal["off", "any", "guarded", "strict"]
CallFormat = Literal["auto", "xml", "json"]

_IMPLICIT_ENDS = get_args(ImplicitEnd)
_CALL_FORMATS = get_args(CallFormat)

BLOCK = 4096
"""Characters read at once: text that is read again is prepended to the rest of one block, never of a whole reply."""


class ParserState(Enum):
    """What the machine has read so far."""

    __hash__ = object.__hash__  # dict keys: Enum's own __hash__ is a slow Python function

    START = auto()
    """Only white space so far."""
    AFTER_THINK = auto()
    """A ``<think>`` that the model wrote itself."""
    REASONING = auto()
    OPENER = auto()
    """``<tool_call>`` and white space, held: a call must follow."""
    CALL = auto()
    """Inside a call, which an ``XmlCall`` or ``JsonCall`` reads."""
    AFTER_CALL = auto()
    """After a delivered call and white space."""
    AFTER_THINKING = auto()
    """After the end of the thinking and white space."""
    CONTENT = auto()
    SPAN = auto()
    """``<tool_call>`` after a backtick on the same line, held until it is known whether a code span closes on this
    line."""
    AFTER_SPAN = auto()
    """A complete call after such a backtick, held until the same is known for its last line."""
    STRICT = auto()
    """Policy "strict": a complete call in the thinking, held: only calls may follow."""
    TO_THE_END = auto()
    """Policy "strict": after the end of that thinking; the finish reason decides."""


class Machine:
    """The machine's memory and its main loop, independent of what the states do."""

    _read_in: ClassVar[dict[ParserState, Callable[[Any, str, int], int]]]
    """The method of each state."""

    def __init__(
        self,
        thinking: bool = True,
        tools: Iterable[Any] | None = None,
        stream_tools: bool = False,
        implicit_end: ImplicitEnd = "guarded",
        call_format: CallFormat = "auto",
        dialect: Dialect | str = QWEN,
    ) -> None:
        if implicit_end not in _IMPLICIT_ENDS:
            raise ValueError(f"implicit_end must be one of {_IMPLICIT_ENDS}, not {implicit_end!r}")
        if call_format not in _CALL_FORMATS:
            raise ValueError(f"call_format must be one of {_CALL_FORMATS}, not {call_format!r}")
        self.dialect = read_dialect(dialect)
        self._tags = tags_of(self.dialect)
        self._beginnings = self._tags.beginnings
        self._think_open, self._think_close = self.dialect.think_open, self.dialect.think_close
        self._call_open, self._call_close = self.dialect.call_open, self.dialect.call_close
        self._function_open = self.dialect.function_open
        self._spelling = Spelling(self.dialect)
        self.counters = Counters()
        self._tools_known = tools is not None
        listed = list(tools or ())
        self._functions = read_tools(listed)
        self._calls = tools is None or bool(listed)
        self._stream_tools = stream_tools
        self._policy: ImplicitEnd = implicit_end
        self._format: CallFormat = call_format

        self._thinking = thinking
        self._state = ParserState.START
        self._kind: EventKind | None = None
        """The kind of text without tags here, if it is known."""
        self._flowing: EventKind | None = None
        """The same, if further text on the current line changes nothing."""
        self._out: list[Event] = []
        self._rest = ""
        self._held = HeldText()
        self._again: list[tuple[str, bool]] = []
        """Text to read before the rest, and whether calls in it may end the thinking."""
        self._may_end = True
        self._finished = False
        self._last = ""
        """The text passed on last; its last character is needed."""
        self._tracker = MarkdownTracker(spans=False)
        self._stranded = StrandedCalls(self.dialect)
        self._content = ContentText()

        self._reader: XmlCall | JsonCall | None = None
        self._taking: XmlCall | JsonCall | None = None
        """The reader, if text without tags goes to it directly."""
        self._opener = ""
        self._wrapped_prose = False
        """In the answer: there was a ``<tool_call>`` as text, so a ``<function=`` after it is not bare."""
        self._think_close_due = False
        """A call ended the thinking, and the ``</think>`` may still follow."""
        self._second_close = False
        """A second ``</think>`` would be absorbed."""
        self._ticks = 0
        self._lookout = SpanLookout(0)
        self._strict = HeldText()
        self._granted = False

    def _consume(self, texts: list[tuple[str, bool]]) -> None:
        """Read ``texts`` in order, and before the rest any text that a state returns to be read again."""
        work = _blocks(texts)
        while work:
            text, self._may_end = work.pop()
            if self._rest:
                text, self._rest = self._rest + text, ""
            pos = 0
            while pos < len(text) and not self._again:
                pos = self._read_in[self._state](self, text, pos)
            if self._again:
                if pos < len(text):
                    work.append((text[pos:], self._may_end))
                work.extend(_blocks(self._again))
                self._again = []

    def _wait(self, text: str, pos: int) -> int:
        """Keep an incomplete tag for the next delta."""
        self._rest = text[pos:]
        return len(text)

    def _hold_space(self, text: str, pos: int, space_of: re.Pattern[str] = WHITESPACE) -> int:
        space = space_of.match(text, pos)
        end = space.end() if space else pos
        if end > pos:
            self._held.write(text[pos:end])
        return end

    def _take_held(self) -> str:
        text = self._held.text()
        self._held.clear()
        return text

    def _reason(self, text: str) -> None:
        if text:
            self._out.append(Event("reasoning", text))
            self._last = text
            self._tracker.feed(text)
            if self._calls:
                self._stranded.feed(text)

    def _answer(self, text: str) -> None:
        if text:
            passed = self._content.text(text)
            if passed:
                self._out.append(Event("content", passed))
            self._last = text
            self._tracker.feed(text)

    def _plain(self, text: str) -> None:
        (self._reason if self._thinking else self._answer)(text)

    def _begin_text(self) -> None:
        self._state = ParserState.REASONING if self._thinking else ParserState.CONTENT

    def _read_again(self, text: str, *, may_end: bool = True) -> None:
        if text:
            self._again.append((text, may_end))

    def _is_quoted(self, text: str, at: int) -> bool | None:
        """Return whether the ``</think>`` at ``text[at]`` has a backtick directly on both sides; None: not yet
        known."""
        if not self._last.endswith("`"):
            return False
        following = text[at + len(self._think_close) :][:1]
        return following == "`" if following else None


def _blocks(texts: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Return ``texts`` in blocks, as a stack: the first block is last."""
    if len(texts) == 1 and len(texts[0][0]) <= BLOCK:
        return texts
    return [
        (text[start : start + BLOCK], may_end)
        for text, may_end in reversed(texts)
        for start in reversed(range(0, len(text), BLOCK))
    ]
