"""One call in the XML form, read as it is written: ``<function=NAME>``, its parameters, its end, and all known drift.

The reader is a table: what was read before (a ``Place``) and what stands here (a ``Token``) name the one thing to do.
The well-formed grammar and each tolerated drift are rows of it; what has no row is no call. The hard part is where a
value ends, because a value may hold every tag: ``docs/parsing.md`` draws it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from enum import Enum, auto
from typing import Any, NamedTuple

from strata_pack.parsing.events import Event, ToolCall
from strata_pack.parsing.held import HeldText
from strata_pack.parsing.schema import UNDECLARED, FunctionSchema
from strata_pack.parsing.streamed import ArgumentStream, value_text
from strata_pack.parsing.tags import CALL_CLOSE, WHITESPACE, Tag, Token, held_from, prefixes, read_tag
from strata_pack.parsing.values import read_value


class Status(Enum):
    """Where a reader stands."""

    READING = auto()
    DONE = auto()
    FAILED = auto()
    """It is no call: its text is text."""


class Place(Enum):
    """What a reader has behind it."""

    HEADER = auto()
    """Nothing yet: ``<function=NAME>`` must come."""
    BODY = auto()
    """The function's name."""
    VALUE = auto()
    """A parameter's opening tag: its value runs."""
    VALUE_END = auto()
    """``</parameter>``: what follows decides whether it ended the value."""
    LOOSE_END = auto()
    """``</function>`` without ``</parameter>``: what follows decides whether it ended the value."""
    LOOSE_CALL = auto()
    """The same and ``<tool_call>``."""
    FUNCTION_END = auto()
    """``</function>`` where one is due: what follows decides whether the call is over."""
    PROSE = auto()
    """The same and other text, in a call without a value that the text could belong to."""
    PROSE_CALL = auto()
    """The same and ``<tool_call>``."""
    NEST = auto()
    """``<tool_call>`` inside a value."""
    NEST_BODY = auto()
    """The same and ``<function=NAME>``."""
    NEST_EMPTY_END = auto()
    """The same and ``</function>``: a call without parameters inside a value."""
    NEST_END = auto()
    """``</function>`` of a call with parameters inside a value."""


class Doubt(Enum):
    """Why the end of a call waits for what follows it."""

    LOOSE = auto()
    """``</function></tool_call>`` without ``</parameter>``: the end, unless a ``</parameter>`` ends the value later."""
    PROSE = auto()
    """Text behind ``</function>``: the end if ``</tool_call>`` comes before the value ends again."""
    BROKEN = auto()
    """``</parameter></tool_call>`` without ``</function>``: no call, unless the value goes on."""


class _Pending(NamedTuple):
    """An end in doubt, with its places in the present segment of the call's text."""

    doubt: Doubt
    value_end: int
    call_end: int


_TAG_IN_TEXT = re.compile(r"</?(?:parameter|function|tool_call)|</think>")
_BEGINNINGS = prefixes(
    ["<parameter=", "</parameter>", "<function=", "</function>", "<tool_call>", "</tool_call>", "</think>"]
)


