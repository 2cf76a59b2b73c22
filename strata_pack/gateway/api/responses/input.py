"""Convert the input items of ``/v1/responses`` to messages: the items of one assistant turn
(reasoning, messages, calls) become one message.

A history may contain items of other servers. Calls of hosted tools become calls with their results, as far as the
history has them; unreadable items are skipped. So a session that began on another server can continue here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Protocol

from strata_pack.gateway.api.fields import Kept, text_field
from strata_pack.gateway.api.responses.encrypted_content import decode_thinking
from strata_pack.gateway.api.serialized import pieces_of
from strata_pack.gateway.api.tools import flat_name
from strata_pack.gateway.failures import bad_request
from strata_pack.gateway.media import KINDS, MediaPart, joined, media_part, placeholder
from strata_pack.gateway.turn import CUSTOM_INPUT

PARAGRAPH = "\n\n"
REASONING_PARTS = ("reasoning_text", "summary_text", "thinking")
TEXT_TYPES = ("text", "input_text", "output_text", "refusal", *REASONING_PARTS)
ROLES = ("system", "developer", "user", "assistant")
NO_RESULT = "[the history does not tell the result]"
REFERENCE = "item_reference"
Messages = list[dict[str, Any]]


class Item(Kept):
    """An input item; its further fields depend on ``type`` (default ``message``)."""

    type: str | None = None
    role: Any = None
    content: Any = None


class Recall(Protocol):
    """Access to the stored responses of one client."""

    def item(self, item_id: str) -> Mapping[str, Any] | None:
        """Return a stored response's item, ``None`` if it is not stored."""

    def conversation(self, response_id: str) -> list[Mapping[str, Any]]:
        """Return all items of the conversation up to and with a response. Raises ``ApiError`` for an unknown
        response."""


@dataclass(frozen=True)
class Read:
    """A conversation as OpenAI chat messages, and the skipped items."""

    messages: Messages
    left_out: tuple[str, ...]


def conversation(items: Iterable[Item], recall: Recall, *, recalled: int = 0) -> Read:
    """Return the items as one conversation. Raises ``ApiError`` for an invalid item.

    ``recalled``: number of leading items that come from ``recall`` and not from the request.
    """
    messages: Messages = []
    left_out: list[str] = []
    for number, item in enumerate(items):
        where = f"input.{number - recalled}" if number >= recalled else f"previous_response_id.{number}"
        given = item.given()
        if item.type == REFERENCE or (item.type is None and item.role is None and set(given) == {"id"}):
            known = recall.item(text_field(where, given, "id"))
            if known is None:
                left_out.append(f"item {REFERENCE}")
                continue
            given = dict(known)
        kind = given.get("type") or "message"
        if kind not in READERS and given.get("role") in ROLES and given.get("content") is not None:
            kind = "message"
        if (reader := READERS.get(kind)) is None:
            left_out.append(f"item {kind}")
        else:
            reader(messages, where, given)
    whole = [_whole(message) if message["role"] == "assistant" else message for message in messages]
    return Read(whole, tuple(left_out))


# One kind of item each


def _message(messages: Messages, where: str, given: dict[str, Any]) -> None:
    role = given.get("role")
    if role is None:
        raise bad_request(f"{where}.role: is missing", f"{where}.role")
    if role not in ROLES:
        raise bad_request(f"{where}.role: must be one of {', '.join(ROLES)}", f"{where}.role")
    pieces = _pieces(f"{where}.content", given.get("content"))
    if role == "assistant":
        text = "".join(piece if isinstance(piece, str) else placeholder(piece["kind"]) for piece in pieces)
        _add(_assistant(messages, after=("tool_calls",)), "content", text)
    else:
        messages.append({"role": role, "content": joined(pieces, "")})


def _reasoning(messages: Messages, where: str, given: dict[str, Any]) -> None:
    # An unreadable item (of another server) is skipped and must not split the turn.
    if text := _thinking(where, given):
        _add(_assistant(messages, after=("content", "tool_calls")), "reasoning_content", text)


