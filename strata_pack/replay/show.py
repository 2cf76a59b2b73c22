"""Parses texts and recorded replies to plain values, for ``strata-pack parse``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strata_pack.errors import BadInput
from strata_pack.files import read_bytes, read_json
from strata_pack.parsing import OutputParser
from strata_pack.parsing.events import Event
from strata_pack.parsing.whole import collect
from strata_pack.replay.reader import read_log
from strata_pack.replay.replies import BadLine

MAX_TEXT = 256 << 20
"""Maximum bytes of one text."""
MAX_TOOLS = 16 << 20
"""Maximum bytes of a file with tools."""

LOG_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson")


def _read(path: Path, limit: int) -> str:
    if str(path) == "-":
        data = sys.stdin.buffer.read(limit + 1)
        if len(data) > limit:
            raise BadInput(f"is larger than {limit} bytes", where="standard input")
    else:
        data = read_bytes(path, limit)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"is not UTF-8 (byte {error.start})", where=path) from None


def read_tools_file(path: Path) -> list[Any]:
    """Return the tools in a JSON file: a list, or a request with tools. ``BadInput`` for anything else."""
    value = read_json(path, MAX_TOOLS)
    tools = value.get("tools") if isinstance(value, dict) else value
    if not isinstance(tools, list):
        raise BadInput("has no list of tools", where=path, remedy="give a list, or an object with `tools`")
    return tools


def event_dict(event: Event) -> dict[str, Any]:
    """Return an event as plain JSON values."""
    shown: dict[str, Any] = {"kind": event.kind}
    if event.kind in ("reasoning", "content", "tool_args"):
        shown["text"] = event.text
    if event.call is not None:
        shown["id"] = event.call.id
        if event.kind != "tool_args":
            shown["name"] = event.call.name
        if event.kind == "tool_call":
            shown["arguments"] = event.call.arguments
    return shown


def parse_text(text: str, *, finish_reason: str | None, delta: int, **options: Any) -> dict[str, Any]:
    """Parse one text in deltas of ``delta`` characters (0: whole); return summary, counters and events."""
    parser = OutputParser(**options)
    size = delta or len(text) or 1
    events = [event for start in range(0, len(text), size) for event in parser.feed(text[start : start + size])]
    events += parser.finish(finish_reason)
    return {**collect(events, parser.counters).to_dict(), "events": [event_dict(event) for event in events]}


def parse_file(
    path: Path, *, tools: list[Any] | None, finish_reason: str, delta: int, thinking: bool, **options: Any
) -> Iterator[dict[str, Any]]:
    """Parse a text (``-``: standard input) or, depending on the suffix, a log of replies; yield the results.

    For a reply of a log, finish reason and tools (if present) come from the log, and the reply begins in the thinking
    if it has any. Lines without a reply are yielded as ``{"line": ..., "error": ...}``.
    """
    if not path.name.endswith(LOG_SUFFIXES):
        text = _read(path, MAX_TEXT)
        yield parse_text(text, finish_reason=finish_reason, delta=delta, thinking=thinking, tools=tools, **options)
        return
    for reply in read_log(path):
        if isinstance(reply, BadLine):
            yield {"line": reply.line, "error": reply.why}
            continue
        known = reply.tools if tools is None else tools
        parsed = parse_text(
            reply.text,
            finish_reason=reply.finish_reason,
            delta=delta,
            thinking=bool(reply.reasoning),
            tools=known,
            **options,
        )
        yield {"line": reply.line, "model": reply.model, "tool_calls_of_the_server": reply.tool_calls, **parsed}
