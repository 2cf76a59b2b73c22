"""Checks replies with tool calls of an OpenAI-compatible server, whole or streamed, for faults.

The rules are those of the OpenAI API reference (chat completions): arguments are JSON text, a call names a declared
tool, a reply with calls has the finish reason ``tool_calls``. A call inside a text has not been delivered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from strata_pack.smoke.generation import parse_whole

LossKind = Literal[
    "calls left in the thinking",
    "calls left in the content",
    "truncated arguments",
    "arguments that are no JSON text",
    "undeclared tools",
    "wrong finish reasons",
    "thinking repeated in the content",
    "control tokens left in the content",
    "wrong counts of tokens",
    "malformed replies",
    "broken streams",
    "forced calls not delivered",
    "mixed answers",
    "refused histories",
]

OF_TEXT: tuple[LossKind, ...] = (
    "calls left in the thinking",
    "calls left in the content",
    "thinking repeated in the content",
    "control tokens left in the content",
    "forced calls not delivered",
)
"""Kinds whose evidence is a text of the reply."""

THINKING_KEYS = ("reasoning_content", "reasoning", "thinking")
CUT = "length"
"""The finish reason of a reply that reached its token limit; its truncation is not the server's fault."""

CALLED = ("tool_calls", "function_call")

REPEATED = 16
"""Minimum characters of a thinking that is recognised in the content."""

_CONTROL = re.compile(r"(<\|im_end\|>|<\|endoftext\|>|<\|eot_id\|>|</s>)\s*\Z")
_BARE_XML = re.compile(r"^<function=([^>\s]+)>", re.MULTILINE)
_FENCE = re.compile(r"^(```|~~~).*?(?:^\1|\Z)", re.MULTILINE | re.DOTALL)
_BARE_TRIES = 32
"""Matches lines that begin like a JSON object and may be a call."""


@dataclass(frozen=True)
class Loss:
    """One fault of a reply: its kind, and the evidence."""

    kind: LossKind
    seen: str


@dataclass(frozen=True)
class WireReply:
    """A reply to check: received whole, or assembled from a stream. ``prompt_tokens``: as the server counted them."""

    thinking: str
    content: str
    calls: tuple[Mapping[str, Any], ...]
    finish_reason: str | None
    role: Any = "assistant"
    prompt_tokens: Any = None


def names_of(tools: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the names of declared tools."""
    return {tool["function"]["name"] for tool in tools}


def read_reply(raw: Mapping[str, Any]) -> WireReply | None:
    """Return the first choice of a whole answer, None if there is no readable one."""
    choices = raw.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        return None
    calls = message.get("tool_calls")
    reason = choice.get("finish_reason")
    return WireReply(
        thinking=thinking_of(message),
        content=text_of(message.get("content")),
        calls=tuple(entry if isinstance(entry, dict) else {} for entry in calls) if isinstance(calls, list) else (),
        finish_reason=reason if isinstance(reason, str) else None,
        role=message.get("role"),
        prompt_tokens=_prompt_tokens(raw),
    )


def refused_reply(raw: Mapping[str, Any]) -> Loss:
    """Return the fault of an answer without a message: if it is an error, its text."""
    error = raw.get("error")
    if error:
        return Loss("malformed replies", f"an error with the status 200: {_shown(error)}")
    return Loss("malformed replies", "there is no message in the answer")


def _prompt_tokens(raw: Mapping[str, Any]) -> Any:
    usage = raw.get("usage")
    return usage.get("prompt_tokens") if isinstance(usage, dict) else None


def thinking_of(message: Mapping[str, Any]) -> str:
    """Return the thinking of a message or a delta, under any of the servers' names."""
    texts = [text_of(message.get(key)) for key in THINKING_KEYS]
    details = message.get("reasoning_details")
    texts += [text_of(details)] if isinstance(details, list) else []
    return next((text for text in texts if text), "")


def text_of(value: Any) -> str:
    """Return the text of a content value: a string, or a list of text parts."""
    if isinstance(value, str):
        return value
    parts = value if isinstance(value, list) else []
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def losses(reply: WireReply, declared: set[str]) -> Iterator[Loss]:
    """Yield the faults of ``reply`` to a request that declared tools of these names."""
    for call in reply.calls:
        yield from _call_losses(call, declared, cut=reply.finish_reason == CUT)
    yield from _id_losses(reply)
    if reply.role != "assistant":
        yield Loss("malformed replies", f"the role of the message is {_shown(reply.role)}, not assistant")
    if reply.prompt_tokens == 0:
        yield Loss("wrong counts of tokens", "the usage counts 0 prompt tokens")
    if reply.calls and reply.finish_reason not in (*CALLED, CUT):
        yield Loss("wrong finish reasons", f'finish_reason "{reply.finish_reason}" together with tool_calls')
    elif not reply.calls and reply.finish_reason in CALLED:
        yield Loss("wrong finish reasons", f'finish_reason "{reply.finish_reason}" without a tool call')
    elif reply.finish_reason is None:
        yield Loss("malformed replies", "there is no finish_reason")
    if parse_whole(reply.thinking, thinking=True).calls:
        yield Loss("calls left in the thinking", reply.thinking)
    if parse_whole(reply.content, thinking=False).calls or _bare(reply.content, declared):
        yield Loss("calls left in the content", reply.content)
    thought = reply.thinking.strip()
    if len(thought) >= REPEATED and thought in reply.content:
        yield Loss("thinking repeated in the content", reply.content)
    if _CONTROL.search(reply.content):
        yield Loss("control tokens left in the content", reply.content[-80:])


def _id_losses(reply: WireReply) -> Iterator[Loss]:
    """Yield the faults of the ids, by which a client's results refer to the calls."""
    ids = [call.get("id") for call in reply.calls]
    if not all(isinstance(id_, str) and id_ for id_ in ids):
        yield Loss("malformed replies", f"a tool call without an id: {_shown(ids)}")
    elif len(set(ids)) < len(ids):
        yield Loss("malformed replies", f"several tool calls with the same id: {_shown(ids)}")


def _call_losses(call: Mapping[str, Any], declared: set[str], *, cut: bool) -> Iterator[Loss]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        yield Loss("malformed replies", f"a tool call without a function and a name: {_shown(call)}")
        return
    name, arguments = function["name"], function.get("arguments")
    if name not in declared:
        yield Loss("undeclared tools", f'a call of "{name}", which was not declared')
    if not isinstance(arguments, str):
        yield Loss("arguments that are no JSON text", f"the arguments of {name} are {type(arguments).__name__}")
        return
    try:
        read = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        if _begins_with_json(arguments):
            yield Loss("arguments that are no JSON text", f"more than one JSON value in those of {name}: {arguments!r}")
        elif not cut:
            yield Loss("truncated arguments", f"the arguments of {name} are not complete JSON: {arguments[-80:]!r}")
        return
    if not isinstance(read, dict):
        yield Loss("arguments that are no JSON text", f"the arguments of {name} are the JSON of {type(read).__name__}")


def _begins_with_json(text: str) -> bool:
    """Return whether an object is followed by more text in ``text``."""
    try:
        value, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict)


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:120]


