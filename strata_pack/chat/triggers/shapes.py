"""Defines the conversations of the trigger search: small ones with a slot for every text.

A slot is written ``@name@``; ``filled`` puts a text into each. Each slot's own text contains a unique word, so that
it can be located in a prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from strata_pack.chat.triggers.recording import MARK

SlotRole = Literal["user", "system", "assistant", "tool", "call", "tools"]

SLOTS: Mapping[str, SlotRole] = {
    "system": "system",
    "first": "user",
    "second": "user",
    "answer": "assistant",
    "closing": "assistant",
    "thought": "assistant",
    "result": "tool",
    "tool": "tools",
    "purpose": "tools",
    "key": "tools",
    "meaning": "tools",
    "called": "call",
    "argument": "call",
    "value": "call",
}
"""Every slot with its part of the conversation."""

NAMES = frozenset({"tool", "key", "called", "argument"})
"""The slots for names, not sentences."""

WHERE: Mapping[str, str] = {
    "system": "the system message",
    "first": "a user's message",
    "second": "the last user's message",
    "answer": "an assistant's text",
    "closing": "an assistant's text",
    "thought": "an assistant's thinking",
    "result": "a tool's result",
    "tool": "a tool's name",
    "purpose": "a tool's description",
    "key": "a parameter's name",
    "meaning": "a parameter's description",
    "called": "a called tool's name",
    "argument": "an argument's name",
    "value": "an argument's value",
}


def own_text(slot: str) -> str:
    """Return the text of ``slot`` when nothing is tried in it."""
    return f"{MARK}{slot}_x" if slot in NAMES else f"The {MARK}{slot}x moss grows by the quiet brook"


BASE: Mapping[str, str] = {slot: own_text(slot) for slot in SLOTS}

_SYSTEM = {"role": "system", "content": "@system@"}
_CALL_ID = "zqcall001"


def _call(*, as_text: bool) -> dict[str, Any]:
    arguments: Any = {"@argument@": "@value@"}
    function = {"name": "@called@", "arguments": arguments}
    return {"id": _CALL_ID, "type": "function", "function": function, "as_text": as_text}


def _tools() -> list[dict[str, Any]]:
    properties = {"@key@": {"type": "string", "description": "@meaning@"}}
    parameters = {"type": "object", "properties": properties, "required": ["@key@"]}
    return [{"type": "function", "function": {"name": "@tool@", "description": "@purpose@", "parameters": parameters}}]


def _user(slot: str) -> dict[str, Any]:
    return {"role": "user", "content": f"@{slot}@"}


def _agent(*, as_text: bool, content: bool, ends_with_result: bool) -> dict[str, Any]:
    turn: dict[str, Any] = {
        "role": "assistant",
        "reasoning_content": "@thought@",
        "tool_calls": [_call(as_text=as_text)],
    }
    turn["content"] = "@answer@" if content else ""
    result = {"role": "tool", "name": "@called@", "tool_call_id": _CALL_ID, "content": "@result@"}
    messages = [_SYSTEM, _user("first"), turn, result]
    if not ends_with_result:
        messages += [{"role": "assistant", "content": "@closing@"}, _user("second")]
    return {"messages": messages, "tools": _tools()}


def _chat() -> list[dict[str, Any]]:
    return [_SYSTEM, _user("first"), {"role": "assistant", "content": "@answer@"}, _user("second")]


_PARTS = [{"type": "text", "text": "@second@"}]
PURPOSE: Mapping[str, str] = {"type": "text", "text": BASE["purpose"]}
"""A part of a content, as it stands next to a picture."""

FORMS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "a chat": ({"messages": _chat()},),
    "an agent's turns": tuple(
        _agent(as_text=as_text, content=content, ends_with_result=False)
        for content in (True, False)
        for as_text in (False, True)
    ),
    "a tool's result last": tuple(
        _agent(as_text=as_text, content=False, ends_with_result=True) for as_text in (False, True)
    ),
    "a question": ({"messages": [_user("second")]},),
    "a question with tools": ({"messages": [_SYSTEM, _user("second")], "tools": _tools()},),
    "a question in parts": ({"messages": [{"role": "user", "content": _PARTS}]},),
    "thinking in the history": (
        {
            "messages": [
                _user("first"),
                {"role": "assistant", "content": "@answer@", "reasoning_content": "@thought@"},
                _user("second"),
            ]
        },
    ),
}
"""Each shape in the input formats that templates accept; the first that renders is used (see ``candidates``)."""


@dataclass(frozen=True)
class ConversationShape:
    """A conversation with ``slots``, in the input format that the template accepts."""

    name: str
    pattern: Mapping[str, Any]
    slots: tuple[str, ...]

    def inputs(self, texts: Mapping[str, str], variables: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the template's inputs with ``texts`` in the slots."""
        return {**filled(self.pattern, texts), **(variables or {})}


def candidates(name: str) -> list[ConversationShape]:
    """Return the forms of the shape ``name``: with its system message, then without."""
    found = []
    for form in FORMS[name]:
        bare = [message for message in form["messages"] if message["role"] != "system"]
        for pattern in (form, {**form, "messages": bare}):
            shape = ConversationShape(name, pattern, _slots(pattern))
            if shape not in found:
                found.append(shape)
    return found


def _slots(pattern: Mapping[str, Any]) -> tuple[str, ...]:
    text = json.dumps(pattern)
    return tuple(slot for slot in SLOTS if f"@{slot}@" in text)


def filled(pattern: Any, texts: Mapping[str, str]) -> Any:
    """Return ``pattern`` with the texts in its slots; call arguments become JSON text where the pattern says so."""
    if isinstance(pattern, str):
        return texts[pattern[1:-1]] if pattern.startswith("@") else pattern
    if isinstance(pattern, (list, tuple)):
        return [filled(one, texts) for one in pattern]
    if isinstance(pattern, Mapping):
        made = {filled(key, texts): filled(value, texts) for key, value in pattern.items()}
        if "as_text" in made and made.pop("as_text"):
            function = made["function"]
            made["function"] = {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}
        return made
    return pattern


def long_chat(turns: int, *, system: bool) -> dict[str, Any]:
    """Return a chat in which the user asks ``turns`` times; every text contains its number."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": BASE["system"]}] if system else []
    for turn in range(turns):
        if turn:
            messages.append({"role": "assistant", "content": f"Zqa{turn}"})
        messages.append({"role": "user", "content": f"Zqu{turn}"})
    return {"messages": messages}


def many_tools(count: int) -> dict[str, Any]:
    """Return a question with ``count`` tools."""
    tools = named_tools([f"{MARK}tool_{number}" for number in range(count)])
    return {"messages": [{"role": "user", "content": BASE["second"]}], "tools": tools}


def named_tools(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a tool for each of ``names``."""
    return [filled(_tools(), {**BASE, "tool": name})[0] for name in names]


def many_calls(shape: ConversationShape, count: int) -> dict[str, Any]:
    """Return ``shape``, an agent's turns, with ``count`` calls in one turn and a result for each."""
    inputs = shape.inputs(BASE)
    messages: list[dict[str, Any]] = []
    for message in inputs["messages"]:
        if message.get("tool_calls"):
            call = message["tool_calls"][0]
            messages.append({**message, "tool_calls": [{**call, "id": f"zqcall{n:03d}"} for n in range(count)]})
        elif message["role"] == "tool":
            messages += [{**message, "tool_call_id": f"zqcall{number:03d}"} for number in range(count)]
        else:
            messages.append(message)
    return {**inputs, "messages": messages}