class XmlCall:
    """Reads one call from ``<function=`` on.

    ``bare``: it has no ``<tool_call>``. ``stream``: announce it and send its arguments while they come, as
    ``events``. ``in_thinking``: it stands in the thinking, so that ``</think>`` behind it is no prose.

    Feed it until ``status`` is ``DONE`` (``call`` is whole) or ``FAILED`` (``text()`` comes back). ``again`` is text
    behind the call that must be read once more by whoever reads the text around calls; ``function_follows`` says that
    a second function stands in the same wrapper.
    """

    def __init__(
        self, functions: dict[str, FunctionSchema], call_id: str, *, bare: bool, stream: bool, in_thinking: bool
    ) -> None:
        self.status = Status.READING
        self.events: list[Event] = []
        self.again: list[str] = []
        self.call: ToolCall | None = None
        self.function_follows = False
        self.unfinished = False
        self.coercion_failures = 0
        self._functions = functions
        self._call_id = call_id
        self._bare = bare
        self._streams = stream
        self._in_thinking = in_thinking
        self._place = Place.HEADER
        self._stalled = False
        self._name = ""
        self._schema = UNDECLARED
        self._argument = ""
        self._arguments: dict[str, Any] = {}
        # The text: one segment for the header, one for each value with the tags behind it.
        self._raw = HeldText()
        # Places in the present segment: where the value and the call (perhaps) end, where the next call begins.
        self._value_open = False
        self._value_end = 0
        self._call_end = 0
        self._opener_at = 0
        self._pending: _Pending | None = None
        self._depth = 0
        # Sending a string while it is written: ``_ahead`` is what may turn out to be its end.
        self._stream: ArgumentStream | None = None
        self._sending: ArgumentStream | None = None
        self._ahead = HeldText()
        self._ahead_at = 0

    @property
    def announced(self) -> bool:
        """Whether a client knows of the call."""
        return self._stream is not None

    @property
    def holds(self) -> bool:
        """Whether text of the call waits undecided."""
        sending = self._sending
        return sending is None or self._place is not Place.VALUE or self._ahead.size > 0 or sending.holds

    def text(self) -> str:
        """Return everything read so far, as it was written (without what ``again`` holds)."""
        whole = self._raw.text()
        return whole[: len(whole) - sum(map(len, self.again))]

    # Reading.

    def take_value(self, text: str) -> list[Event] | None:
        """Read ``text``, which holds no ``<``, and return its events, if a value runs: the short way of ``feed``."""
        if self._place is not Place.VALUE or self._pending is not None:
            return None
        self._raw.write(text)
        if self._sending is None:
            return []
        self._sending.text(text)
        events = self.events[:]
        self.events.clear()
        return events

    def feed(self, text: str, pos: int) -> int:
        """Read ``text`` from ``pos`` on; return where reading stopped: before an open tag, or behind the call."""
        self._stalled = False
        while pos < len(text) and self.status is Status.READING and not self._stalled:
            pos = self._search(text, pos) if self._place in (Place.VALUE, Place.PROSE) else self._look(text, pos)
        return pos

    def finish(self, rest: str, *, cut: bool) -> None:
        """End the text after ``rest``, an open tag. ``cut``: the output was cut, so that nothing may be completed."""
        ended = self._place in (Place.FUNCTION_END, Place.LOOSE_END)
        if rest and not (ended and not cut and CALL_CLOSE.startswith(rest)):
            if self._place not in (Place.HEADER, Place.BODY, Place.VALUE, Place.PROSE):
                self._act(Tag(Token.TEXT, 0), rest, 0)
            self._raw.write(rest)
        at_end = _TABLE[self._place].get(Token.END)
        if cut:
            self._give_up()
        elif at_end is not None:
            at_end(self, Tag(Token.END, 0), "", 0)
        elif self._pending is not None:
            self._accept(self._pending, self._raw.size)
        else:
            self._give_up()

    def _give_up(self) -> None:
        self.unfinished = True
        self.status = Status.FAILED

    def _look(self, text: str, pos: int) -> int:
        """Read what must follow directly, after white space only."""
        space = WHITESPACE.match(text, pos)
        end = space.end() if space else pos
        if end > pos:
            self._keep(text[pos:end])
        if end == len(text):
            return end
        tag = read_tag(text, end, self._names()) if text[end] == "<" else Tag(Token.TEXT, end)
        if tag.token is Token.OPEN:
            self._stalled = True
            return end
        return self._act(tag, text, end)

    def _search(self, text: str, pos: int) -> int:
        """Read text up to the next tag that matters inside it."""
        found = _TAG_IN_TEXT.search(text, pos)
        end = held_from(text, pos, _BEGINNINGS) if found is None else found.start()
        if end > pos:
            self._take(text[pos:end])
        if found is None:
            self._stalled = end < len(text)
            return end
        tag = read_tag(text, end, self._names())
        if tag.token is Token.OPEN:
            self._stalled = True
            return end
        return self._act(tag, text, end)

    def _names(self) -> Collection[str]:
        return self._schema.argument_names or ()

    def _act(self, tag: Tag, text: str, pos: int) -> int:
        rows = _TABLE[self._place]
        return (rows.get(tag.token) or rows[Token.TEXT])(self, tag, text, pos)

    def _keep(self, text: str) -> None:
        """Hold text that may be markup."""
        if self._sending is not None:
            if not self._ahead.size:
                self._ahead_at = self._raw.size
            self._ahead.write(text)
        self._raw.write(text)

    def _take(self, text: str) -> None:
        """Take text of the value, or text behind an end in doubt."""
        self._raw.write(text)
        if self._sending is not None:
            if self._pending is None:
                self._sending.text(text)
            else:
                self._ahead.write(text)

    def _release(self, end: int) -> None:
        """Send what was held, up to ``end``."""
        if self._sending is not None and self._ahead.size:
            self._sending.text(self._ahead.text()[: max(0, end - self._ahead_at)])
            self._ahead.clear()

    def _end_value(self, segment: str, end: int) -> None:
        """The value is ``segment[:end]``."""
        text = value_text(segment[:end])
        value, fits = read_value(text, self._schema.type_of(self._argument))
        self.coercion_failures += not fits
        self._arguments[self._argument] = value
        if self._sending is not None:
            self._release(end)
            self._sending.end_text()
            self._sending = None
        elif self._stream is not None:
            self._stream.whole_value(self._argument, value)
        self._value_open = False
        self._pending = None

    def _announce(self) -> ArgumentStream:
        if self._stream is None:
            self._stream = ArgumentStream(ToolCall(self._name, {}, self._call_id), self.events)
            self._stream.announce()
        return self._stream

    def _complete(self, segment: str, value_end: int) -> None:
        """The call is whole."""
        if self._value_open:
            self._end_value(segment, value_end)
        self.call = ToolCall(self._name, self._arguments, self._call_id)
        if self._streams:
            self._announce().close()
            self.events.append(Event("tool_call", "", self.call))
        self.status = Status.DONE

    def _doubtful(self, doubt: Doubt) -> _Pending:
        return _Pending(doubt, self._value_end, self._call_end)

    def _doubt(self, doubt: Doubt) -> None:
        """The call ends at ``_call_end``, unless what follows says otherwise."""
        self._pending = self._doubtful(doubt)
        self._place = Place.VALUE

    def _accept(self, end: _Pending, opener: int) -> None:
        """The call did end there; the text behind it is read again, up to where (perhaps) the next call begins."""
        segment = self._raw.cut()
        self.again = [part for part in (segment[end.call_end : opener], segment[opener:]) if part]
        if end.doubt is Doubt.BROKEN:
            self._give_up()
        else:
            self._complete(segment, end.value_end)

    # What a row of the table can do. Each is given the tag at ``text[pos]`` and returns where reading goes on.

    def _fail(self, _tag: Tag, _text: str, pos: int) -> int:
        self.status = Status.FAILED
        return pos

    def _move(self, place: Place, tag: Tag, text: str, pos: int) -> int:
        self._keep(text[pos : tag.end])
        self._place = place
        return tag.end

    def _read_name(self, tag: Tag, text: str, pos: int) -> int:
        self._name = tag.name
        self._schema = self._functions.get(tag.name, UNDECLARED)
        return self._move(Place.BODY, tag, text, pos)

    def _open_value(self, tag: Tag, text: str, pos: int) -> int:
        self._move(Place.VALUE, tag, text, pos)
        self._raw.cut()
        self._argument = tag.name
        self._value_open = True
        if self._streams:
            stream = self._announce()
            if self._schema.type_of(tag.name).is_text:
                stream.begin_text(tag.name)
                self._sending = stream
        return tag.end

    def _as_text(self, _tag: Tag, text: str, pos: int) -> int:
        self._take(text[pos : pos + 1])
        return pos + 1

    def _back(self, _tag: Tag, _text: str, pos: int) -> int:
        """It did not end the value: what was held is part of it, and the tag here is read once more as such."""
        if self._pending is None:
            self._release(self._raw.size)
        self._place = Place.VALUE
        return pos

    def _value_closer(self, tag: Tag, text: str, pos: int) -> int:
        self._value_end = self._raw.size
        return self._move(Place.VALUE_END, tag, text, pos)

    def _value_closer_again(self, tag: Tag, text: str, pos: int) -> int:
        return self._move(Place.VALUE_END, tag, text, pos)

    def _next_parameter(self, tag: Tag, text: str, pos: int) -> int:
        if self._depth:
            self._move(Place.VALUE, tag, text, pos)
            return self._back(tag, text, tag.end)
        self._end_value(self._raw.cut(), self._value_end)
        return self._open_value(tag, text, pos)

    def _parameter_in_value(self, tag: Tag, text: str, pos: int) -> int:
        """It begins the next parameter if the function can have it; a name that was there already is text."""
        names = self._schema.argument_names
        seen = tag.name == self._argument or tag.name in self._arguments
        if self._depth or self._pending is not None or seen or (names is not None and tag.name not in names):
            return self._as_text(tag, text, pos)
        self._value_end = self._raw.size
        return self._next_parameter(tag, text, pos)

    def _function_closer(self, tag: Tag, text: str, pos: int) -> int:
        if self._depth:
            return self._move(Place.NEST_END, tag, text, pos)
        self._move(Place.FUNCTION_END, tag, text, pos)
        self._call_end = self._raw.size
        if self._bare:
            self._complete(self._raw.cut(), self._value_end)
        return tag.end

    def _function_closer_in_value(self, tag: Tag, text: str, pos: int) -> int:
        if self._depth:
            return self._move(Place.NEST_END, tag, text, pos)
        if self._pending is not None:
            return self._as_text(tag, text, pos)
        self._value_end = self._raw.size
        self._loose_closer(tag, text, pos)
        if self._bare:
            self._doubt(Doubt.LOOSE)
        return tag.end

    def _loose_closer(self, tag: Tag, text: str, pos: int) -> int:
        self._move(Place.LOOSE_END, tag, text, pos)
        self._call_end = self._raw.size
        return tag.end

    def _loose_call_closer(self, tag: Tag, text: str, pos: int) -> int:
        self._loose_closer(tag, text, pos)
        self._doubt(Doubt.LOOSE)
        return tag.end

    def _broken_call_closer(self, tag: Tag, text: str, pos: int) -> int:
        if self._depth or self._pending is not None:
            return self._back(tag, text, pos)
        self._loose_closer(tag, text, pos)
        self._doubt(Doubt.BROKEN)
        return tag.end

    def _call_closer(self, tag: Tag, text: str, pos: int) -> int:
        self._keep(text[pos : tag.end])
        self._complete(self._raw.cut(), self._value_end)
        return tag.end

    def _call_closer_in_value(self, tag: Tag, text: str, pos: int) -> int:
        if self._pending is None or self._pending.doubt is not Doubt.PROSE:
            return self._as_text(tag, text, pos)
        self._value_end = self._pending.value_end
        return self._call_closer(tag, text, pos)

    def _ended(self, _tag: Tag, _text: str, pos: int) -> int:
        self._accept(self._doubtful(Doubt.PROSE), self._raw.size)
        return pos

    def _second_function(self, tag: Tag, text: str, pos: int) -> int:
        self.function_follows = True
        return self._ended(tag, text, pos)

    def _thinking_closer(self, tag: Tag, text: str, pos: int) -> int:
        return self._ended(tag, text, pos) if self._in_thinking else self._prose(tag, text, pos)

    def _prose(self, _tag: Tag, _text: str, pos: int) -> int:
        if self._value_open:
            self._doubt(Doubt.PROSE)
        else:
            self._place = Place.PROSE
        return pos

    def _prose_goes_on(self, _tag: Tag, _text: str, pos: int) -> int:
        self._place = Place.PROSE
        return pos

    def _thinking_closer_in_prose(self, tag: Tag, text: str, pos: int) -> int:
        return self._ended(tag, text, pos) if self._in_thinking else self._as_text(tag, text, pos)

    def _opener(self, place: Place, tag: Tag, text: str, pos: int) -> int:
        self._opener_at = self._raw.size
        return self._move(place, tag, text, pos)

    def _loose_opener(self, tag: Tag, text: str, pos: int) -> int:
        return self._opener(Place.LOOSE_CALL, tag, text, pos)

    def _prose_opener(self, tag: Tag, text: str, pos: int) -> int:
        return self._opener(Place.PROSE_CALL, tag, text, pos)

    def _opener_in_value(self, tag: Tag, text: str, pos: int) -> int:
        return self._opener(Place.NEST, tag, text, pos)

    def _next_call(self, _tag: Tag, _text: str, pos: int) -> int:
        doubt = Doubt.LOOSE if self._place is Place.LOOSE_CALL else Doubt.PROSE
        self._accept(self._doubtful(doubt), self._opener_at)
        return pos

    def _function_in_value(self, tag: Tag, text: str, pos: int) -> int:
        if self._pending is None:
            return self._as_text(tag, text, pos)
        self._accept(self._pending, self._raw.size)
        return pos

    def _nested_function(self, tag: Tag, text: str, pos: int) -> int:
        if self._pending is None:
            return self._move(Place.NEST_BODY, tag, text, pos)
        self._accept(self._pending, self._opener_at)
        return pos

    def _nested_parameter(self, tag: Tag, text: str, pos: int) -> int:
        self._depth += 1
        self._move(Place.VALUE, tag, text, pos)
        return self._back(tag, text, tag.end)

    def _nested_empty_closer(self, tag: Tag, text: str, pos: int) -> int:
        return self._move(Place.NEST_EMPTY_END, tag, text, pos)

    def _nested_call_closer(self, tag: Tag, text: str, pos: int) -> int:
        if self._place is Place.NEST_END:
            self._depth -= 1
        self._keep(text[pos : tag.end])
        return self._back(tag, text, tag.end)


