"""One call in the XML form, read as it is written: ``<function=NAME>``, its parameters, its end, and all known drift.

The reader is a table: what was read before (a ``Place``) and what stands here (a ``Token``) name the one thing to do.
The well-formed grammar and each tolerated drift are rows of it; what has no row is no call. The hard part is where a
value ends, because a value may hold every tag: ``docs/parsing.md`` draws it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from strata_pack.parsing.reading import CallReading, Doubt, Place, Status
from strata_pack.parsing.schema import UNDECLARED
from strata_pack.parsing.tags import Tag, Token


class XmlCall(CallReading):
    """Reads one call from ``<function=`` on.

    ``bare``: it has no ``<tool_call>``. ``stream``: announce it and send its arguments while they come, as
    ``events``. ``in_thinking``: it stands in the thinking, so that ``</think>`` behind it is no prose.

    Feed it until ``status`` is ``DONE`` (``call`` is whole) or ``FAILED`` (``text()`` comes back). ``again`` is text
    behind the call that must be read once more by whoever reads the text around calls; ``function_follows`` says that
    a second function stands in the same wrapper.
    """

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
        if self._pending is not None and seen and not self._depth:
            self._accept(self._pending, self._raw.size)
            return pos
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

    def _parameter_behind_function(self, tag: Tag, text: str, pos: int) -> int:
        """A name that was there already belongs to a call of its own; any other leaves the end in doubt."""
        seen = tag.name == self._argument or tag.name in self._arguments
        return self._ended(tag, text, pos) if seen else self._prose(tag, text, pos)

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
    Row(_P.FUNCTION_END, _T.PARAMETER, _C._parameter_behind_function),
    Row(_P.FUNCTION_END, _T.PARAMETER_ATTRIBUTE, _C._parameter_behind_function),
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

XmlCall._table = {place: {row.token: row.action for row in ROWS if row.place is place} for place in Place}
