"""Defines the positions inside a call, and the ends that are in doubt."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple


class ReaderStatus(Enum):
    """Where a reader stands."""

    READING = auto()
    DONE = auto()
    FAILED = auto()
    """It is no call: its text is text."""


class Place(Enum):
    """What a reader has read so far."""

    __hash__ = object.__hash__  # tables are keyed by it; Enum's own hash is a call into Python

    HEADER = auto()
    """Nothing yet: ``<function=NAME>`` must come."""
    BODY = auto()
    """The function's name."""
    FRESH = auto()
    """A parameter's opening tag and white space."""
    VALUE = auto()
    """A parameter's opening tag: its value runs."""
    VALUE_END = auto()
    """``</parameter>``: what follows decides whether it ended the value."""
    LIKE_END = auto()
    """The same, misspelt: the end only if a tag of the call follows."""
    WORDS = auto()
    """Words where a tag is due, up to the end of the line."""
    WORDS_END = auto()
    """The same and the line's end: a tag of the call must follow."""
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
    """Text after ``</function>``: the end if ``</tool_call>`` comes before the value ends again."""
    BROKEN = auto()
    """``</parameter></tool_call>`` without ``</function>``: no call, unless the value goes on."""


class Pending(NamedTuple):
    """An end in doubt, with its places in the present segment of the call's text."""

    doubt: Doubt
    value_end: int
    call_end: int
