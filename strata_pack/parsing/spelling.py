"""Treats a tag as text if the caller knows that ordinary tokens spell it.

Such a tag passes through the machine with a stand-in for its ``<``, so that no state recognises it. Before a value is
read, and in events, the stand-in becomes ``<`` again. A stand-in is a character that the reply has not contained so
far; if the reply contains it later, that character gets a stand-in of its own.
"""

from __future__ import annotations

import re
from itertools import chain

from strata_pack.parsing.dialect import Dialect
from strata_pack.parsing.events import Event
from strata_pack.parsing.tags import held_from, prefixes

_POSSIBLE = re.compile("[\ufdd0-\ufdef\U000f0000-\U0010ffff]")
"""The possible stand-ins: noncharacters, which exchanged text rarely contains, and two planes for private use."""


class Spelling:
    """Marks the tags that ordinary tokens spell.

    ``rest`` is the beginning of an incomplete tag; ``used`` is whether a stand-in stands for another character.
    """

    __slots__ = ("_beginnings", "_free", "_inside", "_outside", "_tags", "rest", "used")

    def __init__(self, dialect: Dialect) -> None:
        self._tags = dialect.tags
        self._beginnings = prefixes(dialect.tags)
        self._inside: dict[str, str] = {}
        """The stand-in of ``<`` and of each possible stand-in that the reply contains, most often itself."""
        self._outside: dict[str, str] = {}
        """The reverse."""
        self._free = chain(range(0xFDD0, 0xFDF0), range(0xF0000, 0x110000))
        self.rest = ""
        self.used = False

    def read(self, text: str, special: bool | None) -> str:
        """Return the part of the text so far that goes to the machine now."""
        if not text.isascii():
            text = _POSSIBLE.sub(lambda found: self._stand_in(found[0]), text)
        text, self.rest = self.rest + text, ""
        if special is not False:
            return text
        for tag in self._tags:
            if tag in text:
                text = text.replace(tag, self._stand_in("<") + tag[1:])
        end = held_from(text, 0, self._beginnings)
        text, self.rest = text[:end], text[end:]
        return text

    def flush(self) -> str:
        """Return the incomplete tag at the end of the text."""
        rest, self.rest = self.rest, ""
        return rest

    def _stand_in(self, character: str) -> str:
        known = self._inside.get(character)
        if known is not None:
            return known
        chosen = character
        if character == "<" or character in self._outside:
            chosen = next((free for free in map(chr, self._free) if free not in self._outside), character)
            self.used = True
        self._inside[character] = chosen
        self._outside[chosen] = character
        return chosen

    def spelled_out(self, text: str) -> str:
        """Return ``text``, which passed through the machine, with the characters that the reply has."""
        if not self.used or text.isascii():
            return text
        return _POSSIBLE.sub(lambda found: self._outside.get(found[0], found[0]), text)

    def event(self, event: Event) -> Event:
        """Return ``event`` with the characters that the reply has; arguments have them already."""
        return event if event.call is not None else Event(event.kind, self.spelled_out(event.text))
