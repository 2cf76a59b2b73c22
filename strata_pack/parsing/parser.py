"""Combines the layers of the state machine into the class that implements ``OutputParser``.

The states are in the layers below (see ``machine``); this module has the fast path, which nearly every delta takes, and
the handling of the end of the text.
"""

from __future__ import annotations

from itertools import groupby

from strata_pack.parsing.answer import AnswerStates
from strata_pack.parsing.dialect import QWEN, Dialect, read_dialect
from strata_pack.parsing.events import Event, EventKind, new_event
from strata_pack.parsing.fences import MarkdownTracker
from strata_pack.parsing.machine import ParserState

CUT_REASONS = frozenset({"length", "max_tokens", "abort", "cancelled", "timeout", "error"})
"""Finish reasons of a truncated reply, in which nothing without its end is completed."""

_KINDS: dict[ParserState, EventKind] = {ParserState.REASONING: "reasoning", ParserState.CONTENT: "content"}
"""The states in which all text without tags is of one kind."""


def thinking_open(prompt: str, dialect: Dialect | str = QWEN) -> bool:
    """Return whether ``prompt`` ends inside the thinking: its generation prompt has a ``<think>`` that is not closed.

    Only the generation prompt matters (the text after the last ``<|im_start|>assistant`` or, in a family without such a
    mark, the very end of the prompt); tags in earlier messages do not.
    """
    letters = read_dialect(dialect)
    mark = letters.generation_mark
    at = prompt.rfind(mark) if mark else -1
    if at < 0:
        return prompt.rstrip().endswith(letters.think_open)
    tail = prompt[at:]
    return tail.rfind(letters.think_open) > tail.rfind(letters.think_close)


