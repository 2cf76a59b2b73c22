"""Defines the parser's output: events, the calls in them, and the counters of one reply.

``Event`` is a named tuple, not a dataclass, because one is created for every delta and creating a tuple is faster.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, field
from json.encoder import encode_basestring
from typing import Any, Literal, NamedTuple, TypedDict

EventKind = Literal["reasoning", "content", "tool_start", "tool_args", "tool_call"]

Reason = Literal["mid_line", "indented", "fenced", "quoted", "no_function"]
"""The reason why a ``<tool_call>`` in the thinking did not end it."""

REASONS: tuple[Reason, ...] = ("mid_line", "indented", "fenced", "quoted", "no_function")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call: the function's ``name``, its ``arguments`` (always serialisable as strict JSON), and an ``id``.

    In a ``tool_start`` or ``tool_args`` event ``arguments`` is still empty.
    """

    name: str
    arguments: dict[str, Any]
    id: str

    @property
    def arguments_json(self) -> str:
        """The arguments as JSON text, as the wire formats of OpenAI carry them."""
        return json_text(self.arguments)


class Event(NamedTuple):
    """One piece of the parser's output.

    ``kind`` is ``"reasoning"`` or ``"content"`` (``text`` is the next piece), ``"tool_call"`` (``call`` is complete),
    or, with ``stream_tools``, ``"tool_start"`` (``call`` has name and id) and ``"tool_args"`` (``text`` is the next
    piece of the JSON text of the arguments).
    """

    kind: EventKind
    text: str = ""
    call: ToolCall | None = None


new_event = tuple.__new__
"""``new_event(Event, (kind, text, call))`` creates an event in half the time, for the code that runs at every delta."""


def new_id() -> str:
    """Return a new id for a call."""
    return f"call_{secrets.token_hex(12)}"


class CountersDict(TypedDict):
    """``Counters`` as JSON."""

    implicit_ends: int
    implicit_calls: int
    stranded_calls: int
    rejected_candidates: dict[Reason, int]
    unfinished_calls: int
    undeclared_calls: int
    coercion_failures: int
    dropped_text: int
    suspect_values: int
    suspect_parameters: list[str]
    ended_inside_thinking: bool


@dataclass(slots=True)
class Counters:
    """Counts of what happened in one reply; final only after ``finish``.

    - ``implicit_ends``: 1 if a call ended the thinking without ``</think>``.
    - ``implicit_calls``: the calls delivered between that end and the next ``</think>`` or the end of the text.
    - ``stranded_calls``: complete calls that stayed reasoning (fenced, indented, mid-line, refused by the policy).
    - ``rejected_candidates``: every ``<tool_call>`` of the thinking that did not end it, by reason.
    - ``unfinished_calls``: calls that the output cut, or that can be read in two ways.
    - ``undeclared_calls``: calls delivered although the request declares no such function.
    - ``coercion_failures``: arguments that did not fit their type and remained strings.
    - ``dropped_text``: characters between the tags of a delivered call that are neither reasoning nor content.
    - ``suspect_values``: string values of delivered calls that hold a tag of the call's grammar on a line of its own;
      ``suspect_parameters`` are their parameters' names.
    - ``ended_inside_thinking``: whether the reply never ends its thinking.
    """

    implicit_ends: int = 0
    implicit_calls: int = 0
    stranded_calls: int = 0
    rejected_candidates: dict[Reason, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    unfinished_calls: int = 0
    undeclared_calls: int = 0
    coercion_failures: int = 0
    dropped_text: int = 0
    suspect_values: int = 0
    suspect_parameters: list[str] = field(default_factory=list)
    ended_inside_thinking: bool = False

    def to_dict(self) -> CountersDict:
        """Return the counters as plain JSON values."""
        found: CountersDict = asdict(self)  # type: ignore[assignment]
        return found


def json_text(value: Any) -> str:
    """Return ``value`` as one line of strict JSON that can be encoded as UTF-8.

    A lone surrogate (JSON may contain one as an escape) cannot be encoded, so such a value is written in ASCII.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False)
    return text


def json_string_body(text: str) -> str:
    """Return ``text`` escaped as the inside of a JSON string; pieces of a string may be escaped one by one."""
    return (encode_basestring(text) if text.isascii() else json_text(text))[1:-1]
