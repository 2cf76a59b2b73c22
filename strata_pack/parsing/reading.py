"""Scans the text of one call in XML form for tags; the table in ``tool_call`` defines what each tag does."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

from strata_pack.parsing.call_state import CallState
from strata_pack.parsing.events import Event
from strata_pack.parsing.places import Place, ReaderStatus
from strata_pack.parsing.tags import WHITESPACE
from strata_pack.parsing.tokens import Tag, Token

# Used at every delta: in Python 3.11, each attribute access on an Enum is a slow Python call.
_READING = ReaderStatus.READING
_VALUE = Place.VALUE
_SEARCHED = (Place.VALUE, Place.PROSE)
"""The places in which any text may precede the next tag."""
_DUE = frozenset(
    {
        Place.HEADER,
        Place.BODY,
        Place.VALUE_END,
        Place.LIKE_END,
        Place.WORDS_END,
        Place.LOOSE_END,
        Place.FUNCTION_END,
    }
)
"""The places after which a tag is expected, so a misspelt tag is accepted for the one it resembles."""
_HEADERS = frozenset({Place.HEADER, Place.NEST})

_LINE_OR_TAG = re.compile(r"[\n<]")
_NEITHER = Tag(Token.TEXT, 0)

MAX_WORDS = 400
"""Largest length in characters of a remark between two tags; a longer one is part of the value before it."""


class CallReading(CallState):
    """Main loop of ``XmlCall``: finds the next tag and calls its action."""

    _table: ClassVar[dict[Place, dict[Token, Callable[[Any, Tag, str, int], int]]]]

    def take_value(self, text: str) -> list[Event] | None:
        """Read ``text``, which contains no ``<``, and return its events if a value is being read: the fast path of
        ``feed``."""
        if self._place is not _VALUE or self._pending is not None or self.status is not _READING:
            return None
        self._raw.write(text)
        if self._sending is None:
            if not self._probing:
                return []
            self._probe()
        else:
            self._sending.text(text)
        events = self.events[:]
        self.events.clear()
        return events

    def feed(self, text: str, pos: int) -> int:
        """Read ``text`` from ``pos`` on; return the position reached: before an incomplete tag, or after the call."""
        self._stalled = False
        while pos < len(text) and self.status is _READING and not self._stalled:
            if self._place in _SEARCHED:
                pos = self._search(text, pos)
            elif self._place is Place.WORDS:
                pos = self._read_words(text, pos)
            else:
                pos = self._look(text, pos)
        return pos

    def finish(self, rest: str, *, cut: bool) -> None:
        """End the text after ``rest``, an incomplete tag. ``cut``: the output was truncated, so nothing may be
        completed."""
        ended = self._place in (Place.FUNCTION_END, Place.LOOSE_END)
        closing = rest if ended and not cut and self._tags.dialect.call_close.startswith(rest) else ""
        if rest and not closing:
            if self._place not in (Place.HEADER, Place.BODY, Place.VALUE, Place.PROSE, Place.WORDS):
                self._act(Tag(Token.TEXT, 0), rest, 0)
            self._raw.write(rest)
        at_end = self._table[self._place].get(Token.END)
        if cut:
            self._give_up()
        elif at_end is not None:
            at_end(self, Tag(Token.END, 0), "", 0)
        elif self._pending is not None:
            self._accept(self._pending, self._raw.size)
        else:
            self._give_up()
        if closing and self.status is ReaderStatus.FAILED:
            self._raw.write(closing)
            self.again.append(closing)
        elif closing:
            self.half_closer = closing

    def _look(self, text: str, pos: int) -> int:
        """Read what must follow directly, after white space only."""
        space = WHITESPACE.match(text, pos)
        end = space.end() if space else pos
        if end > pos:
            self._keep(text[pos:end])
        if end == len(text):
            return end
        tag = self._due_tag(text, end)
        if tag.token is Token.OPEN:
            self._stalled = True
            return end
        return self._act(tag, text, end)

    def _due_tag(self, text: str, pos: int) -> Tag:
        place, tags, names = self._place, self._tags, self._names()
        if self._untagged and place in _HEADERS:
            return tags.read_header(text, pos)
        tag = tags.read(text, pos, names) if text[pos] == "<" else _NEITHER
        if tag.token is Token.TEXT and place in _DUE:
            return tags.read_like(text, pos, names, self._functions, due=True)
        if place is Place.FRESH and tag.token is Token.TEXT and not self._raw.size and text[pos] == ">":
            return tags.surplus(text, pos)
        return tag

    def _search(self, text: str, pos: int) -> int:
        """Read text up to the next tag that matters inside it."""
        found = self._tags.in_call.search(text, pos)
        end = len(text) if found is None else found.start()
        if end > pos:
            self._take(text[pos:end])
        if found is None:
            return end
        names = self._names()
        tag = self._tags.read(text, end, names)
        if tag.token is Token.TEXT and self._place is _VALUE and self._at_line_start():
            tag = self._tags.read_like(text, end, names, (), due=False)
        if tag.token is Token.OPEN:
            self._stalled = True
            return end
        return self._act(tag, text, end)

    def _read_words(self, text: str, pos: int) -> int:
        """Read words where a tag is expected; a remark ends at the end of its line."""
        # One character too many and no more, so that it does not matter where the text is cut.
        most = max(pos, pos + MAX_WORDS + 1 - (self._raw.size - self._words_at))
        found = _LINE_OR_TAG.search(text, pos, most)
        end = min(len(text), most) if found is None else found.start()
        if end > pos:
            self._keep(text[pos:end])
        if end == most or (found is not None and found[0] == "\n"):
            self._place = Place.WORDS_END
            return end
        if found is None:
            return end
        tag = self._tags.read(text, end, self._names())
        if tag.token is Token.OPEN:
            self._stalled = True
            return end
        return self._act(tag, text, end)

    def _act(self, tag: Tag, text: str, pos: int) -> int:
        rows = self._table[self._place]
        return (rows.get(tag.token) or rows[Token.TEXT])(self, tag, text, pos)
