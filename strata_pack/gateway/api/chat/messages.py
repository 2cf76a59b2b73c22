"""The messages of ``/v1/chat/completions``: their types, and their media parts."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType
from typing import Any, Literal

from strata_pack.chat.normalize import TEXT_PARTS, THINKING_PARTS
from strata_pack.gateway.api.fields import Kept
from strata_pack.gateway.api.serialized import parts_of
from strata_pack.gateway.api.tools import flat_name
from strata_pack.gateway.failures import bad_request
from strata_pack.gateway.media import KINDS, media_part, placeholder
from strata_pack.gateway.turn import CUSTOM_INPUT


class ChatMessage(Kept):
    """A message. ``reasoning`` is used if ``reasoning_content`` is not given.

    ``function_call`` and the role "function" are the older names of ``tool_calls`` and "tool".
    """

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[str | dict[str, Any]] | None = None
    reasoning_content: str | list[dict[str, Any]] | None = None
    reasoning: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    function_call: dict[str, Any] | None = None


def readable_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return ``messages`` with media parts as ``media_part`` and all calls as function calls.

    Raises ``ApiError`` 400 for a text part without text, and for a call without a name.
    """
    return [_readable(f"messages.{number}", message) for number, message in enumerate(messages)]


def _readable(where: str, message: dict[str, Any]) -> dict[str, Any]:
    parts = message.get("content")
    foreign = message["role"] in ("tool", "function")
    if foreign and isinstance(parts, str):
        parts = parts_of(parts) or parts
    if isinstance(parts, list):
        read = [_part(f"{where}.content.{index}", part, foreign=foreign) for index, part in enumerate(parts)]
        if parts is not message["content"] or any(one is not part for one, part in zip(read, parts, strict=True)):
            message = {**message, "content": read}
    if message["role"] == "assistant":
        if message.get("tool_calls"):
            message = {**message, "tool_calls": [_call(call) for call in message["tool_calls"]]}
        for path, call in _calls(where, message):
            _check_name(path, call)
    return message


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call of a custom or namespaced tool as a call of its function."""
    custom, function = call.get("custom"), call.get("function")
    if call.get("type") == "custom" and isinstance(custom, dict):
        arguments = {CUSTOM_INPUT: custom.get("input", "")}
        function = {**custom, "arguments": arguments}
    if isinstance(function, dict) and isinstance(function.get("name"), str):
        namespace = function.get("namespace")
        if isinstance(namespace, str) or function is not call.get("function"):
            name = flat_name(namespace if isinstance(namespace, str) else None, function["name"])
            return {**call, "type": "function", "function": {"name": name, "arguments": function.get("arguments", {})}}
    return call


def check_continued(message: dict[str, Any]) -> None:
    """Raise ``ApiError`` 400 unless the model can continue ``message``, the last one."""
    if message["role"] != "assistant":
        raise bad_request("continue_final_message: needs an assistant message at the end", "continue_final_message")
    if message.get("tool_calls") or message.get("function_call"):
        raise bad_request(
            "continue_final_message: the last message calls tools, so their results must follow, not more of its text",
            "continue_final_message",
        )


def _part(where: str, part: Any, *, foreign: bool) -> Any:
    """Return a part for the template. ``foreign``: the part is from a tool's result, so unknown types become text."""
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if not isinstance(kind, (str, NoneType)):
        raise bad_request(f"{where}.type: must be a string", f"{where}.type")
    if kind is not None and kind in KINDS:
        return media_part(KINDS[kind], where, part, f"parts of type {kind!r}")
    if foreign and kind is not None and kind not in TEXT_PARTS:
        text = part.get("text")
        return {"type": "text", "text": text if isinstance(text, str) else placeholder(kind[:64])}
    key = TEXT_PARTS.get(kind or "text", "text")
    # The template decides about other types; but one that prints "text" would print null as a word.
    if key not in part and kind is not None and kind not in TEXT_PARTS:
        return part
    wanted = (str, list) if kind in THINKING_PARTS else str
    if not isinstance(part.get(key), wanted):
        raise bad_request(f"{where}.{key}: must be a string", f"{where}.{key}")
    return part


def _calls(where: str, message: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path and the object with name and arguments of each call of ``message``."""
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