def _function_call(messages: Messages, where: str, given: dict[str, Any]) -> None:
    _call(messages, where, given, text_field(where, given, "arguments", default=""))


def _custom_tool_call(messages: Messages, where: str, given: dict[str, Any]) -> None:
    _call(messages, where, given, {CUSTOM_INPUT: text_field(where, given, "input", default="")})


def _call(messages: Messages, where: str, given: dict[str, Any], arguments: Any) -> None:
    name = text_field(where, given, "name")
    if not name:
        raise bad_request(f"{where}.name: must not be empty", f"{where}.name")
    namespace = given.get("namespace")
    flat = flat_name(namespace if isinstance(namespace, str) else None, name)
    _add_call(messages, text_field(where, given, "call_id", default=""), flat, arguments)


def _add_call(messages: Messages, call_id: str, name: str, arguments: Any) -> None:
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    _assistant(messages).setdefault("tool_calls", []).append(call)


def _call_output(messages: Messages, where: str, given: dict[str, Any]) -> None:
    output = given.get("output")
    if isinstance(output, dict) and output.get("type") in KINDS:
        output = [output]
    if output is not None and not isinstance(output, (str, list)):
        raise bad_request(f"{where}.output: is neither a string nor a list of parts", f"{where}.output")
    call_id = text_field(where, given, "call_id", default="")
    decoded = pieces_of(f"{where}.output", output) if isinstance(output, str) else None
    pieces = decoded or _pieces(f"{where}.output", output, result=True)
    messages.append({"role": "tool", "tool_call_id": call_id, "content": joined(pieces, "")})


def _foreign_output(messages: Messages, where: str, given: dict[str, Any]) -> None:
    """Read the result of a client-side tool of another API; any form is accepted."""
    output = given.get("output", given.get("tools"))
    if not isinstance(output, (str, list, type(None))) and output.get("type") not in KINDS:
        output = _dumped(output)
    call_id = given.get("call_id") or given.get("id") or ""
    _call_output(messages, where, {"output": output, "call_id": str(call_id)})


def _client_call(name: str, field: str) -> ItemReader:
    """Return the reader of a call that the client ran, whose result is a separate item."""

    def read(messages: Messages, _where: str, given: dict[str, Any]) -> None:
        arguments = given.get(field)
        call_id = given.get("call_id") or given.get("id") or ""
        _add_call(messages, str(call_id), name, arguments if isinstance(arguments, dict) else {field: arguments})

    return read


def _server_call(name: str, fields: tuple[str, ...], result: str | None = None, kind: str | None = None) -> ItemReader:
    """Return the reader of a hosted tool's call: ``fields`` are its arguments, ``result`` is its result.

    ``kind``: the kind of media of the result.
    """

    def read(messages: Messages, _where: str, given: dict[str, Any]) -> None:
        arguments = {field: given[field] for field in fields if given.get(field) is not None}
        called = name
        if name == "mcp":
            called = flat_name(str(given.get("server_label") or name), str(given.get("name") or "call"))
            arguments = given.get("arguments") or {}
        call_id = str(given.get("id") or "")
        outcome = given.get("error") or (given.get(result) if result else None)
        text = placeholder(kind) if kind else _dumped(outcome) if outcome else NO_RESULT
        _add_call(messages, call_id, called, arguments)
        messages.append({"role": "tool", "tool_call_id": call_id, "content": text})

    return read


def _compaction(messages: Messages, _where: str, given: dict[str, Any]) -> None:
    """Read the summary of a compacted part of the conversation, if it is text."""
    summary = given.get("summary") or given.get("content")
    text = (
        "".join(str(piece) for piece in _pieces("", summary, result=True)) if isinstance(summary, (str, list)) else ""
    )
    if text:
        messages.append({"role": "user", "content": text})


