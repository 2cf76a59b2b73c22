"""Reads assistant messages of every vendor, and defines helper functions for all formats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from strata_pack.replay.replies import RecordedTurn, text_of


def as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def as_string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def json_value(text: Any) -> Any:
    """Return the value of a JSON text, None if it is not JSON."""
    try:
        return json.loads(text) if isinstance(text, str) and text.lstrip()[:1] in ("{", "[") else None
    except (ValueError, RecursionError):
        return None


def tools_of(record: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return the tools that a request declares, None if unknown."""
    tools = record.get("tools")
    return tuple(tools) if isinstance(tools, list) else None


def _calls(calls: Any) -> tuple[Any, ...]:
    """Return the arguments of OpenAI's or Ollama's ``tool_calls``."""
    return tuple(as_dict(as_dict(call).get("function")).get("arguments") for call in as_list(calls))


def _details(details: Any) -> str:
    """Return the text of OpenRouter's ``reasoning_details``."""
    return "".join(
        as_string(as_dict(part).get("text")) or as_string(as_dict(part).get("summary")) or ""
        for part in as_list(details)
    )


def message_turn(message: Mapping[str, Any], finish_reason: Any = None) -> RecordedTurn:
    """Return the turn of one assistant message in any vendor's format."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    kinds = {as_string(as_dict(block).get("type")) for block in blocks}
    reasoning = (
        text_of(message.get("reasoning_content"))
        or text_of(message.get("reasoning"))
        or text_of(message.get("thinking"))
        or _details(message.get("reasoning_details"))
    )
    if kinds & {"thinking", "redacted_thinking", "tool_use", "reasoning"}:
        reasoning = reasoning or "".join(
            as_string(block.get("thinking")) or as_string(block.get("text")) or ""
            for block in blocks
            if as_dict(block).get("type") in ("thinking", "reasoning")
        )
    texts = "".join(
        text_of(block.get("text"))
        for block in blocks
        if isinstance(block, dict) and block.get("type", "text") in ("text", "output_text")
    )
    calls = _calls(message.get("tool_calls"))
    if not calls and isinstance(message.get("function_call"), dict):
        calls = (message["function_call"].get("arguments"),)
    calls += tuple(block.get("input") for block in blocks if as_dict(block).get("type") == "tool_use")
    reason = (
        as_string(finish_reason) or as_string(message.get("finish_reason")) or as_string(message.get("stop_reason"))
    )
    return RecordedTurn(
        reasoning,
        texts if blocks else text_of(content),
        calls,
        reason,
        as_string(message.get("model")),
        raw=not reasoning,
    )


MESSAGE_KEYS = frozenset(
    {"reasoning_content", "reasoning", "thinking", "reasoning_details", "content", "tool_calls", "function_call"}
)


def is_reply(message: Any) -> bool:
    """Return whether ``message`` is an assistant's: by its role or, without a role, by the keys of a reply."""
    return (
        isinstance(message, dict)
        and message.get("role", "assistant") in ("assistant", "model")
        and bool(MESSAGE_KEYS & message.keys())
    )