def _bare(text: str, declared: set[str]) -> bool:
    """Return whether a call of a declared tool is in ``text`` without its tags, outside code fences."""
    plain = _FENCE.sub("", text)
    if any(match.group(1) in declared for match in _BARE_XML.finditer(plain)):
        return True
    starts = [match.start() for match in re.finditer(r"^[ \t]*[\[{]", plain, re.MULTILINE)][:_BARE_TRIES]
    return any(_is_call(plain[start:].lstrip(" \t"), declared) for start in starts)


def _is_call(text: str, declared: set[str]) -> bool:
    try:
        value, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return False
    entries = value if isinstance(value, list) else [value]
    return any(
        isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and entry["name"] in declared
        and any(isinstance(entry.get(key), (dict, str)) for key in ("arguments", "parameters"))
        for entry in entries
    )


# Streams


def read_stream(events: Iterable[Mapping[str, Any]]) -> tuple[WireReply, list[Loss]]:
    """Assemble a streamed reply; return it with the faults of the stream itself.

    Exceptions of the event iterator are passed on: the caller handles broken connections.
    """
    wrong: list[Loss] = []
    thinking, content, finish, count, prompt_tokens = [], [], None, 0, None
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        count += 1
        choices = event.get("choices")
        counted = _prompt_tokens(event)
        prompt_tokens = prompt_tokens if counted is None else counted
        if not isinstance(choices, list):
            wrong.append(Loss("broken streams", f"an event without choices: {_shown(event)}"))
            continue
        choice = choices[0] if choices else {}  # the event with the usage has none
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(delta, dict):
            if choices:
                wrong.append(Loss("broken streams", f"an event without a delta: {_shown(event)}"))
            continue
        thinking.append(thinking_of(delta))
        content.append(text_of(delta.get("content")))
        if finish and (thinking[-1] or content[-1] or delta.get("tool_calls")):
            wrong.append(Loss("broken streams", f"a delta after the finish_reason: {_shown(delta)}"))
        for piece in delta.get("tool_calls") or []:
            wrong += _add_piece(calls, piece)
        finish = choice.get("finish_reason") or finish
    if not count:
        wrong.append(Loss("broken streams", "there is no event in the answer to a request that streams"))
    elif finish is None:
        wrong.append(Loss("broken streams", "the stream ends without a finish_reason"))
    if sorted(calls) != list(range(len(calls))):
        wrong.append(Loss("broken streams", f"the indices of the tool calls are {sorted(calls)}"))
    ordered = tuple(calls[index] for index in sorted(calls))
    reason = finish if isinstance(finish, str) else None
    reply = WireReply("".join(thinking), "".join(content), ordered, reason, prompt_tokens=prompt_tokens)
    return reply, wrong


def _add_piece(calls: dict[int, dict[str, Any]], piece: Any) -> Iterator[Loss]:
    index = piece.get("index") if isinstance(piece, dict) else None
    function = piece.get("function") if isinstance(piece, dict) else None
    if not isinstance(index, int) or not isinstance(function, dict):
        yield Loss("broken streams", f"a piece of a tool call without index or function: {_shown(piece)}")
        return
    arguments = function.get("arguments")
    if index in calls:
        id_, name = piece.get("id"), function.get("name")
        if id_ and id_ != calls[index]["id"]:
            yield Loss("broken streams", f"the index {index} for two tool calls: {_shown(piece)}")
            return
        if name:
            yield Loss("broken streams", f"a name in a later piece of tool call {index}: {_shown(piece)}")
    else:
        if not function.get("name"):
            yield Loss("broken streams", f"the first piece of tool call {index} has no name")
        calls[index] = {"id": piece.get("id"), "function": {"name": function.get("name") or "", "arguments": ""}}
    held = calls[index]["function"]
    if isinstance(arguments, str) and isinstance(held["arguments"], str):
        held["arguments"] += arguments
    elif arguments is not None:
        held["arguments"] = arguments
