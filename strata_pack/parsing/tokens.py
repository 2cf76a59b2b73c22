"""Defines the tokens of a call's text, the tags that a reader finds, and the spellings of a name in a tag."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

MAX_NAME = 256
"""Maximum characters of a function's or parameter's name; longer text is not a tag."""


class Token(Enum):
    """What is at a position inside a call."""

    __hash__ = object.__hash__  # tables are keyed by it; Enum's own hash is a call into Python

    FUNCTION = auto()
    """``<function=NAME>``"""
    FUNCTION_LIKE = auto()
    """The same, misspelt, of a declared function"""
    FUNCTION_UNCLOSED = auto()
    """``<function=NAME`` and a line end"""
    FUNCTION_END = auto()
    FUNCTION_END_LIKE = auto()
    """``</function_invocation>`` and the like"""
    PARAMETER = auto()
    """``<parameter=NAME>``"""
    PARAMETER_LIKE = auto()
    """The same, misspelt, of a declared parameter"""
    PARAMETER_ATTRIBUTE = auto()
    """``<parameter name="NAME">`` where a name is no attribute"""
    PARAMETER_INLINE = auto()
    """``<parameter=NAME=`` with its value directly after it"""
    PARAMETER_END = auto()
    PARAMETER_END_LIKE = auto()
    """``</parameter1>`` and the like"""
    CALL = auto()
    CALL_END = auto()
    CALL_END_LIKE = auto()
    THINK_END = auto()
    SURPLUS = auto()
    """A second ``>`` of an opening tag, before a line end"""
    TEXT = auto()
    """Anything else"""
    OPEN = auto()
    """Undecided: the text ends inside a possible tag"""
    END = auto()
    """The end of the whole text"""


class Tag(NamedTuple):
    """A token, its end position in the text, its name, and whether the parameter's value is a string."""

    token: Token
    end: int
    name: str = ""
    is_string: bool | None = None


def clean_name(raw: str) -> str:
    """Return a name without the spaces and quotes that models put around it."""
    name = raw.strip(" \t")
    if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'":
        name = name[1:-1].strip(" \t")
    return name


def spellings(raw: str) -> tuple[str, ...]:
    """Return the possible names that ``raw`` spells: itself, without quotes, without the slash of a tag."""
    return raw, clean_name(raw), clean_name(raw.strip(" \t/\"'"))