def _dumped(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


ItemReader = Callable[[Messages, str, dict[str, Any]], None]
READERS: Mapping[str, ItemReader] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "function_call_output": _call_output,
    "custom_tool_call": _custom_tool_call,
    "custom_tool_call_output": _call_output,
    "local_shell_call": _client_call("local_shell", "action"),
    "local_shell_call_output": _foreign_output,
    "shell_call": _client_call("shell", "action"),
    "shell_call_output": _foreign_output,
    "apply_patch_call": _client_call("apply_patch", "operation"),
    "apply_patch_call_output": _foreign_output,
    "computer_call": _client_call("computer", "action"),
    "computer_call_output": _foreign_output,
    "tool_search_call": _client_call("tool_search", "arguments"),
    "tool_search_output": _foreign_output,
    "mcp_call": _server_call("mcp", (), "output"),
    "mcp_tool_call_output": _foreign_output,
    "web_search_call": _server_call("web_search", ("action",)),
    "file_search_call": _server_call("file_search", ("queries",), "results"),
    "code_interpreter_call": _server_call("code_interpreter", ("code",), "outputs"),
    "image_generation_call": _server_call("image_generation", ("revised_prompt",), kind="image"),
    "compaction": _compaction,
    "compaction_summary": _compaction,
}
"""Adds an item at path ``where`` to the messages. Items of other types are skipped."""


def _assistant(messages: Messages, *, after: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the assistant's turn of an item: a new one if the last turn already has one of the keys ``after``."""
    last = messages[-1] if messages else None
    if last is None or last["role"] != "assistant" or any(last.get(key) for key in after):
        last = {"role": "assistant"}
        messages.append(last)
    return last


def _add(turn: dict[str, Any], key: str, text: str) -> None:
    if text:
        turn.setdefault(key, []).append(text)


def _whole(turn: dict[str, Any]) -> dict[str, Any]:
    """Return an assistant's turn with its items' texts joined (once at the end, because there may be thousands)."""
    whole: dict[str, Any] = {key: PARAGRAPH.join(turn[key]) for key in ("content", "reasoning_content") if key in turn}
    return {**turn, "content": "", **whole}


# Texts


def _thinking(where: str, given: dict[str, Any]) -> str:
    """Return the text of a reasoning item: its content, else its summary, else our own encoded value."""
    encoded = given.get("encrypted_content")
    return (
        "".join(map(str, _pieces(f"{where}.content", given.get("content"), thinking=True)))
        or PARAGRAPH.join(map(str, _pieces(f"{where}.summary", given.get("summary"), thinking=True)))
        or (decode_thinking(encoded) if isinstance(encoded, str) else "")
    )


def _pieces(where: str, content: Any, *, thinking: bool = False, result: bool = False) -> list[str | MediaPart]:
    """Return the texts and media of ``content``: null, a string or a list of parts.

    Raises ``ApiError`` 400 for a part without text. ``result``: the parts are a tool's, so unknown types are not an
    error.
    """
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise bad_request(f"{where}: is neither a string nor a list of parts", where)
    return [_piece(f"{where}.{number}", part, thinking=thinking, result=result) for number, part in enumerate(content)]


def _piece(where: str, part: Any, *, thinking: bool, result: bool) -> str | MediaPart:
    if not isinstance(part, dict):
        if result:
            return _dumped(part)
        raise bad_request(f"{where}: must be an object", where)
    kind = part.get("type")
    if isinstance(kind, str) and kind in KINDS and not thinking:
        return media_part(KINDS[kind], where, part, f"parts of type {kind!r}")
    if result and kind not in TEXT_TYPES and not isinstance(part.get("text"), str):
        # Most such parts are text in a wrapper, such as {"stdout": ..., "stderr": ...}.
        return placeholder(str(kind)[:64]) if "encrypted_content" in part else _dumped(part)
    if not isinstance(kind, str | NoneType):
        raise bad_request(f"{where}.type: must be a string", f"{where}.type")
    if kind in REASONING_PARTS and not thinking:
        raise bad_request(f"{where}: a part of type {kind!r} belongs in an item of type 'reasoning'", where)
    return text_field(where, part, "refusal" if kind == "refusal" else "text")
