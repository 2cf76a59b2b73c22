"""Defines the actions on tags at which a call may end, or another call may begin.

``actions`` documents what an action is. A ``</function>`` or ``</tool_call>`` inside a value may be text of the value:
such an end stays in doubt until the following text decides.
"""

from __future__ import annotations

from strata_pack.parsing.places import Doubt, Pending, Place, ReaderStatus
from strata_pack.parsing.reading import CallReading
from strata_pack.parsing.tokens import Tag, Token


class CallEnds(CallReading):
    """The actions of all places, then those of the end of the function, of the call, and of calls inside values."""

    def _fail(self, _tag: Tag, _text: str, pos: int) -> int:
        self.status = ReaderStatus.FAILED
        return pos

    def _fail_as_call(self, _tag: Tag, _text: str, pos: int) -> int:
        self._give_up()
        return pos

    def _move(self, place: Place, tag: Tag, text: str, pos: int) -> int:
        self._keep(text[pos : tag.end])
        self._place = place
        return tag.end

    def _absorb(self, tag: Tag, text: str, pos: int) -> int:
        """Accept a superfluous tag as part of the call and ignore it."""
        self._defects += 1
        return self._move(self._place, tag, text, pos)

    def _is_seen(self, name: str) -> bool:
        return (self._value_open and name == self._argument) or name in self._arguments

    def _as_text(self, _tag: Tag, text: str, pos: int) -> int:
        self._take(text[pos : pos + 1])
        return pos + 1

    def _back(self, _tag: Tag, _text: str, pos: int) -> int:
        """Continue the value: the held text is part of it, and this tag is read again."""
        if self._pending is None:
            self._release(self._raw.size)
        self._place = Place.VALUE
        return pos

    # The end of the function.

    def _function_closer(self, tag: Tag, text: str, pos: int) -> int:
        if self._depth:
            return self._nested_function_closer(tag, text, pos)
        self._defects += tag.token is Token.FUNCTION_END_LIKE
        self._move(Place.FUNCTION_END, tag, text, pos)
        self._call_end = self._raw.size
        if self._bare:
            self._complete(self._raw.cut(), self._value_end)
        return tag.end

    def _function_closer_in_value(self, tag: Tag, text: str, pos: int) -> int:
        if self._depth:
            return self._nested_function_closer(tag, text, pos)
        pending = self._pending
        if pending is not None:
            if self._follows(pending, Doubt.BROKEN):
                return self._swapped_call_closer(tag, text, pos, pending)
            return self._as_text(tag, text, pos)
        self._value_end = self._raw.size
        self._closer_is_due = self._at_line_start()
        self._loose_closer(tag, text, pos)
        if self._bare:
            self._doubt(Doubt.LOOSE)
        return tag.end

    def _follows(self, pending: Pending, doubt: Doubt) -> bool:
        """Return whether the doubtful end is of this kind and directly before this tag."""
        if pending.passed or pending.doubt is not doubt:
            return False
        passed = bool(self._raw.tail(self._raw.size - pending.call_end).strip())
        self._pending = pending._replace(passed=passed)
        return not passed

    def _swapped_call_closer(self, tag: Tag, text: str, pos: int, pending: Pending) -> int:
        """Read ``</tool_call></function>``, or ``</tool_call>`` in place of ``</function>``."""
        self._keep(text[pos : tag.end])
        self._value_end, self._call_end = pending.value_end, self._raw.size
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
        if self._swapped_end >= 0:
            self._value_end = self._swapped_end
            return self._loose_call_closer(tag, text, pos)
        self._loose_closer(tag, text, pos)
        self._doubt(Doubt.BROKEN)
        return tag.end

    def _function_without_end(self, tag: Tag, text: str, pos: int) -> int:
        """Begin the next function before this one has ended: the next is read as a call, this one becomes text."""
        if self._depth or self._pending is not None:
            return self._back(tag, text, pos)
        if self._swapped_end >= 0:
            self._value_end = self._swapped_end
            self._closer_is_due = True
            return self._second_function_loosely(tag, text, pos)
        return self._fail_as_call(tag, text, pos)

    # The end of the call.

    def _call_closer(self, tag: Tag, text: str, pos: int) -> int:
        self._keep(text[pos : tag.end])
        self.dropped_text += self._place in (Place.PROSE, Place.VALUE)
        self._complete(self._raw.cut(), self._value_end)
        return tag.end

    def _call_closer_in_value(self, tag: Tag, text: str, pos: int) -> int:
        pending = self._pending
        if pending is not None and self._follows(pending, Doubt.BROKEN):
            return self._swapped_call_closer(tag, text, pos, pending)
        if pending is None or pending.doubt is not Doubt.PROSE:
            return self._as_text(tag, text, pos)
        self._value_end = pending.value_end
        return self._call_closer(tag, text, pos)

    def _ended(self, _tag: Tag, _text: str, pos: int) -> int:
        self._accept(self._doubtful_end(Doubt.PROSE), self._raw.size)
        return pos

    def _ended_loosely(self, _tag: Tag, _text: str, pos: int) -> int:
        self._accept(self._doubtful_end(Doubt.LOOSE), self._raw.size)
        return pos

    def _second_function(self, tag: Tag, text: str, pos: int) -> int:
        self.function_follows = True
        return self._ended(tag, text, pos)

    def _second_function_loosely(self, tag: Tag, text: str, pos: int) -> int:
        if self._depth or self._pending is not None or not self._closer_is_due:
            return self._back(tag, text, pos)
        self.function_follows = True
        return self._ended_loosely(tag, text, pos)

    def _parameter_after_function(self, tag: Tag, text: str, pos: int) -> int:
        """A parameter with the name of a declared function opens that function. A repeated parameter belongs to a new
        call. A new parameter may belong to either call, so neither call is certain."""
        names = self._schema.argument_names
        if tag.name in self._functions and (names is None or tag.name not in names):
            return self._second_function(tag, text, pos)
        if self._is_seen(tag.name) or (names is not None and tag.name not in names):
            return self._ended(tag, text, pos)
        if names is None:
            return self._prose(tag, text, pos)
        return self._fail_as_call(tag, text, pos)

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

    # The next call, and calls inside a value.

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
        self._accept(self._doubtful_end(doubt), self._opener_at)
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
        if self._tags.dialect.wrapped:
            return self._move(Place.NEST_EMPTY_END, tag, text, pos)
        return self._nested_call_closer(tag, text, pos)

    def _nested_function_closer(self, tag: Tag, text: str, pos: int) -> int:
        self._place = Place.NEST_END
        if self._tags.dialect.wrapped:
            return self._move(Place.NEST_END, tag, text, pos)
        return self._nested_call_closer(tag, text, pos)

    def _nested_call_closer(self, tag: Tag, text: str, pos: int) -> int:
        if self._place is Place.NEST_END:
            self._depth -= 1
        self._keep(text[pos : tag.end])
        return self._back(tag, text, tag.end)
