"""OpenAI-compatible servers that say what a script says: good ones, and ones that lose calls in every known way."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.llama.http_fault import faulty_server

Body = Mapping[str, Any]
Message = dict[str, Any]
CUT = "the connection ends here"


def call(name: str = "list_jobs", arguments: Any = '{"queue": "main"}', **extra: Any) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}, **extra}


def delivered(*calls: dict[str, Any], **message: Any) -> Message:
    return {"role": "assistant", "content": None, "tool_calls": list(calls) or [call()], **message}


def text(content: Any, **message: Any) -> Message:
    return {"role": "assistant", "content": content, **message}


@dataclass(frozen=True)
class Script:
    """What a server does. ``message`` answers requests with tools; ``finish`` is its finish reason, None for the right
    one; ``status`` refuses by body: 0 to go on; ``stream`` makes the events of a streamed reply, ``stream_bytes``
    changes its bytes, of which ``stream_piece`` are sent at a time."""

    message: Message = field(default_factory=delivered)
    finish: str | None = None
    status: Callable[[Body], int] = lambda body: 0  # noqa: ARG005
    stream: Callable[[Message, str], list[Any]] | None = None
    plain: Callable[[str], str] = lambda user: user.rpartition(" ")[2]
    required: bool = True
    grammar: Callable[[str], Message] | None = None
    with_tools: bool = True
    raw: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    models: int = 200
    stream_type: str = "text/event-stream"
    stream_end: bytes = b"data: [DONE]\n\n"
    usage: Any = field(default_factory=lambda: {"prompt_tokens": 7})
    stream_bytes: Callable[[bytes], bytes] = bytes
    stream_piece: int = 1 << 20


def serve(script: Script) -> AbstractContextManager[tuple[str, list[str]]]:
    """Return a context manager that yields the URL of a server that follows ``script``."""
    return faulty_server(lambda handler, _number: _answer(handler, script))


def _answer(handler: BaseHTTPRequestHandler, script: Script) -> None:
    if handler.command == "GET":
        ok = script.models == 200
        _send(handler, script.models, {"data": [{"id": "some-model"}]} if ok else {"error": {"message": "no"}}, script)
        return
    body = handler.asked_body  # type: ignore[attr-defined]
    status = script.status(body)
    if status:
        _send(handler, status, {"error": {"message": f"refused with {status}"}}, script)
    elif "grammar" in body and (script.grammar is None or ("tools" in body and not script.with_tools)):
        _send(handler, 400, {"error": {"message": "unknown field grammar"}}, script)
    elif body.get("stream"):
        _stream(handler, script, *_reply(script, body))
    elif script.raw is not None:
        _send_bytes(handler, 200, script.raw, script)
    else:
        message, finish = _reply(script, body)
        choice = {"index": 0, "message": message, "finish_reason": finish}
        _send(handler, 200, {"choices": [choice], "usage": script.usage}, script)


def _reply(script: Script, body: Body) -> tuple[Message, str | None]:
    user = body["messages"][-1]["content"]
    if "grammar" in body:
        assert script.grammar is not None
        forced = json.loads(body["grammar"].removeprefix("root ::= "))
        message = script.grammar(forced)
    elif "tools" not in body:
        message = text(script.plain(user))
    elif body.get("tool_choice") == "required":
        message = delivered(call("pick_queue", '{"queue": "nightly"}')) if script.required else text("I pick main.")
    else:
        message = script.message
    right = "tool_calls" if message.get("tool_calls") else "stop"
    played = "tools" in body and "grammar" not in body and body.get("tool_choice") != "required"
    finish = script.finish if script.finish is not None and played else right
    return message, None if finish == "none" else finish


def events_of(message: Message, finish: str | None) -> list[Any]:
    """The events of a good stream: texts and arguments in two pieces, the reason, then the usage."""
    events: list[Any] = [event({"role": "assistant", "content": ""})]
    for key in ("reasoning_content", "reasoning", "thinking", "content"):
        value = message.get(key)
        if isinstance(value, str):
            events += [event({key: value[: len(value) // 2]}), event({key: value[len(value) // 2 :]})]
    for index, entry in enumerate(message.get("tool_calls") or []):
        function = entry["function"]
        arguments = function["arguments"]
        head, tail = (arguments[:4], arguments[4:]) if isinstance(arguments, str) else (arguments, "")
        first = {"index": index, "id": entry.get("id"), "type": "function"}
        events.append(event({"tool_calls": [{**first, "function": {**function, "arguments": head}}]}))
        if tail:
            events.append(event({"tool_calls": [{"index": index, "function": {"arguments": tail}}]}))
    return [*events, event({}, finish), {"choices": [], "usage": {"prompt_tokens": 7}}]


def event(delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": dict(delta), "finish_reason": finish}]}


def _stream(handler: BaseHTTPRequestHandler, script: Script, message: Message, finish: str | None) -> None:
    events = events_of(message, finish) if script.stream is None else script.stream(message, str(finish))
    handler.send_response(200)
    handler.send_header("Content-Type", script.stream_type)
    if CUT in events:
        handler.send_header("Content-Length", "100000")
    handler.end_headers()
    for event in events:
        if event == CUT:
            handler.close_connection = True
            return
        line = event if isinstance(event, str) else f"data: {json.dumps(event)}"
        _write(handler, f"{line}\n\n".encode(), script)
    _write(handler, script.stream_end, script)


def _write(handler: BaseHTTPRequestHandler, data: bytes, script: Script) -> None:
    data = script.stream_bytes(data)
    for start in range(0, len(data), script.stream_piece):
        handler.wfile.write(data[start : start + script.stream_piece])


def _send(handler: BaseHTTPRequestHandler, status: int, value: Any, script: Script) -> None:
    _send_bytes(handler, status, json.dumps(value).encode(), script)


def _send_bytes(handler: BaseHTTPRequestHandler, status: int, data: bytes, script: Script) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(data)))
    for name, value in script.headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data)
