"""Defines the positions inside a call, and the kinds of doubtful ends."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple


class ReaderStatus(Enum):
    """Whether a reader is still reading, done, or failed."""

    READING = auto()
    DONE = auto()
    FAILED = auto()
    """Not a call: what was read is plain text."""


class Place(Enum):
    """The position in a call that a reader has reached."""

    __hash__ = object.__hash__  # tables are keyed by it; Enum's own hash is a call into Python

    HEADER = auto()
    """The beginning: ``<function=NAME>`` must follow."""
    BODY = auto()
    """After the function's name."""
    FRESH = auto()
    """After a parameter's opening tag and white space."""
    VALUE = auto()
    """Inside a parameter's value."""
    VALUE_END = auto()
    """After ``</parameter>``: the following text decides whether it ended the value."""
    LIKE_END = auto()
    """The same, misspelt: it ended the value only if a tag of the call follows."""
    WORDS = auto()
    """Words where a tag is expected, up to the end of the line."""
    WORDS_END = auto()
    """After such words and the end of their line: a tag of the call must follow."""
    LOOSE_END = auto()
    """After ``</function>`` without ``</parameter>``: the following text decides whether it ended the value."""
    LOOSE_CALL = auto()
    """The same and ``<tool_call>``."""
    FUNCTION_END = auto()
    """After ``</function>`` in its proper place: the following text decides whether the call is over."""
    PROSE = auto()
    """The same and other text, in a call without a value to which the text could belong."""
    PROSE_CALL = auto()
    """The same and ``<tool_call>``."""
    NEST = auto()
    """After ``<tool_call>`` inside a value."""
    NEST_BODY = auto()
    """The same and ``<function=NAME>``."""
    NEST_EMPTY_END = auto()
    """The same and ``</function>``: a call without parameters inside a value."""
    NEST_END = auto()
    """After the ``</function>`` of a call with parameters inside a value."""


class Doubt(Enum):
    """Why the end of a call is doubtful until the following text is known."""

    LOOSE = auto()
    """``</function></tool_call>`` without ``</parameter>``: the end, unless a ``</parameter>`` ends the value later."""
    PROSE = auto()
    """Text after ``</function>``: the end if ``</tool_call>`` comes before the value ends again."""
    BROKEN = auto()
    """``</parameter></tool_call>`` without ``</function>``: not a call, unless the value continues."""


class Pending(NamedTuple):
    """A doubtful end, with its positions in the current segment of the call's text.

    ``passed``: more than white space is known to have come after it.
    """

    doubt: Doubt
    value_end: int
    call_end: int
    passed: bool = False
