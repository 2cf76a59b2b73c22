"""Compares two texts character by character, and makes white space visible.

The time is linear outside the differing part. Inside, the exact comparison is quadratic, so it is bounded: a larger
part is reported as replaced as a whole.
"""

from __future__ import annotations

import difflib
import unicodedata
from dataclasses import dataclass
from typing import Literal

from strata_pack.prefixes import common_length

EXACT_BOUND = 4_000_000
"""Largest product of both sides' characters for which the differing part is compared exactly."""

CONTEXT = 240
"""Characters of equal text that are shown next to a difference."""

SegmentKind = Literal["equal", "removed", "added"]

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of invisible or control characters: controls, formats, surrogates, separators."""

_VISIBLE = {" ": "·", "\n": "↵\n", "\t": "⇥", "\r": "␍", "\u00a0": "⍽", "\ufeff": "␢"}


@dataclass(frozen=True)
class Segment:
    """A piece of text that is in both texts (``equal``), only in the expected one (``removed``) or only in the other
    (``added``)."""

    kind: SegmentKind
    text: str


def differences(expected: str, got: str) -> list[Segment]:
    """Return segments: the ``equal`` and ``removed`` ones make up ``expected``, the ``equal`` and ``added`` ones
    ``got``."""
    start = common_length(expected, got)
    end = common_length(expected[start:][::-1], got[start:][::-1])
    middle = _middle(expected[start : len(expected) - end], got[start : len(got) - end])
    parts = [Segment("equal", expected[:start]), *middle, Segment("equal", expected[len(expected) - end :])]
    return [part for part in parts if part.text]


def _middle(a: str, b: str) -> list[Segment]:
    if not a or not b or len(a) * len(b) > EXACT_BOUND:
        return [Segment("removed", a), Segment("added", b)]
    parts: list[Segment] = []
    for kind, i1, i2, j1, j2 in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind == "equal":
            parts.append(Segment("equal", a[i1:i2]))
        else:
            parts += [Segment("removed", a[i1:i2]), Segment("added", b[j1:j2])]
    return parts


def shorten(segments: list[Segment], context: int = CONTEXT) -> list[Segment]:
    """Shorten long equal segments, and note how many characters were left out."""
    last = len(segments) - 1
    return [
        Segment("equal", _cut(part.text, context, first=index == 0, last=index == last))
        if part.kind == "equal"
        else part
        for index, part in enumerate(segments)
    ]


def _cut(text: str, context: int, *, first: bool, last: bool) -> str:
    head, tail = (0 if first and not last else context), (0 if last and not first else context)
    left_out = len(text) - head - tail
    if left_out <= context:
        return text
    return f"{text[:head]}[... {left_out:,} characters ...]{text[len(text) - tail :]}"


def visible(text: str) -> str:
    """Return ``text`` with white space replaced by visible symbols (a line feed is also kept) and invisible
    characters named."""
    return printable("".join(_VISIBLE.get(char, char) for char in text))


def printable(text: str) -> str:
    """Return ``text`` with control and invisible characters replaced by their names, such as ``<U+200B>``.

    A prompt is untrusted: an escape sequence from a template must not reach the terminal.
    """
    return "".join(f"<U+{ord(char):04X}>" if _is_hidden(char) else char for char in text)


def _is_hidden(char: str) -> bool:
    return char not in "\n\t" and unicodedata.category(char) in _HIDDEN
