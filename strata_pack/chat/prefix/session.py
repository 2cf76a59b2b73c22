"""Loads the conversation to measure: the bundled agent session, or the user's file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from strata_pack.errors import BadInput
from strata_pack.files import read_json

BUNDLED = "coding_agent.json"
MAX_SESSION_BYTES = 64 << 20


@dataclass(frozen=True)
class Session:
    """A conversation with the other parts of a request. An assistant message may have the key ``generated``, the
    model's raw text; ``variables`` are the template's other inputs."""

    name: str
    messages: list[Mapping[str, Any]]
    tools: list[Any] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)


def bundled_session() -> Session:
    """Return the bundled session: a coding agent that works on three requests of its user."""
    text = resources.files("strata_pack.chat.prefix").joinpath("sessions").joinpath(BUNDLED).read_text(encoding="utf-8")
    return _read(json.loads(text), BUNDLED)


def load_session(path: Path) -> Session:
    """Return the session in a JSON file: a list of messages, or an object with ``messages`` and optionally
    ``tools`` and ``variables`` (or ``kwargs``, ``chat_template_kwargs``), such as the body of a chat request.

    Raises ``BadInput`` for an invalid file.
    """
    data = read_json(path, MAX_SESSION_BYTES)
    return _read({"messages": data} if isinstance(data, list) else data, str(path))


def _read(data: Any, where: str) -> Session:
    if not isinstance(data, dict) or not isinstance(data.get("messages"), list):
        raise BadInput('is neither a list of messages nor an object with "messages"', where=where)
    messages = data["messages"]
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadInput(f"message {number} is not an object with a role", where=where)
        calls = message.get("tool_calls")
        if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
            raise BadInput(f'message {number}: "tool_calls" is not a list of objects', where=where)
    tools = data.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise BadInput('"tools" is not a list', where=where)
    keys = ("variables", "kwargs", "chat_template_kwargs")
    variables: dict[str, Any] = next((data[key] for key in keys if isinstance(data.get(key), dict)), {})
    kept = {key: value for key, value in variables.items() if key not in ("messages", "tools")}
    name = data.get("name")
    return Session(name if isinstance(name, str) else where, [_parsed(message) for message in messages], tools, kept)


def _parsed(message: dict[str, Any]) -> dict[str, Any]:
    """Return ``message`` with call arguments as objects, as servers pass them to templates (clients send JSON text)."""
    calls = message.get("tool_calls")
    return message if not calls else {**message, "tool_calls": [_parsed_call(call) for call in calls]}


def _parsed_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call
