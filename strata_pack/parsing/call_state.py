"""Holds the state while one call in XML form is read: its text, its values, and the evidence against it.

The text of a call is kept until it is certain to be a call, in segments: each value begins a new one. When values are
streamed, a value is sent up to the first tag that may be its end; the text after that is held.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from strata_pack.parsing.events import Event, ToolCall
from strata_pack.parsing.held import HeldText
from strata_pack.parsing.places import Doubt, Pending, Place, ReaderStatus
from strata_pack.parsing.schema import TEXT, UNDECLARED, UNTYPED, ArgumentType, FunctionSchema
from strata_pack.parsing.spelling import Spelling
from strata_pack.parsing.streamed import ArgumentStream, value_text
from strata_pack.parsing.tags import Tags
from strata_pack.parsing.tokens import Tag
from strata_pack.parsing.values import only_text, read_value

PROBED = 80
"""Characters at the beginning of a value that are examined to decide whether it is a string."""


class CallState:
    """The memory of ``XmlCall``: takes the text of values, delivers arguments, completes the call or gives it up."""

    def __init__(
        self,
        functions: dict[str, FunctionSchema],
        call_id: str,
        tags: Tags,
        spelling: Spelling,
        *,
        bare: bool,
        stream: bool,
        in_thinking: bool,
    ) -> None:
        self.status = ReaderStatus.READING
        self.events: list[Event] = []
        self.again: list[str] = []
        self.half_closer = ""  # of the reply's last call, which is complete without it
        self.calls: list[ToolCall] = []
        self.function_follows = False
        self.unfinished = False
        self.coercion_failures = 0
        self.dropped_text = 0
        self.suspects: list[str] = []
        self._functions = functions
        self._call_id = call_id
        self._tags = tags
        self._spelling = spelling
        self._bare = bare or not tags.dialect.wrapped
        self._untagged = not tags.dialect.function_open
        self._streams = stream
        self._in_thinking = in_thinking
        self._place = Place.HEADER
        self._stalled = False
        self._name = ""
        self._schema = UNDECLARED
        self._argument = ""
        self._type = UNTYPED
        self._arguments: dict[str, Any] = {}
        self._delivered: dict[str, Any] = {}  # the same with spelled tags written out
        self._order: list[str] = []
        # The text: one segment for the header, and one for each value with the tags after it.
        self._raw = HeldText()
        # Positions in the current segment: where the value and the call (perhaps) end, and where the next call begins.
        self._value_open = False
        self._value_end = 0
        self._swapped_end = -1
        self._closed_at = -1
        self._call_end = 0
        self._opener_at = 0
        self._words_at = 0
        self._remark_end = -1
        self._closer_stood_alone = False
        self._closer_is_due = False
        self._pending: Pending | None = None
        self._depth = 0
        # Evidence against the call: departures from the format, and values that may contain another value's text.
        self._defects = 0
        self._reopened = False
        self._doubtful = False
        # Streaming a string value: ``_ahead`` is text that may be its end.
        self._stream: ArgumentStream | None = None
        self._sending: ArgumentStream | None = None
        self._probing = False
        self._ahead = HeldText()
        self._ahead_at = 0

    @property
    def announced(self) -> bool:
        """Whether ``tool_start`` was emitted for the call."""
        return self._stream is not None

    @property
    def holds(self) -> bool:
        """Whether text of the call is held undecided."""
        sending = self._sending
        return sending is None or self._place is not Place.VALUE or self._ahead.size > 0 or sending.holds

    def text(self) -> str:
        """Return all text read so far, unchanged (without the text in ``again``)."""
        whole = self._raw.text()
        return whole[: len(whole) - sum(map(len, self.again))]

    # Text.

    def _give_up(self) -> None:
        self.unfinished = True
        self.status = ReaderStatus.FAILED

    def _at_line_start(self) -> bool:
        """Return whether a tag may be here: at the start of a line, or, if the value began on the line of its opening
        tag, anywhere."""
        before = self._raw.tail(64).rstrip(" \t")
        return before[-1:] in ("", "\n", "\r") or self._raw.head(1) not in ("\n", "\r")

    def _names(self) -> Collection[str]:
        return self._schema.argument_names or ()

    def _keep(self, text: str) -> None:
        """Hold text that may be markup."""
        if self._sending is not None:
            if not self._ahead.size:
                self._ahead_at = self._raw.size
            self._ahead.write(text)
        self._raw.write(text)

    def _take(self, text: str) -> None:
        """Take text of the value, or text after a doubtful end."""
        self._raw.write(text)
        if self._sending is not None:
            if self._pending is None:
                self._sending.text(text)
            else:
                self._ahead.write(text)
        elif self._probing and self._pending is None:
            self._probe()

    def _probe(self) -> None:
        """Start to stream the value as a string as soon as no other type is possible."""
        verdict = only_text(self._raw.head(PROBED), self._type)
        if verdict:
            self._begin_sending(self._raw.present())
        if verdict is not None or self._raw.size > PROBED:
            self._probing = False

    def _begin_sending(self, text: str) -> None:
        if self._stream is not None:
            self._stream.begin_text(self._spelling.spelled_out(self._argument))
            self._sending = self._stream
            self._sending.text(text)

    def _release(self, end: int) -> None:
        """Send the held text up to ``end``."""
        if self._sending is not None and self._ahead.size:
            self._sending.text(self._ahead.text()[: max(0, end - self._ahead_at)])
            self._ahead.clear()

    # Values.

    def _begin_value(self, tag: Tag) -> None:
        self._raw.cut()
        self._argument = tag.name
        self._value_open = True
        self._swapped_end = self._remark_end = self._closed_at = -1
        self._closer_stood_alone = False
        self._type = self._type_of(tag)
        if self._streams:
            self._announce()
            if self._type.is_text:
                self._begin_sending("")
            else:
                self._probing = self._type.may_be_text

    def _type_of(self, tag: Tag) -> ArgumentType:
        if tag.is_string is None or self._schema.type_of(tag.name).types:
            return self._schema.type_of(tag.name)
        return TEXT if tag.is_string else UNTYPED

    def _end_value(self, segment: str, end: int) -> None:
        """End the value, which is ``segment[:end]``."""
        text = value_text(segment[:end])
        # Without the closing tag it is unknown whether an empty last line or an incomplete tag belongs to the value.
        self._doubtful |= end != self._closed_at and (text.endswith(("\n", "<")) or self._tags.ends_in_half_tag(text))
        self._doubtful |= segment.startswith(">")  # a repeated one of the opening tag, or part of the value
        value, fits = read_value(text, self._type)
        name, spelled_out = self._argument, value
        if self._spelling.used:
            name = self._spelling.spelled_out(name)
            spelled_out, fits = read_value(self._spelling.spelled_out(text), self._type)
        self.coercion_failures += not fits
        self.dropped_text += end == self._remark_end
        old = self._arguments.get(self._argument)
        if old is None or old != value:
            self._order.append(self._argument)
        self._doubtful |= isinstance(old, str) and self._tags.looks_structural(old)
        if isinstance(value, str) and self._tags.holds_line(value):
            self.suspects.append(name)
        self._arguments[self._argument] = value
        self._delivered[name] = spelled_out
        if self._sending is not None:
            self._release(end)
            self._sending.end_text()
            self._sending = None
        elif self._stream is not None:
            self._stream.whole_value(name, spelled_out)
        self._value_open = self._probing = False
        self._pending = None

    def _announce(self) -> ArgumentStream:
        if self._stream is None:
            self._stream = ArgumentStream(ToolCall(self._name, {}, self._call_id), self.events, self._spelling)
            self._stream.announce()
        return self._stream

    # The end.

    def _complete(self, segment: str, value_end: int) -> None:
        """Complete the call; it is delivered if no other reading of its text has as few defects."""
        if self._value_open:
            self._end_value(segment, value_end)
        if not self._is_sound():
            self._give_up()
            return
        call = ToolCall(self._name, self._delivered, self._call_id)
        self.calls.append(call)
        if self._streams:
            self._announce().close()
            self.events.append(Event("tool_call", "", call))
        self.status = ReaderStatus.DONE

    def _is_sound(self) -> bool:
        arguments = self._arguments
        missing = any(name not in arguments for name in self._schema.required)
        if self._doubtful or (missing and self.dropped_text) or _may_be_two(self._order):
            return False
        names = self._schema.argument_names
        if self._reopened and (names is None or any(name not in arguments for name in names)):
            return False
        if not self._defects and not missing:
            return True
        values = [value for value in arguments.values() if isinstance(value, str)]
        return not any(self._tags.looks_structural(value) for value in values)

    def _doubtful_end(self, doubt: Doubt) -> Pending:
        return Pending(doubt, self._value_end, self._call_end)

    def _doubt(self, doubt: Doubt) -> None:
        """End the call at ``_call_end``, provisionally: the following text may refute it."""
        self._pending = self._doubtful_end(doubt)
        self._place = Place.VALUE

    def _accept(self, end: Pending, opener: int) -> None:
        """Confirm the end of the call; the text after it is read again, up to the (possible) beginning of the next
        call."""
        segment = self._raw.cut()
        self.again = [part for part in (segment[end.call_end : opener], segment[opener:]) if part]
        self._defects += end.doubt is Doubt.LOOSE
        if end.doubt is Doubt.BROKEN:
            self._give_up()
        else:
            self._complete(segment, end.value_end)


def _may_be_two(order: list[str]) -> bool:
    """Return whether parameters in this order may belong to two calls whose border is lost: some come before the first
    repeated one and not again after it, so the last ones would not belong to the same call."""
    before: set[str] = set()
    for at, name in enumerate(order):
        if name in before:
            return not before <= set(order[at:])
        before.add(name)
    return False