Action = Callable[[XmlCall, Tag, str, int], int]


class Row(NamedTuple):
    """In ``place``, ``token`` does ``action``. ``drift`` names the departure from the format that the row tolerates."""

    place: Place
    token: Token
    action: Action
    drift: str = ""


DRIFT: dict[str, str] = {
    "function-name-unclosed": "`>` missing after the function's name before a line end",
    "parameter-name-attribute": '`<parameter name="q">`',
    "parameter-value-inline": "`<parameter=path=a.py</parameter>` for a declared `path`",
    "parameter-closer-missing": "`</parameter>` missing before the next `<parameter=` or `</function>`",
    "doubled-closer": "a closing tag written twice",
    "wrong-closing-tag": "`</function_invocation>` and the like for `</function>`",
    "call-closer-missing": "`</tool_call>` missing at a natural stop, before the next call or before `</think>`",
    "two-functions": "two functions in one wrapper: two calls",
    "prose-before-call-closer": "text between `</function>` and `</tool_call>`: dropped",
}
"""The departures from the format that still make a call. One more, quotes or spaces around a name, is no matter of
order and lives in ``tags.clean_name``."""

_P, _T, _C = Place, Token, XmlCall
# fmt: off
ROWS: tuple[Row, ...] = (
    Row(_P.HEADER, _T.FUNCTION, _C._read_name),
    Row(_P.HEADER, _T.FUNCTION_UNCLOSED, _C._read_name, "function-name-unclosed"),
    Row(_P.HEADER, _T.TEXT, _C._fail),

    Row(_P.BODY, _T.PARAMETER, _C._open_value),
    Row(_P.BODY, _T.PARAMETER_ATTRIBUTE, _C._open_value, "parameter-name-attribute"),
    Row(_P.BODY, _T.PARAMETER_INLINE, _C._open_value, "parameter-value-inline"),
    Row(_P.BODY, _T.FUNCTION_END, _C._function_closer),
    Row(_P.BODY, _T.FUNCTION_END_WRONG, _C._function_closer, "wrong-closing-tag"),
    Row(_P.BODY, _T.TEXT, _C._fail),

    Row(_P.VALUE, _T.PARAMETER_END, _C._value_closer),
    Row(_P.VALUE, _T.PARAMETER, _C._parameter_in_value, "parameter-closer-missing"),
    Row(_P.VALUE, _T.PARAMETER_ATTRIBUTE, _C._parameter_in_value, "parameter-closer-missing"),
    Row(_P.VALUE, _T.PARAMETER_INLINE, _C._parameter_in_value, "parameter-closer-missing"),
    Row(_P.VALUE, _T.FUNCTION_END, _C._function_closer_in_value, "parameter-closer-missing"),
    Row(_P.VALUE, _T.CALL, _C._opener_in_value),
    Row(_P.VALUE, _T.CALL_END, _C._call_closer_in_value, "prose-before-call-closer"),
    Row(_P.VALUE, _T.FUNCTION, _C._function_in_value),
    Row(_P.VALUE, _T.FUNCTION_UNCLOSED, _C._function_in_value),
    Row(_P.VALUE, _T.TEXT, _C._as_text),

    Row(_P.VALUE_END, _T.PARAMETER, _C._next_parameter),
    Row(_P.VALUE_END, _T.PARAMETER_ATTRIBUTE, _C._next_parameter, "parameter-name-attribute"),
    Row(_P.VALUE_END, _T.PARAMETER_INLINE, _C._next_parameter, "parameter-value-inline"),
    Row(_P.VALUE_END, _T.PARAMETER_END, _C._value_closer_again, "doubled-closer"),
    Row(_P.VALUE_END, _T.FUNCTION_END, _C._function_closer),
    Row(_P.VALUE_END, _T.FUNCTION_END_WRONG, _C._function_closer, "wrong-closing-tag"),
    Row(_P.VALUE_END, _T.CALL_END, _C._broken_call_closer),
    Row(_P.VALUE_END, _T.TEXT, _C._back),

    Row(_P.LOOSE_END, _T.CALL_END, _C._loose_call_closer, "parameter-closer-missing"),
    Row(_P.LOOSE_END, _T.FUNCTION_END, _C._loose_closer, "doubled-closer"),
    Row(_P.LOOSE_END, _T.CALL, _C._loose_opener, "call-closer-missing"),
    Row(_P.LOOSE_END, _T.END, _C._ended, "call-closer-missing"),
    Row(_P.LOOSE_END, _T.TEXT, _C._back),
    Row(_P.LOOSE_CALL, _T.FUNCTION, _C._next_call),
    Row(_P.LOOSE_CALL, _T.FUNCTION_UNCLOSED, _C._next_call),
    Row(_P.LOOSE_CALL, _T.TEXT, _C._back),

    Row(_P.FUNCTION_END, _T.CALL_END, _C._call_closer),
    Row(_P.FUNCTION_END, _T.FUNCTION_END, _C._function_closer, "doubled-closer"),
    Row(_P.FUNCTION_END, _T.CALL, _C._ended, "call-closer-missing"),
    Row(_P.FUNCTION_END, _T.FUNCTION, _C._second_function, "two-functions"),
    Row(_P.FUNCTION_END, _T.FUNCTION_UNCLOSED, _C._second_function, "two-functions"),
    Row(_P.FUNCTION_END, _T.THINK_END, _C._thinking_closer, "call-closer-missing"),
    Row(_P.FUNCTION_END, _T.END, _C._ended, "call-closer-missing"),
    Row(_P.FUNCTION_END, _T.TEXT, _C._prose, "prose-before-call-closer"),
    Row(_P.PROSE, _T.CALL_END, _C._call_closer, "prose-before-call-closer"),
    Row(_P.PROSE, _T.CALL, _C._prose_opener, "call-closer-missing"),
    Row(_P.PROSE, _T.FUNCTION, _C._ended, "call-closer-missing"),
    Row(_P.PROSE, _T.FUNCTION_UNCLOSED, _C._ended, "call-closer-missing"),
    Row(_P.PROSE, _T.THINK_END, _C._thinking_closer_in_prose, "call-closer-missing"),
    Row(_P.PROSE, _T.END, _C._ended, "call-closer-missing"),
    Row(_P.PROSE, _T.TEXT, _C._as_text),
    Row(_P.PROSE_CALL, _T.FUNCTION, _C._next_call),
    Row(_P.PROSE_CALL, _T.FUNCTION_UNCLOSED, _C._next_call),
    Row(_P.PROSE_CALL, _T.END, _C._ended, "call-closer-missing"),
    Row(_P.PROSE_CALL, _T.TEXT, _C._prose_goes_on),

    Row(_P.NEST, _T.FUNCTION, _C._nested_function),
    Row(_P.NEST, _T.FUNCTION_UNCLOSED, _C._nested_function),
    Row(_P.NEST, _T.TEXT, _C._back),
    Row(_P.NEST_BODY, _T.PARAMETER, _C._nested_parameter),
    Row(_P.NEST_BODY, _T.PARAMETER_ATTRIBUTE, _C._nested_parameter),
    Row(_P.NEST_BODY, _T.FUNCTION_END, _C._nested_empty_closer),
    Row(_P.NEST_BODY, _T.TEXT, _C._back),
    Row(_P.NEST_EMPTY_END, _T.CALL_END, _C._nested_call_closer),
    Row(_P.NEST_EMPTY_END, _T.TEXT, _C._back),
    Row(_P.NEST_END, _T.CALL_END, _C._nested_call_closer),
    Row(_P.NEST_END, _T.TEXT, _C._back),
)
# fmt: on

_TABLE: dict[Place, dict[Token, Action]] = {place: {} for place in Place}
for _row in ROWS:
    _TABLE[_row.place][_row.token] = _row.action
