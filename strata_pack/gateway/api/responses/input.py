"""The input items of ``/v1/responses``, read into one conversation: what a turn of the assistant is scattered over
(reasoning, messages, calls) becomes one message again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from strata_pack.gateway.api.chat.messages import IMAGE_PARTS
from strata_pack.gateway.api.fields import Kept, text_field
from strata_pack.gateway.api.responses.encrypted_content import thinking_of
from strata_pack.gateway.failures import bad_request

PARAGRAPH = "\n\n"
REASONING_PARTS = ("reasoning_text", "summary_text", "thinking")
Messages = list[dict[str, Any]]


class Item(Kept):
    """An input item; which further fields it needs depends on ``type`` (``message`` when it is not given)."""

    type: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[dict[str, Any]] | None = None


def conversation(items: list[Item]) -> Messages:
    """Return the items as messages in OpenAI's chat shapes; raises ``ApiError`` for what cannot be read."""
    messages: Messages = []
    for number, item in enumerate(items):
        kind, where = item.type or "message", f"input.{number}"
        reader = READERS.get(kind)
        if reader is None:
            raise bad_request(f"{where}.type: an item of type {kind!r} cannot be read here", f"{where}.type")
        reader(messages, where, item.given())
    return [_whole(message) if message["role"] == "assistant" else message for message in messages]


# One kind of item each


def _message(messages: Messages, where: str, given: dict[str, Any]) -> None:
    role = given.get("role")
    if role is None:
        raise bad_request(f"{where}.role: is missing", f"{where}.role")
    text = "".join(_texts(f"{where}.content", given.get("content")))
    if role == "assistant":
        _add(_assistant(messages, after=("tool_calls",)), "content", text)
    else:
        messages.append({"role": role, "content": text})


def _reasoning(messages: Messages, where: str, given: dict[str, Any]) -> None:
    # An item that cannot be read (another server's) says nothing: it must not cut the turn in two.
    if text := _thinking(where, given):
        _add(_assistant(messages, after=("content", "tool_calls")), "reasoning_content", text)


def _function_call(messages: Messages, where: str, given: dict[str, Any]) -> None:
    name = text_field(where, given, "name")
    if not name:
        raise bad_request(f"{where}.name: must not be empty", f"{where}.name")
    call = {
        "id": text_field(where, given, "call_id", default=""),
        "type": "function",
        "function": {"name": name, "arguments": text_field(where, given, "arguments", default="")},
    }
    _assistant(messages).setdefault("tool_calls", []).append(call)


def _function_call_output(messages: Messages, where: str, given: dict[str, Any]) -> None:
    text = "".join(_texts(f"{where}.output", given.get("output")))
    call_id = text_field(where, given, "call_id", default="")
    messages.append({"role": "tool", "tool_call_id": call_id, "content": text})


READERS: Mapping[str, Callable[[Messages, str, dict[str, Any]], None]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
}
"""Reads an item, ``where`` it stands, into the messages so far."""


def _assistant(messages: Messages, *, after: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the assistant's turn that an item belongs to: a new one if the last one has any of ``after`` already."""
    last = messages[-1] if messages else None
    if last is None or last["role"] != "assistant" or any(last.get(key) for key in after):
        last = {"role": "assistant"}
        messages.append(last)
    return last


def _add(turn: dict[str, Any], key: str, text: str) -> None:
    if text:
        turn.setdefault(key, []).append(text)


def _whole(turn: dict[str, Any]) -> dict[str, Any]:
    """Return an assistant's turn with the texts of its items joined; once, because there may be thousands."""
    joined: dict[str, Any] = {key: PARAGRAPH.join(turn[key]) for key in ("content", "reasoning_content") if key in turn}
    return {**turn, "content": "", **joined}


# Texts


def _thinking(where: str, given: dict[str, Any]) -> str:
    """Return the text of a reasoning item: its content, else its summary, else what we encoded ourselves."""
    encoded = given.get("encrypted_content")
    return (
        "".join(_texts(f"{where}.content", given.get("content"), thinking=True))
        or PARAGRAPH.join(_texts(f"{where}.summary", given.get("summary"), thinking=True))
        or (thinking_of(encoded) if isinstance(encoded, str) else "")
    )


def _texts(where: str, content: Any, *, thinking: bool = False) -> list[str]:
    """Return the texts of ``content``: null, a string or a list of parts; raises a 400 for a part without text."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise bad_request(f"{where}: is neither a string nor a list of parts", where)
    return [_part(f"{where}.{number}", part, thinking=thinking) for number, part in enumerate(content)]


def _part(where: str, part: Any, *, thinking: bool) -> str:
    if not isinstance(part, dict):
        raise bad_request(f"{where}: must be an object", where)
    kind = part.get("type", "text")
    if kind in IMAGE_PARTS:
        raise bad_request(
            f"{where}: the model has no projector, so parts of type {kind!r} cannot be read; send text",
            where,
            code="unsupported_media",
        )
    if not isinstance(kind, str):
        raise bad_request(f"{where}.type: must be a string", f"{where}.type")
    if kind in REASONING_PARTS and not thinking:
        raise bad_request(f"{where}: a part of type {kind!r} belongs into an item of type 'reasoning'", where)
    return text_field(where, part, "refusal" if kind == "refusal" else "text")
