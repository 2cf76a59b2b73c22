"""Finished choices, and what all reply writers share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic_core import to_json

from strata_pack.gateway.failures import ApiError
from strata_pack.gateway.fast_path import Frame
from strata_pack.gateway.outcome import GenerationOutcome
from strata_pack.gateway.turn import CUSTOM_INPUT
from strata_pack.parsing import Counters, Event, EventKind, ToolCall

quoted = json.JSONEncoder(ensure_ascii=False).encode
"""Encode a string as JSON; the encoder is created once, because this runs for every token."""


_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode(value: Any) -> bytes:
    """Return ``value`` as compact JSON, with a question mark for an unpaired surrogate."""
    try:
        return to_json(value)
    except ValueError:
        return _compact(value).encode("utf-8", "replace")


def data_event(value: Any) -> bytes:
    """Return a server-sent event without a name."""
    return b"data: " + encode(value) + b"\n\n"


def named_event(name: str, value: Any) -> bytes:
    """Return a server-sent event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + encode(value) + b"\n\n"


@dataclass
class Choice:
    """One finished choice. ``extra`` is its object in ``x_strata``."""

    outcome: GenerationOutcome
    counters: Counters
    extra: dict[str, Any] = field(default_factory=dict)
    reasoning: str = ""
    content: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[dict[str, Any]] | None = None


Logprobs = list[list[dict[str, Any]]] | None
"""Entries per event; None if the client did not ask for them."""


class Writer(Protocol):
    """Writes the replies of one API. One writer serves one request."""

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        """Return the reply of a request without ``stream``."""

    def start(self, prompt_tokens: int) -> bytes:
        """Return the beginning of a stream; called after the first delta was written, but sent before it.

        ``prompt_tokens``: 0 until the upstream reports it.
        """

    def delta(self, index: int, events: list[Event], logprobs: Logprobs, report: Mapping[str, Any]) -> bytes:
        """Return the events of choice ``index``, with the log probabilities of each event, if there are any.

        ``report``: fields of llama-server that the client asked for; only ``/v1/chat/completions`` has them.
        """

    def frame(self, index: int, kind: EventKind) -> Frame | None:
        """Return the frame of further text of ``kind``, ``None`` if frames differ between events.

        The frame filled with a text equals the result of ``delta``.
        """

    def written(self, kind: EventKind, text: str) -> None:
        """Receive text that was sent in a frame."""

    def finish(self, index: int, choice: Choice) -> bytes:
        """Return the end of choice ``index`` (``choice`` has no texts in a stream)."""

    def end(self, choices: list[Choice]) -> bytes:
        """Return the end of a stream."""

    def failure(self, error: ApiError) -> bytes:
        """Return the end of a stream that failed."""


def custom_input(call: ToolCall) -> str:
    """Return the input text in a call of a custom tool's function."""
    value = call.arguments.get(CUSTOM_INPUT)
    if isinstance(value, str):
        return value
    return call.arguments_json if value is None else json.dumps(value, ensure_ascii=False)


def add_usage(choices: Iterable[Choice]) -> dict[str, int]:
    """Return the tokens of all choices; the prompt counts once."""
    outcomes = [choice.outcome.usage for choice in choices]
    return {
        "prompt": max((usage.prompt for usage in outcomes), default=0),
        "cached": max((usage.cached for usage in outcomes), default=0),
        "completion": sum(usage.completion for usage in outcomes),
        "reasoning": sum(usage.reasoning for usage in outcomes),
    }


def x_strata(request_id: str, choices: list[Choice]) -> dict[str, Any]:
    """Return the value of ``x_strata``: the counters of this reply, per choice."""
    return {"request_id": request_id, "choices": [dict(choice.extra) for choice in choices]}


def with_x_strata(reply: dict[str, Any], shown: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return ``reply`` with ``x_strata`` if the client asked for it."""
    return reply if shown is None else {**reply, "x_strata": shown}
