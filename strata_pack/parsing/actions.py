"""Defines the actions of the table in ``tool_call``: what each tag does to the call that is being read.

An action gets the tag at ``text[pos]`` and returns the position at which reading continues. If an action accepts a
malformed tag as part of the call, that counts as a defect of the call (``call_state`` documents the consequences).
"""

from __future__ import annotations

from strata_pack.parsing.call_ends import CallEnds
from strata_pack.parsing.places import Doubt, Place
from strata_pack.parsing.schema import UNDECLARED
from strata_pack.parsing.tokens import Tag, Token


class CallActions(CallEnds):
    """The actions up to the end of a value: header, words between tags, values, ends of values."""

    # The header.

    def _read_name(self, tag: Tag, text: str, pos: int) -> int:
        self._name = self._spelling.spelled_out(tag.name)
        self._schema = self._functions.get(self._name, UNDECLARED)
        return self._move(Place.BODY, tag, text, pos)

    def _read_name_from_parameter(self, tag: Tag, text: str, pos: int) -> int:
        if tag.name not in self._functions:
            return self._fail(tag, text, pos)
        return self._read_name(tag, text, pos)

    def _header_again(self, tag: Tag, text: str, pos: int) -> int:
        """Accept a repeated opening tag; another function's opening tag before this one has ended means: not a call."""
        same = self._spelling.spelled_out(tag.name) == self._name
        return self._absorb(tag, text, pos) if same else self._fail(tag, text, pos)

    # Words where a tag is expected.

    def _words(self, _tag: Tag, _text: str, pos: int) -> int:
        self._words_at = self._raw.size
        self._place = Place.WORDS
        return pos

    def _words_after_value(self, tag: Tag, text: str, pos: int) -> int:
        if self._depth or self._pending is not None:
            return self._back(tag, text, pos)
        return self._words(tag, text, pos)

    def _word(self, _tag: Tag, text: str, pos: int) -> int:
        self._keep(text[pos : pos + 1])
        return pos + 1

    def _no_words(self, tag: Tag, text: str, pos: int) -> int:
        """Make the words part of the value; if there is no value, this is not a call."""
        return self._back(tag, text, pos) if self._value_open else self._fail(tag, text, pos)

    def _parameter_after_words(self, tag: Tag, text: str, pos: int) -> int:
        names = self._names()
        if self._is_seen(tag.name) or (names and tag.name not in names):
            self._defects += self._place is Place.WORDS_END
            return self._no_words(tag, text, pos)
        self._defects += 1
        if self._value_open:
            self._remark_end = self._value_end
            return self._next_parameter(tag, text, pos)
        self.dropped_text += 1
        return self._open_value(tag, text, pos)

    def _call_closer_after_words(self, tag: Tag, text: str, pos: int) -> int:
        return self._broken_call_closer(tag, text, pos) if self._value_open else self._fail(tag, text, pos)

    def _function_closer_after_words(self, tag: Tag, text: str, pos: int) -> int:
        if not self._value_open:
            return self._fail(tag, text, pos)
        self._remark_end = self._value_end
        self._closer_is_due = True
        self._loose_closer(tag, text, pos)
        if self._bare:
            self._doubt(Doubt.LOOSE)
        return tag.end

    # Values.

    def _open_value(self, tag: Tag, text: str, pos: int) -> int:
        if tag.name in self._functions and tag.name not in self._names():
            return self._header_again(tag, text, pos)
        self._defects += tag.token is Token.PARAMETER_LIKE
        inline = tag.token is Token.PARAMETER_INLINE
        self._move(Place.VALUE if inline else Place.FRESH, tag, text, pos)
        self._begin_value(tag)
        return tag.end

    def _opener_again(self, tag: Tag, text: str, pos: int) -> int:
        if tag.name != self._argument or self._depth:
            return self._back(tag, text, pos)
        self._defects += 1
        self._ahead.clear()
        self._raw.write(text[pos : tag.end])
        self._raw.cut()
        return tag.end

    def _surplus(self, tag: Tag, text: str, pos: int) -> int:
        self._defects += 1
        self._raw.write(text[pos : tag.end])
        self._raw.cut()
        return tag.end

    # The ends of a value.

    def _value_closer(self, tag: Tag, text: str, pos: int) -> int:
        if self._pending is None and not self._depth:
            self._reopened |= self._closer_stood_alone
            self._closer_stood_alone = self._at_line_start()
        self._value_end = self._closed_at = self._raw.size
        self._swapped_end = -1
        return self._move(Place.VALUE_END, tag, text, pos)

    def _value_closer_again(self, tag: Tag, text: str, pos: int) -> int:
        """Handle a second closing tag: superfluous, or in place of ``</function>`` if that does not follow."""
        if tag.token is Token.PARAMETER_END and self._swapped_end < 0:
            self._swapped_end = self._value_end
        return self._move(Place.VALUE_END, tag, text, pos)

    def _value_closer_like(self, tag: Tag, text: str, pos: int) -> int:
        if self._depth or self._pending is not None:
            return self._as_text(tag, text, pos)
        self._value_end = self._closed_at = self._raw.size
        return self._move(Place.LIKE_END, tag, text, pos)

    def _closer_after_like(self, tag: Tag, text: str, pos: int) -> int:
        self._defects += 1
        return self._function_closer(tag, text, pos)

    def _parameter_after_like(self, tag: Tag, text: str, pos: int) -> int:
        names = self._names()
        if self._is_seen(tag.name) or (names and tag.name not in names):
            self._defects += 1
            return self._back(tag, text, pos)
        self._defects += 1
        return self._next_parameter(tag, text, pos)

    def _next_parameter(self, tag: Tag, text: str, pos: int) -> int:
        if self._depth:
            self._move(Place.VALUE, tag, text, pos)
            return self._back(tag, text, tag.end)
        is_function = tag.name in self._functions and tag.name not in self._names()
        if self._pending is not None or self._reopened or is_function:
            # Alternative reading: the value ended earlier, and this parameter belongs to another call.
            return self._fail_as_call(tag, text, pos)
        self._end_value(self._raw.cut(), self._value_end)
        self._value_end = 0
        return self._open_value(tag, text, pos)

    def _parameter_in_value(self, tag: Tag, text: str, pos: int) -> int:
        """Begin the next parameter if the function can have it. A repeated name is text, or a closing tag without its
        slash, or, if the end of the call is in doubt, evidence for that end."""
        names = self._schema.argument_names
        seen = self._is_seen(tag.name)
        if self._pending is not None and seen and not self._depth:
            self._accept(self._pending, self._raw.size)
            return pos
        if seen and tag.name == self._argument and not self._depth and self._at_line_start():
            return self._value_closer_like(tag, text, pos)
        if self._depth or seen or (names is not None and tag.name not in names):
            return self._as_text(tag, text, pos)
        if self._pending is not None or self._closer_stood_alone:
            # The value, or the whole call, may have ended earlier.
            return self._fail_as_call(tag, text, pos) if self._at_line_start() else self._as_text(tag, text, pos)
        self._value_end = self._raw.size
        self._defects += 1
        return self._next_parameter(tag, text, pos)

    def _parameter_after_loose_closer(self, tag: Tag, text: str, pos: int) -> int:
        """Take the ``</function>`` before this parameter for ``</parameter>``, unless the name is repeated: then it
        ended the call."""
        if self._depth or self._pending is not None or not self._closer_is_due:
            return self._back(tag, text, pos)
        if self._is_seen(tag.name):
            return self._ended_loosely(tag, text, pos)
        names = self._schema.argument_names
        if names is not None and tag.name not in names:
            if tag.name in self._functions:
                return self._second_function_loosely(tag, text, pos)
            return self._back(tag, text, pos)
        self._defects += 1
        self._closed_at = self._value_end
        return self._next_parameter(tag, text, pos)

    def _swapped_closer(self, tag: Tag, text: str, pos: int) -> int:
        """Read ``</function></parameter>`` as swapped if ``</tool_call>`` follows; otherwise the first tag is text."""
        loose = self._value_end
        self._value_closer(tag, text, pos)
        self._swapped_end = loose
        return tag.end