class LayeredParser(AnswerStates):
    """The implementation of ``OutputParser``, which documents the methods."""

    # Properties.

    @property
    def pending(self) -> bool:
        """Whether text is held back undecided; a reasoning budget must not cut here."""
        if self._rest or self._held.size or self._strict.size or self._content.holds or self._spelling.rest:
            return True
        if self._state is ParserState.CALL:
            return self._reader is not None and self._reader.holds
        return self._state in (
            ParserState.OPENER,
            ParserState.SPAN,
            ParserState.AFTER_SPAN,
            ParserState.STRICT,
            ParserState.TO_THE_END,
        )

    @property
    def in_thinking(self) -> bool:
        """Whether the parser is in the thinking (also while a call in it is undecided)."""
        return self._thinking

    @property
    def in_implicit_call(self) -> bool:
        """Whether a call, or what may become one, is being read inside the thinking."""
        return self._thinking and self._state in (
            ParserState.OPENER,
            ParserState.CALL,
            ParserState.STRICT,
            ParserState.TO_THE_END,
        )

    @property
    def flowing(self) -> EventKind | None:
        """The kind of text that ``feed`` would return as it is: any without "<", "`", CR and LF."""
        return None if self._spelling.rest else self._flowing

    # Reading.

    def flowed(self, text: str) -> None:
        """Know of text that was passed on without ``feed``, because it is ``flowing``."""
        self._last = text

    def feed(self, delta: str, special: bool | None = None) -> list[Event]:
        """Read the next piece of the reply; return the events that are now certain."""
        if special is not None:
            delta = self._spelling.read(delta, special)
            if self._spelling.rest or self._spelling.used:
                self._take_no_short_way()
        if "<" not in delta:
            flowing = self._flowing
            if (
                flowing is not None
                and "\n" not in delta
                and (flowing == "reasoning" or ("`" not in delta and "\r" not in delta))
                and delta
            ):
                self._last = delta
                return [new_event(Event, (flowing, delta, None))]
            kind = self._kind
            if kind is not None:
                return self._feed_content(delta) if kind == "content" else self._feed_reasoning(delta)
        if special is None and (self._spelling.rest or not delta.isascii()):
            delta = self._spelling.read(delta, None)
        reader = self._taking
        if reader is not None and "<" not in delta:
            events = reader.take_value(delta)
            if events is not None:
                return events
        if self._finished:
            raise RuntimeError("the reply was finished; make a new parser for the next one")
        self._consume([(delta, True)])
        self._settle()
        return self._take_events()

    def _feed_content(self, delta: str) -> list[Event]:
        """Read text of the answer that cannot hold a tag."""
        if not delta:
            return []
        content, tracker = self._content, self._tracker
        passed = content.text(delta)
        tracker.feed(delta)
        self._last = delta
        self._flowing = "content" if tracker.quiet and content.flows else None
        return [new_event(Event, ("content", passed, None))] if passed else []

    def _feed_reasoning(self, delta: str) -> list[Event]:
        """Read text of the thinking that cannot hold a tag."""
        if not delta:
            return []
        tracker, stranded = self._tracker, self._stranded
        tracker.feed(delta)
        idle = stranded.idle
        if not idle:
            stranded.feed(delta)
        self._last = delta
        self._flowing = "reasoning" if idle and tracker.quiet else None
        return [new_event(Event, ("reasoning", delta, None))]

    def finish(self, finish_reason: str | None = "stop") -> list[Event]:
        """End the reply; return the last events. The reason "length" (and similar ones) means a truncated text."""
        if self._finished:
            return []
        self._decide(cut=finish_reason in CUT_REASONS)
        self._finished = True
        self._kind = self._flowing = self._reader = self._taking = None
        newlines = self._content.finish()
        if newlines:
            self._out.append(Event("content", newlines))
        self._stranded.finish()
        self.counters.stranded_calls = self._stranded.count
        self.counters.ended_inside_thinking = self._thinking
        return self._take_events()

    def end_thinking(self) -> list[Event]:
        """End the thinking here; return the events that this makes certain. Does nothing if the thinking is over."""
        if self._finished or not self._thinking:
            return []
        self._decide(cut=True)
        if self._thinking:
            self._end_thinking()
        self._settle()
        return self._take_events()

    def reopen_thinking(self) -> list[Event]:
        """Begin the thinking again here; return the events that this makes certain. Does nothing inside the
        thinking."""
        if self._finished or self._thinking:
            return []
        self._decide(cut=True)
        newlines = self._content.finish()
        if newlines:
            self._out.append(Event("content", newlines))
        self._thinking = True
        self._think_close_due = self._wrapped_prose = self._granted = False
        self._tracker = MarkdownTracker(spans=False)
        self._last = ""
        self._state = ParserState.REASONING
        self._settle()
        return self._take_events()

    def _decide(self, *, cut: bool) -> None:
        """Decide all held text as if the text ended here."""
        rest = self._spelling.flush()
        if rest:
            self._consume([(rest, True)])
        while self._at_end(cut=cut):
            again, self._again = self._again, []
            self._consume(again)

    def _take_events(self) -> list[Event]:
        out = self._out
        if self._reader is not None and self._reader.events:
            out.extend(self._reader.events)
            self._reader.events.clear()
        if len(out) > 1:
            out = _joined(out)
        if self._spelling.used:
            out = [self._spelling.event(event) for event in out]
        self._out = []
        return out

    def _settle(self) -> None:
        """Determine whether the next delta can take the fast path of ``feed``."""
        if self._spelling.rest or self._spelling.used:
            self._take_no_short_way()
            return
        kind = self._kind = None if self._rest else _KINDS.get(self._state)
        flows = kind is not None and self._tracker.quiet and self._flows(kind)
        self._flowing = kind if flows else None
        # Only while the call is being read: a finished reader is kept for a while, but takes no more text.
        self._taking = self._reader if self._state is ParserState.CALL and not self._rest else None

    def _take_no_short_way(self) -> None:
        self._kind = self._flowing = self._taking = None

    def _flows(self, kind: EventKind) -> bool:
        return self._content.flows if kind == "content" else self._stranded.idle

    # The end.

    def _at_end(self, *, cut: bool) -> bool:
        """Let the current state decide at the end of the text. Return whether more is to be decided."""
        rest, self._rest = self._rest, ""
        state = self._state
        if state is ParserState.START:
            self._start_text()
            self._plain(rest)
        elif state in (ParserState.REASONING, ParserState.AFTER_THINK):
            self._state = ParserState.REASONING
            if rest == self._think_close:
                self._end_thinking()
            else:
                self._reason(rest)
        elif state is ParserState.OPENER:
            self._reject_opener()
            self._read_again(rest)
        elif state is ParserState.CALL and self._reader is not None:
            self._reader.finish(rest, cut=cut)
            self._leave_call(self._reader)
        elif state is ParserState.SPAN:
            self._leave_span(quoted=self._lookout.finish())
        elif state is ParserState.AFTER_SPAN:
            self._leave_call_in_span(quoted=self._lookout.finish())
        elif state in (ParserState.STRICT, ParserState.TO_THE_END):
            self._strict.write(self._take_held() + rest)
            if cut or rest:
                self._refuse()
            else:
                self._grant()
        elif rest == self._think_close and state is ParserState.CONTENT and self._think_close_due:
            self._after_think_close(second=False)
        else:
            self._state = ParserState.CONTENT
            self._answer(self._take_held() + rest)
        return bool(self._again) or self._state not in (ParserState.REASONING, ParserState.CONTENT)

    _read_in = {  # noqa: RUF012
        ParserState.START: AnswerStates._start,
        ParserState.AFTER_THINK: AnswerStates._after_think_tag,
        ParserState.REASONING: AnswerStates._in_reasoning,
        ParserState.AFTER_THINKING: AnswerStates._after_thinking,
        ParserState.CONTENT: AnswerStates._in_content,
        ParserState.SPAN: AnswerStates._in_span,
        ParserState.AFTER_SPAN: AnswerStates._after_span,
        ParserState.OPENER: AnswerStates._in_opener,
        ParserState.CALL: AnswerStates._in_call,
        ParserState.AFTER_CALL: AnswerStates._after_call,
        ParserState.STRICT: AnswerStates._in_strict,
        ParserState.TO_THE_END: AnswerStates._to_the_end,
    }


def _joined(events: list[Event]) -> list[Event]:
    """Return the events with adjacent pieces of the same text joined."""
    joined: list[Event] = []
    for (kind, _), group in groupby(events, key=lambda event: (event.kind, id(event.call))):
        pieces = list(group)
        if kind == "tool_start" or kind == "tool_call" or len(pieces) == 1:
            joined.extend(pieces)
        else:
            joined.append(Event(kind, "".join(piece.text for piece in pieces), pieces[0].call))
    return joined
