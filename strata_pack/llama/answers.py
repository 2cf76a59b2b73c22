"""Defines types for the answers of a llama.cpp server: properties, completions, chat replies, timings.

Every ``from_dict`` reads untrusted JSON: a field of the wrong type raises ``GarbledAnswer``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from strata_pack.errors import EnvironmentFailure

T = TypeVar("T")


class ServerGone(EnvironmentFailure):
    """The server cannot be reached, closed the connection, or died."""


class ServerTimeout(EnvironmentFailure):
    """The server did not answer in time."""


class GarbledAnswer(EnvironmentFailure):
    """The server's answer does not match its API."""


class RequestRefused(EnvironmentFailure):
    """The server answered with an HTTP error: ``status`` and its own ``message``, unchanged."""

    def __init__(self, status: int, message: str, *, where: str) -> None:
        super().__init__(f"the server refused the request with HTTP {status}: {message}", where=where)
        self.status = status
        self.message = message


def typed(source: Mapping[str, Any], key: str, kind: type[T], default: T) -> T:
    """Return ``source[key]`` if it is of type ``kind``, ``default`` if it is missing or null; else raise
    ``GarbledAnswer``.

    An int is accepted as a float; a bool is not a number.
    """
    value = source.get(key)
    if value is None:
        return default
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)  # type: ignore[return-value]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise GarbledAnswer(f'"{key}" is {type(value).__name__}, not {kind.__name__}, in the answer of the server')
    return value


@dataclass(frozen=True)
class Timings:
    """The server's timings of one request. ``prompt_n`` prompt tokens were processed, ``cache_n`` came from the
    cache."""

    prompt_n: int = 0
    cache_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Timings:
        return cls(
            prompt_n=typed(raw, "prompt_n", int, 0),
            cache_n=typed(raw, "cache_n", int, 0),
            prompt_ms=typed(raw, "prompt_ms", float, 0.0),
            predicted_n=typed(raw, "predicted_n", int, 0),
            predicted_ms=typed(raw, "predicted_ms", float, 0.0),
        )


@dataclass(frozen=True)
class Props:
    """``GET /props``: what the server loaded."""

    chat_template: str
    template_caps: Mapping[str, Any]
    model_path: str
    build: str
    slots: int
    context: int
    """Context tokens of one slot."""
    bos_token: str
    eos_token: str
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Props:
        settings = typed(raw, "default_generation_settings", dict, {})
        return cls(
            chat_template=typed(raw, "chat_template", str, ""),
            template_caps=typed(raw, "chat_template_caps", dict, {}),
            model_path=typed(raw, "model_path", str, ""),
            build=typed(raw, "build_info", str, ""),
            slots=typed(raw, "total_slots", int, 1),
            context=typed(settings, "n_ctx", int, 0),
            bos_token=typed(raw, "bos_token", str, ""),
            eos_token=typed(raw, "eos_token", str, ""),
            raw=raw,
        )


@dataclass(frozen=True)
class Completion:
    """One answer of ``POST /completion``, or one chunk of a streamed one."""

    text: str
    stop: bool
    """True for a whole answer and for the last chunk."""
    stop_type: str
    """``"eos"``, ``"word"``, ``"limit"`` or ``"none"``."""
    timings: Timings
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Completion:
        timings = typed(raw, "timings", dict, {})
        if "cache_n" not in timings and "tokens_evaluated" in raw:
            # Builds without a count of cached tokens count the whole prompt.
            read = typed(timings, "prompt_n", int, 0)
            timings = {**timings, "cache_n": max(typed(raw, "tokens_evaluated", int, 0) - read, 0)}
        return cls(
            text=typed(raw, "content", str, ""),
            stop=typed(raw, "stop", bool, False),
            stop_type=typed(raw, "stop_type", str, "none"),
            timings=Timings.from_dict(timings),
            raw=raw,
        )


@dataclass(frozen=True)
class ReplyCall:
    """A tool call of a chat reply; ``arguments`` is the JSON text as the server sent it."""

    id: str
    name: str
    arguments: str

    def decoded(self) -> Any:
        """Return the arguments as a value, or the text itself if it is not JSON."""
        try:
            return json.loads(self.arguments)
        except ValueError:
            return self.arguments


@dataclass(frozen=True)
class ChatReply:
    """The first choice of ``POST /v1/chat/completions``."""

    content: str
    reasoning: str
    tool_calls: tuple[ReplyCall, ...]
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    timings: Timings
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ChatReply:
        choices = raw.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise GarbledAnswer('there is no "choices" in the answer of the server')
        message = typed(choices[0], "message", dict, {})
        usage = typed(raw, "usage", dict, {})
        details = typed(usage, "prompt_tokens_details", dict, {})
        return cls(
            content=_text(message.get("content")),
            reasoning=_text(message.get("reasoning_content") or message.get("reasoning")),
            tool_calls=tuple(_call(entry) for entry in typed(message, "tool_calls", list, [])),
            finish_reason=typed(choices[0], "finish_reason", str, ""),
            prompt_tokens=typed(usage, "prompt_tokens", int, 0),
            cached_tokens=typed(details, "cached_tokens", int, 0),
            completion_tokens=typed(usage, "completion_tokens", int, 0),
            timings=Timings.from_dict(typed(raw, "timings", dict, {})),
            raw=raw,
        )


def _text(value: Any) -> str:
    """Return content as text; a list of parts is joined as in most clients."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(part["text"] for part in value if isinstance(part, dict) and isinstance(part.get("text"), str))
    if value is None:
        return ""
    raise GarbledAnswer(f"a message's text is {type(value).__name__} in the answer of the server")


def _call(entry: Any) -> ReplyCall:
    function = entry.get("function") if isinstance(entry, dict) else None
    if not isinstance(function, dict):
        raise GarbledAnswer("a tool call without a function in the answer of the server")
    arguments = function.get("arguments")
    return ReplyCall(
        id=typed(entry, "id", str, ""),
        name=typed(function, "name", str, ""),
        arguments=arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False),
    )
