"""Generated text as it comes, to reasoning, content and tool calls: the state machine around the calls.

The machine has one method per state; each reads from a place in the text and returns where it stopped. What it cannot
decide yet stays in ``_rest`` (an open tag, short) or is held (white space behind ``<tool_call>``, a whole implicit
call), so that no character is looked at again with every delta. ``docs/parsing.md`` draws the machine.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from functools import cache
from itertools import groupby
from typing import Any, Literal, get_args

from strata_pack.parsing.content import NEWLINES, ContentText, SpanLookout
from strata_pack.parsing.events import Counters, Event, EventKind, Reason, ToolCall, new_event
from strata_pack.parsing.fences import MarkdownTracker
from strata_pack.parsing.held import HeldText
from strata_pack.parsing.json_call import JsonCall
from strata_pack.parsing.schema import read_tools
from strata_pack.parsing.stranded import StrandedCalls
from strata_pack.parsing.tags import (
    CALL_CLOSE,
    CALL_OPEN,
    FUNCTION_OPEN,
    THINK_CLOSE,
    THINK_OPEN,
    WHITESPACE,
    Token,
    held_from,
    prefixes,
    read_tag,
)
from strata_pack.parsing.tool_call import Status, XmlCall

ImplicitEnd = Literal["off", "any", "guarded", "strict"]
CallFormat = Literal["auto", "xml", "json"]

CUT_REASONS = frozenset({"length", "max_tokens", "abort", "cancelled", "timeout", "error"})
"""Finish reasons after which the text is no whole reply: nothing that misses its end is completed."""

_BLOCK = 4096
"""Characters read at once: text that is read again is put before the rest of a block, never of a whole reply."""

_GENERATION_PROMPT = re.compile(r"<\|im_start\|>assistant\b")
_NEWLINES = re.compile(r"[\r\n]*")
_REASONING = re.compile(f"{THINK_CLOSE}|{CALL_OPEN}")
_REASONING_WITHOUT_CALLS = re.compile(THINK_CLOSE)
_BEGINNINGS = {tag: prefixes([tag]) for tag in (THINK_OPEN, THINK_CLOSE, CALL_OPEN, CALL_CLOSE, FUNCTION_OPEN)}


def thinking_open(prompt: str) -> bool:
    """Return whether ``prompt`` leaves the thinking open: its generation prompt has a ``<think>`` that is not closed.

    Only the generation prompt is looked at (what follows the last ``<|im_start|>assistant``, or where a family has
    no such mark, the very end of the prompt): tags in the messages before it say nothing.
    """
    marks = list(_GENERATION_PROMPT.finditer(prompt))
    if not marks:
        return prompt.rstrip().endswith(THINK_OPEN)
    tail = prompt[marks[-1].end() :]
    return tail.rfind(THINK_OPEN) > tail.rfind(THINK_CLOSE)


class OutputParser:
    """Parses one reply. ``feed`` it deltas, cut anywhere, then call ``finish`` once; both return events.

    - ``thinking``: whether the prompt left the thinking open.
    - ``tools``: OpenAI tool objects or bare function objects. None: not known, calls are parsed without a schema.
      Empty: the request has none (or ``tool_choice`` "none"), nothing is parsed as a call.
    - ``stream_tools``: send ``tool_start`` and ``tool_args`` while a call is written.
    - ``implicit_end``: which calls in the thinking end it. ``"off"``: none; ``"any"``: every whole call;
      ``"guarded"``: one at the start of a line, outside fences, with ``<function=`` behind it; ``"strict"``: that, of
      a declared name, with nothing but calls behind it up to the end of the thinking, in a reply that was not cut.
    - ``call_format``: ``"xml"``, ``"json"``, or ``"auto"``, which decides per call.

    The result is the same for every way to cut the text, nothing emitted is taken back, and no text makes ``feed``
    raise. ``ValueError`` for an unknown policy or format, ``RuntimeError`` for ``feed`` after ``finish``.
    """

    def __init__(
        self,
        thinking: bool = True,
        tools: Iterable[Any] | None = None,
        stream_tools: bool = False,
        implicit_end: ImplicitEnd = "guarded",
        call_format: CallFormat = "auto",
    ) -> None:
        if implicit_end not in get_args(ImplicitEnd):
            raise ValueError(f"implicit_end must be one of {get_args(ImplicitEnd)}, not {implicit_end!r}")
        if call_format not in get_args(CallFormat):
            raise ValueError(f"call_format must be one of {get_args(CallFormat)}, not {call_format!r}")
        self.counters = Counters()
        self._tools_known = tools is not None
        listed = list(tools or ())
        self._functions = read_tools(listed)
        self._calls = tools is None or bool(listed)
        self._stream_tools = stream_tools
        self._policy: ImplicitEnd = implicit_end
        self._format: CallFormat = call_format

        self._thinking = thinking
        self._state: Callable[[str, int], int] = self._start
        self._kind: EventKind | None = None
        """The kind that text without tags has here, if that is known."""
        self._flowing: EventKind | None = None
        """The same, where text on the present line changes nothing."""
        self._out: list[Event] = []
        self._rest = ""
        self._held = HeldText()
        self._again: list[tuple[str, bool]] = []
        """Text to be read before the rest, and whether calls in it may end the thinking."""
        self._may_end = True
        self._finished = False
        self._last = ""
        """The text passed on last, for its last character."""
        self._tracker = MarkdownTracker(spans=False)
        self._stranded = StrandedCalls()
        self._content = ContentText(lambda text: self._out.append(Event("content", text)))

        self._reader: XmlCall | JsonCall | None = None
        self._opener = ""
        self._wrapped_prose = False
        """In the answer: a ``<tool_call>`` stands open as text, so that a ``<function=`` after it is not bare."""
        self._think_close_due = False
        """A call ended the thinking, and its ``</think>`` may still come."""
        self._second_close = False
        """A second ``</think>`` would be absorbed."""
        self._ticks = 0
        self._lookout = SpanLookout(0)
        self._strict = HeldText()
        self._granted = False

    @classmethod
    def for_prompt(cls, prompt: str, **options: Any) -> OutputParser:
        """Return a parser for the reply to ``prompt``: whether it begins in the thinking is read off its end."""
        return cls(thinking=thinking_open(prompt), **options)

    # What others may ask.

    @property
    def pending(self) -> bool:
        """Whether any text is held back undecided; a reasoning budget must not cut there."""
        if self._rest or self._held.size or self._strict.size or self._content.holds:
            return True
        if self._state == self._in_call:
            return self._reader is not None and self._reader.holds
        return self._state in (self._in_opener, self._in_span, self._behind_span, self._in_strict, self._to_the_end)

    @property
    def in_thinking(self) -> bool:
        """Whether the thinking goes on (also while a call in it is being decided)."""
        return self._thinking

    @property
    def in_implicit_call(self) -> bool:
        """Whether a call, or what may become one, is being read inside the thinking."""
        return self._thinking and self._state in (self._in_opener, self._in_call, self._in_strict, self._to_the_end)

    # Reading.

    def feed(self, delta: str) -> list[Event]:
        """Read the next piece of the reply; return what is certain now. Costs what is new, not what is held."""
        flowing = self._flowing
        if (
            flowing is not None
            and "<" not in delta
            and "\n" not in delta
            and (flowing == "reasoning" or ("`" not in delta and "\r" not in delta))
            and delta
        ):
            self._last = delta
            return [new_event(Event, (flowing, delta, None))]
        if "<" not in delta and not self._rest:
            if self._kind is not None:
                return self._feed_text(self._kind, delta)
            if self._reader is not None:
                events = self._reader.take_value(delta)
                if events is not None:
                    return events
        if self._finished:
            raise RuntimeError("the reply was finished; make a new parser for the next one")
        self._consume([(delta, True)])
        return self._take_events()

    def _feed_text(self, kind: EventKind, delta: str) -> list[Event]:
        """Read text that cannot hold a tag, where its kind is known."""
        if not delta:
            return []
        if kind == "content":
            if not self._content.flows or delta[-1] in NEWLINES:
                self._answer(delta)
                self._flowing = kind if self._tracker.quiet and self._content.flows else None
                return self._take_events()
            self._tracker.feed(delta)
            self._flowing = kind if self._tracker.quiet else None
        else:
            self._tracker.feed(delta)
            self._stranded.feed(delta)
            self._flowing = kind if self._tracker.quiet and self._stranded.idle else None
        self._last = delta
        return [new_event(Event, (kind, delta, None))]

    def finish(self, finish_reason: str | None = "stop") -> list[Event]:
        """End the reply; return the last events. The reason "length" (and its kin) means that the text was cut."""
        if self._finished:
            return []
        while self._at_end(cut=finish_reason in CUT_REASONS):
            again, self._again = self._again, []
            self._consume(again)
        self._finished = True
        self._kind = self._flowing = self._reader = None
        self._content.finish()
        self._stranded.finish()
        self.counters.stranded_calls = self._stranded.count
        self.counters.ended_inside_thinking = self._thinking
        return self._take_events()

    def _take_events(self) -> list[Event]:
        out = self._out
        if self._reader is not None and self._reader.events:
            out.extend(self._reader.events)
            self._reader.events.clear()
        if len(out) > 1:
            out = _joined(out)
        self._out = []
        return out

    def _consume(self, texts: list[tuple[str, bool]]) -> None:
        """Read ``texts`` in order, and what states ask to be read again before the rest."""
        work = _blocks(texts)
        while work:
            text, self._may_end = work.pop()
            if self._rest:
                text, self._rest = self._rest + text, ""
            pos = 0
            while pos < len(text) and not self._again:
                pos = self._state(text, pos)
            if self._again:
                if pos < len(text):
                    work.append((text[pos:], self._may_end))
                work.extend(_blocks(self._again))
                self._again = []
        self._settle()

    def _settle(self) -> None:
        """Find out whether the next delta can go the short way through ``feed``."""
        self._kind = self._flowing = None
        if self._rest:
            return
        if self._state == self._in_reasoning:
            self._kind = "reasoning"
            self._flowing = "reasoning" if self._tracker.quiet and self._stranded.idle else None
        elif self._state == self._in_content:
            self._kind = "content"
            self._flowing = "content" if self._tracker.quiet and self._content.flows else None

    def _wait(self, text: str, pos: int) -> int:
        """Keep an open tag for the next delta."""
        self._rest = text[pos:]
        return len(text)

    def _hold_space(self, text: str, pos: int) -> int:
        space = WHITESPACE.match(text, pos)
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
            self._content.text(text)
            self._last = text
            self._tracker.feed(text)

    def _plain(self, text: str) -> None:
        (self._reason if self._thinking else self._answer)(text)

    def _begin_text(self) -> None:
        self._state = self._in_reasoning if self._thinking else self._in_content

    # The thinking.

    def _start(self, text: str, pos: int) -> int:
        end = self._hold_space(text, pos)
        if end == len(text):
            return end
        if text.startswith(THINK_OPEN, end):
            self._held.clear()
            self._thinking = True
            self._state = self._behind_think
            return end + len(THINK_OPEN)
        if text[end:] in _BEGINNINGS[THINK_OPEN]:
            return self._wait(text, end)
        self._start_text()
        return end

    def _start_text(self) -> None:
        if not self._thinking:
            self._tracker = MarkdownTracker(spans=True)
        self._begin_text()
        self._plain(self._take_held())

    def _behind_think(self, text: str, pos: int) -> int:
        """The line end after a ``<think>`` that the model wrote itself is dropped with it."""
        self._state = self._in_reasoning
        if text.startswith("\r\n", pos):
            return pos + 2
        if text[pos:] == "\r":
            self._state = self._behind_think
            return self._wait(text, pos)
        return pos + (text[pos] == "\n")

    def _in_reasoning(self, text: str, pos: int) -> int:
        found = (_REASONING if self._calls else _REASONING_WITHOUT_CALLS).search(text, pos)
        if found is None:
            end = min(held_from(text, pos, _BEGINNINGS[tag]) for tag in self._tags_of_reasoning())
            self._reason(text[pos:end])
            return self._wait(text, end)
        at = found.start()
        self._reason(text[pos:at])
        if found[0] == CALL_OPEN:
            return self._candidate(at + len(CALL_OPEN))
        quoted = self._is_quoted(text, at)
        if quoted is None:
            return self._wait(text, at)
        if quoted:
            self._reason(THINK_CLOSE)
        else:
            self._end_thinking()
        return at + len(THINK_CLOSE)

    def _tags_of_reasoning(self) -> tuple[str, ...]:
        return (THINK_CLOSE, CALL_OPEN) if self._calls else (THINK_CLOSE,)

    def _is_quoted(self, text: str, at: int) -> bool | None:
        """Whether the ``</think>`` at ``text[at]`` has a backtick directly on both sides; None: not yet known."""
        if not self._last.endswith("`"):
            return False
        behind = text[at + len(THINK_CLOSE) :][:1]
        return behind == "`" if behind else None

    def _candidate(self, end: int) -> int:
        """A ``<tool_call>`` in the thinking: perhaps its end."""
        reason, here = self._position()
        if here and self._may_end and self._policy != "off":
            self._held.write(CALL_OPEN)
            self._state = self._in_opener
        else:
            if reason is not None:
                self.counters.rejected_candidates[reason] += 1
            self._reason(CALL_OPEN)
        return end

    def _position(self) -> tuple[Reason | None, bool]:
        """Return what speaks against a call here (None: nothing), and whether the policy lets it end the thinking."""
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
        self._behind_think_close(second=True)

    def _behind_think_close(self, *, second: bool) -> None:
        self._think_close_due = False
        self._second_close = second
        self._state = self._after_thinking

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
            if text.startswith(THINK_CLOSE, end):
                self._held.clear()
                self._behind_think_close(second=False)
                return end + len(THINK_CLOSE)
            if text[end:] in _BEGINNINGS[THINK_CLOSE]:
                return self._wait(text, end)
        self._state = self._in_content
        self._answer(self._take_held())
        return end

    # The answer.

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
                held = held_from(text, pos, _BEGINNINGS[each])
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
            self._state = self._in_span
        else:
            self._state = self._in_opener
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
            self._state = self._in_content
            self._answer(text)
        else:
            self._held.write(CALL_OPEN)
            self._state = self._in_opener
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
            self._state = self._in_content
            self._answer(self._opener + reader.text() + text)
        else:
            reader.again = []
            self._deliver(reader)
            self._read_again(text)

    # Calls.

    def _read_again(self, text: str, *, may_end: bool = True) -> None:
        if text:
            self._again.append((text, may_end))

    def _in_opener(self, text: str, pos: int) -> int:
        """Behind ``<tool_call>``: a call must follow, after white space only."""
        end = self._hold_space(text, pos)
        if end == len(text):
            return end
        if text[end] == "<" and self._format != "json":
            if text.startswith(FUNCTION_OPEN, end):
                self._opener = self._take_held()
                self._open_call(bare=False)
                return end
            if text[end:] in _BEGINNINGS[FUNCTION_OPEN]:
                return self._wait(text, end)
        elif text[end] == "{" and self._reads_json():
            self._opener = self._take_held()
            self._reader = JsonCall(_new_id())
            self._state = self._in_call
            return end
        self._reject_opener()
        return end

    def _reads_json(self) -> bool:
        implicit = self._thinking and self._policy != "any"
        return self._format == "json" or (self._format == "auto" and not implicit)

    def _reject_opener(self) -> None:
        text = self._take_held()
        if self._strict.size:
            self._strict.write(text)
            self._refuse()
            return
        if self._thinking:
            self.counters.rejected_candidates["no_function"] += 1
        else:
            self._wrapped_prose = "\n" in text
        self._ticks = 0
        self._begin_text()
        self._plain(text)

    def _open_call(self, *, bare: bool) -> None:
        stream = self._stream_tools and not self._thinking and not self._ticks
        self._reader = XmlCall(
            self._functions, _new_id(), bare=bare, stream=stream, in_thinking=self._thinking or self._think_close_due
        )
        self._state = self._in_call

    def _in_call(self, text: str, pos: int) -> int:
        reader = self._reader
        if reader is None:
            return pos
        pos = reader.feed(text, pos)
        if reader.status is Status.READING:
            return self._wait(text, pos)
        self._leave_call(reader)
        return pos

    def _leave_call(self, reader: XmlCall | JsonCall) -> None:
        if reader.status is Status.FAILED:
            self._give_back(reader)
        elif self._thinking and self._policy == "strict" and not self._granted:
            self._hold_strictly(reader)
        elif self._ticks and not reader.function_follows:
            self._state = self._behind_span
            self._lookout = SpanLookout(self._ticks)
            for text in reader.again:
                self._read_again(text)
        else:
            self._deliver(reader)

    def _give_back(self, reader: XmlCall | JsonCall) -> None:
        """It was no call: its text is text, and in the thinking as if nothing had been held."""
        self._reader = None
        self._ticks = 0
        self.counters.unfinished_calls += reader.unfinished
        text = self._opener + reader.text()
        if self._strict.size:
            self._strict.write(text)
            self._refuse()
        elif self._thinking:
            if not reader.unfinished:
                self.counters.rejected_candidates["no_function"] += 1
            self._stay_reasoning(text)
        else:
            self._state = self._in_content
            self._out.extend(reader.events)
            if reader.announced:
                self._content.call()
            else:
                self._answer(text)
        for text in reader.again:
            self._read_again(text)

    def _deliver(self, reader: XmlCall | JsonCall) -> None:
        call = reader.call
        if call is None:
            return
        if self._thinking:
            self._thinking = False
            self._think_close_due = True
            self._stranded.finish()
            self._tracker = MarkdownTracker(spans=True)
            self.counters.implicit_ends += 1
        if self._think_close_due:
            self.counters.implicit_calls += 1
        self.counters.undeclared_calls += self._tools_known and call.name not in self._functions
        self.counters.coercion_failures += reader.coercion_failures
        self._content.call()
        self._last = ">"
        self._tracker.feed("<")
        self._wrapped_prose = False
        if reader.announced:
            self._out.extend(reader.events)
        else:
            self._out.extend(_call_events(call, stream=self._stream_tools))
        self._reader = None
        if reader.function_follows:
            self._opener = ""
            self._open_call(bare=False)
            return
        self._state = self._after_call
        for text in reader.again:
            self._read_again(text)

    def _after_call(self, text: str, pos: int) -> int:
        """A doubled or orphan ``</tool_call>`` is absorbed, and the ``</think>`` of a thinking that a call ended."""
        end = self._hold_space(text, pos)
        if end == len(text):
            return end
        for tag, due in ((CALL_CLOSE, True), (THINK_CLOSE, self._think_close_due)):
            if due and text.startswith(tag, end):
                if any(newline in self._take_held() for newline in NEWLINES):
                    self._content.dropped_newline()
                if tag == THINK_CLOSE:
                    self._behind_think_close(second=True)
                return end + len(tag)
            if due and text[end:] in _BEGINNINGS[tag]:
                return self._wait(text, end)
        self._state = self._in_content
        self._answer(self._take_held())
        return end

    # The policy "strict": everything from the call on is held until the end of the thinking, or of the reply.

    def _hold_strictly(self, reader: XmlCall | JsonCall) -> None:
        self._strict.write(self._opener + reader.text())
        self._reader = None
        call = reader.call
        if call is None or (self._tools_known and call.name not in self._functions):
            self._refuse()
        elif reader.function_follows:
            self._opener = ""
            self._open_call(bare=False)
            return
        else:
            self._state = self._in_strict
        for text in reader.again:
            self._read_again(text)

    def _in_strict(self, text: str, pos: int) -> int:
        """Behind a call that will end the thinking if only calls follow."""
        end = self._hold_space(text, pos)
        if end == len(text):
            return end
        for tag in (CALL_OPEN, CALL_CLOSE, THINK_CLOSE):
            if text.startswith(tag, end):
                self._strict.write(self._take_held())
                if tag == CALL_OPEN:
                    self._held.write(tag)
                    self._state = self._in_opener
                else:
                    self._strict.write(tag)
                    self._state = self._in_strict if tag == CALL_CLOSE else self._to_the_end
                return end + len(tag)
            if text[end:] in _BEGINNINGS[tag]:
                return self._wait(text, end)
        self._refuse()
        return end

    def _to_the_end(self, text: str, pos: int) -> int:
        """Behind the end of that thinking: only the finish reason is still to come."""
        self._strict.write(text[pos:])
        return len(text)

    def _refuse(self) -> None:
        self._stay_reasoning(self._take_strict())

    def _grant(self) -> None:
        """Read it all again, now as a call that ends the thinking."""
        text = self._take_strict()
        self._granted = True
        self._held.write(CALL_OPEN)
        self._state = self._in_opener
        self._read_again(text[len(CALL_OPEN) :])

    def _take_strict(self) -> str:
        text = self._strict.text() + self._take_held()
        self._strict.clear()
        return text

    def _stay_reasoning(self, text: str) -> None:
        """Read ``text``, which begins with a ``<tool_call>`` that is none, as if no call could end the thinking."""
        self._state = self._in_reasoning
        self._reason(CALL_OPEN)
        self._read_again(text[len(CALL_OPEN) :], may_end=False)

    # The end.

    def _at_end(self, *, cut: bool) -> bool:
        """The text is over: let the present state decide. Return whether there is more to decide."""
        rest, self._rest = self._rest, ""
        state = self._state
        if state == self._start:
            self._start_text()
            self._plain(rest)
        elif state in (self._in_reasoning, self._behind_think):
            self._state = self._in_reasoning
            if rest == THINK_CLOSE:
                self._end_thinking()
            else:
                self._reason(rest)
        elif state == self._in_opener:
            self._reject_opener()
            self._read_again(rest)
        elif state == self._in_call and self._reader is not None:
            self._reader.finish(rest, cut=cut)
            self._leave_call(self._reader)
        elif state == self._in_span:
            self._leave_span(quoted=self._lookout.finish())
        elif state == self._behind_span:
            self._leave_call_in_span(quoted=self._lookout.finish())
        elif state in (self._in_strict, self._to_the_end):
            self._strict.write(self._take_held() + rest)
            if cut or rest:
                self._refuse()
            else:
                self._grant()
        elif rest == THINK_CLOSE and state == self._in_content and self._think_close_due:
            self._behind_think_close(second=False)
        else:
            self._state = self._in_content
            self._answer(self._take_held() + rest)
        return bool(self._again) or self._state not in (self._in_reasoning, self._in_content)


def _new_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _call_events(call: ToolCall, *, stream: bool) -> list[Event]:
    """Return the events of a call that is known as a whole."""
    whole = Event("tool_call", "", call)
    if not stream:
        return [whole]
    start = ToolCall(call.name, {}, call.id)
    return [Event("tool_start", "", start), Event("tool_args", call.arguments_json, start), whole]


def _joined(events: list[Event]) -> list[Event]:
    """Return the events with neighbouring pieces of one text made one."""
    joined: list[Event] = []
    for (kind, _), group in groupby(events, key=lambda event: (event.kind, id(event.call))):
        pieces = list(group)
        if kind == "tool_start" or kind == "tool_call" or len(pieces) == 1:
            joined.extend(pieces)
        else:
            joined.append(Event(kind, "".join(piece.text for piece in pieces), pieces[0].call))
    return joined


def _blocks(texts: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Return ``texts`` in blocks, the first one last (as a stack)."""
    return [
        (text[start : start + _BLOCK], may_end)
        for text, may_end in reversed(texts)
        for start in reversed(range(0, len(text), _BLOCK))
    ]


@cache
def _pattern(tags: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, tags)))


_IN_CONTENT: dict[str, Callable[[OutputParser, str, int], int]] = {
    CALL_OPEN: OutputParser._call_in_content,
    FUNCTION_OPEN: OutputParser._function_in_content,
    THINK_CLOSE: OutputParser._think_close_in_content,
    CALL_CLOSE: OutputParser._call_close_in_content,
}
