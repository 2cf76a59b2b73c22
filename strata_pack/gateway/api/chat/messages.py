"""The messages of ``/v1/chat/completions``: their form, and what of them cannot be served."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType
from typing import Any, Literal

from strata_pack.chat.normalize import TEXT_PARTS, THINKING_PARTS
from strata_pack.gateway.api.fields import Kept
from strata_pack.gateway.failures import bad_request

IMAGE_PARTS = ("image", "image_url", "input_image", "video", "video_url", "input_audio", "audio", "file", "input_file")


class Message(Kept):
    """A message. ``reasoning`` is read where ``reasoning_content`` is not given.

    ``function_call`` and the role "function" are the older names of ``tool_calls`` and "tool".
    """

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[str | dict[str, Any]] | None = None
    reasoning_content: str | list[dict[str, Any]] | None = None
    reasoning: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    function_call: dict[str, Any] | None = None


def check_messages(messages: list[dict[str, Any]]) -> None:
    """Raise a 400 for the first part that is no text, and for a call without a name."""
    for number, message in enumerate(messages):
        where = f"messages.{number}"
        parts = message.get("content")
        for index, part in enumerate(parts if isinstance(parts, list) else ()):
            if isinstance(part, dict):
                _check_part(f"{where}.content.{index}", part)
        if message["role"] == "assistant":
            for path, call in _calls(where, message):
                _check_name(path, call)


def check_continued(message: dict[str, Any]) -> None:
    """Raise a 400 unless ``message``, the last one, is a turn that the model can write on."""
    if message["role"] != "assistant":
        raise bad_request("continue_final_message: needs an assistant message at the end", "continue_final_message")
    if message.get("tool_calls") or message.get("function_call"):
        raise bad_request(
            "continue_final_message: the last message calls tools, so their results must follow, not more of its text",
            "continue_final_message",
        )


def _check_part(where: str, part: dict[str, Any]) -> None:
    kind = part.get("type")
    if not isinstance(kind, (str, NoneType)):
        raise bad_request(f"{where}.type: must be a string", f"{where}.type")
    if kind in IMAGE_PARTS:
        raise bad_request(
            f"{where}: the model has no projector, so parts of type {kind!r} cannot be read; send text",
            where,
            code="unsupported_media",
        )
    key = TEXT_PARTS.get(kind or "text", "text")
    # A part of another type is the template's to judge; but one that prints "text" would print null as a word.
    if key not in part and kind is not None and kind not in TEXT_PARTS:
        return
    wanted = (str, list) if kind in THINKING_PARTS else str
    if not isinstance(part.get(key), wanted):
        raise bad_request(f"{where}.{key}: must be a string", f"{where}.{key}")


def _calls(where: str, message: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield where each call of ``message`` has its name and arguments, and what is there."""
    for number, call in enumerate(message.get("tool_calls") or ()):
        path = f"{where}.tool_calls.{number}"
        function = call.get("function")
        if isinstance(function, dict):
            yield f"{path}.function", function
        elif "function" not in call and "name" in call:
            yield path, call
        else:
            yield f"{path}.function", {}
    if isinstance(message.get("function_call"), dict):
        yield f"{where}.function_call", message["function_call"]


def _check_name(where: str, call: dict[str, Any]) -> None:
    name = call.get("name")
    if not isinstance(name, str) or not name:
        problem = "is missing" if name is None else "must be a string that is not empty"
        raise bad_request(f"{where}.name: {problem}", f"{where}.name")
