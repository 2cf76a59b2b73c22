"""The tags of the two call forms, and how one is recognised at the end of a text that is still growing.

A tag is one ``<`` and then characters that are no ``<``; so a beginning that cannot go on as a tag is text as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum, auto
from typing import NamedTuple

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
CALL_OPEN = "<tool_call>"
CALL_CLOSE = "</tool_call>"
FUNCTION_OPEN = "<function="
FUNCTION_CLOSE = "</function>"
PARAMETER_CLOSE = "</parameter>"

WHITESPACE = re.compile(r"[ \t\r\n]*")
"""What "white space" means between tags."""

MAX_NAME = 256
"""Characters of a function's or parameter's name; what is longer is no tag."""


class Token(Enum):
    """What stands at a place inside a call."""

    __hash__ = object.__hash__  # tables are keyed by it; Enum's own hash is a call into Python

    FUNCTION = auto()
    """``<function=NAME>``"""
    FUNCTION_UNCLOSED = auto()
    """``<function=NAME`` and a line end"""
    FUNCTION_END = auto()
    FUNCTION_END_WRONG = auto()
    """``</function_invocation>`` and the like"""
    PARAMETER = auto()
    """``<parameter=NAME>``"""
    PARAMETER_ATTRIBUTE = auto()
    """``<parameter name="NAME">``"""
    PARAMETER_INLINE = auto()
    """``<parameter=NAME=`` with the value right behind"""
    PARAMETER_END = auto()
    CALL = auto()
    CALL_END = auto()
    THINK_END = auto()
    TEXT = auto()
    """Anything else"""
    OPEN = auto()
    """Undecided: the text ends inside something that may become a tag"""
    END = auto()
    """The end of the whole text"""


class Tag(NamedTuple):
    """A token, where it ends in the text it was found in, and the name it carries."""

    token: Token
    end: int
    name: str = ""


_FIXED = {
    THINK_CLOSE: Token.THINK_END,
    CALL_OPEN: Token.CALL,
    CALL_CLOSE: Token.CALL_END,
    FUNCTION_CLOSE: Token.FUNCTION_END,
    PARAMETER_CLOSE: Token.PARAMETER_END,
}
_FIXED_TAG = re.compile("|".join(map(re.escape, _FIXED)))
_WRONG_END = re.compile(r"</function[A-Za-z_]{1,40}(>|\Z)")
_ATTRIBUTE = re.compile(r"<parameter[ \t]{1,8}name=([^<>\r\n]{1,256})(>|\Z)")
_NAMED = re.compile(r"(<function=|<parameter=)([^<>\r\n]{0,256})")

_PARAMETER_ATTRIBUTE_BEGINNING = re.compile(r"<parameter[ \t]{1,8}(?:n(?:a(?:m(?:e=?)?)?)?)?\Z")


def prefixes(tags: Collection[str]) -> frozenset[str]:
    """Return every proper beginning of every one of ``tags``."""
    return frozenset(tag[:length] for tag in tags for length in range(1, len(tag)))


_BEGINNINGS = prefixes([*_FIXED, FUNCTION_OPEN, "<parameter="])


def held_from(text: str, pos: int, beginnings: frozenset[str]) -> int:
    """Return where in ``text`` (from ``pos`` on) a tag begins that the text's end leaves open; its length if none."""
    at = text.rfind("<", max(pos, len(text) - 16))
    return at if at >= 0 and text[at:] in beginnings else len(text)


def clean_name(raw: str) -> str:
    """Return a name without the spaces and quotes that models put around it."""
    name = raw.strip(" \t")
    if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'":
        name = name[1:-1].strip(" \t")
    return name


def read_tag(text: str, pos: int, argument_names: Collection[str]) -> Tag:
    """Return what stands at ``text[pos]``; ``argument_names`` are the ones the schema declares."""
    fixed = _FIXED_TAG.match(text, pos)
    if fixed is not None:
        return Tag(_FIXED[fixed[0]], fixed.end())
    rest = text[pos : pos + 24]
    if rest in _BEGINNINGS:
        return Tag(Token.OPEN, pos)
    named = _NAMED.match(text, pos)
    if named is not None:
        return _read_named(text, named, argument_names)
    for pattern, token in ((_WRONG_END, Token.FUNCTION_END_WRONG), (_ATTRIBUTE, Token.PARAMETER_ATTRIBUTE)):
        match = pattern.match(text, pos)
        if match is not None:
            if match[match.re.groups] != ">":
                return Tag(Token.OPEN, pos)
            name = clean_name(match[1]) if match.re.groups == 2 else "-"
            return Tag(token, match.end(), name) if name else Tag(Token.TEXT, pos)
    open_tag = len(text) - pos < 24 and _PARAMETER_ATTRIBUTE_BEGINNING.match(rest)
    return Tag(Token.OPEN if open_tag else Token.TEXT, pos)


def _read_named(text: str, match: re.Match[str], argument_names: Collection[str]) -> Tag:
    kind, raw = match.groups()
    end = match.end()
    closer = text[end : end + 1]
    if not closer and len(raw) < MAX_NAME:
        return Tag(Token.OPEN, match.start())
    name = clean_name(raw)
    if closer == ">" and name:
        return Tag(Token.FUNCTION if kind == FUNCTION_OPEN else Token.PARAMETER, end + 1, name)
    if kind == FUNCTION_OPEN:
        if closer and closer in "\r\n" and name:
            return Tag(Token.FUNCTION_UNCLOSED, end, name)
    elif "=" in raw:
        before = raw.index("=")
        name = clean_name(raw[:before])
        if name in argument_names:
            return Tag(Token.PARAMETER_INLINE, match.start(2) + before + 1, name)
    return Tag(Token.TEXT, match.start())
