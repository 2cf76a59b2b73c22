"""Defines recorded replies as values, whatever server or client wrote them down.

``reader.read_log`` is the way in: it opens a file by its content, cuts it into records (``records``) and knows their
shapes (``shapes``, ``chunks``, ``text_lines``). Nothing in a log raises.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strata_pack.parsing import holds_call_tag

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class RecordedReply:
    """One reply of a log. ``tools`` is None where the log does not say what the request declared.

    ``suspect_values``: strings in its calls that hold a tag of a call on a line of its own.
    """

    line: int
    model: str
    reasoning: str
    content: str
    tool_calls: int
    finish_reason: str | None
    tools: tuple[Any, ...] | None
    suspect_values: int = 0

    @property
    def closed(self) -> bool:
        """Whether the reply got out of its thinking: it has an answer or a call."""
        return bool(self.content or self.tool_calls)

    @property
    def text(self) -> str:
        """The text the model generated, as far as the log shows it, after a prompt that left the thinking open."""
        if not self.reasoning:
            return self.content
        return f"{self.reasoning}</think>\n\n{self.content}" if self.closed else self.reasoning


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that holds no reply, and why."""

    line: int
    why: str


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """What a shape finds in a record: one reply, without its place in the log.

    ``calls`` are the arguments of each call of the server, as JSON text or as a value. ``raw``: the content is what the
    model generated, thinking and all; ``thinks``: its prompt left the thinking open (None: not known).
    """

    reasoning: str = ""
    content: str = ""
    calls: tuple[Any, ...] = ()
    finish_reason: str | None = None
    model: str | None = None
    tools: tuple[Any, ...] | None = None
    raw: bool = False
    thinks: bool | None = None
    line: int | None = None
    """Where a reply begins that spreads over several records."""

    def reply(self, line: int) -> RecordedReply:
        """Return the reply at ``line``; thinking written inline, between its tags, is separated from the answer."""
        reasoning, content = self.reasoning, self.content
        if not reasoning:
            reasoning, content = split_thinking(content, open_before=self.thinks if self.raw else False)
        return RecordedReply(
            line if self.line is None else self.line,
            self.model or "unknown",
            reasoning,
            content,
            len(self.calls),
            FINISH_REASONS.get(self.finish_reason or "", self.finish_reason),
            self.tools,
            sum(map(_suspect_values, self.calls)),
        )


FINISH_REASONS: Mapping[str, str] = {
    **dict.fromkeys(("max_tokens", "max_output_tokens", "limit", "MAX_TOKENS", "incomplete", "load"), "length"),
    **dict.fromkeys(("end_turn", "stop_sequence", "eos", "word", "completed", "STOP", "EOS"), "stop"),
    **dict.fromkeys(("tool_use", "tool-calls", "function_call"), "tool_calls"),
}
"""What makers call the ends that OpenAI calls length, stop and tool_calls."""


def split_thinking(text: str, *, open_before: bool | None = False) -> tuple[str, str]:
    """Return (reasoning, content) of a text with its thinking inline.

    ``open_before``: the prompt left the thinking open; None if that is not known, and then a ``</think>`` without a
    ``<think>`` before it says so.
    """
    start = text.lstrip()
    if start.startswith(THINK_OPEN):
        text, open_before = start.removeprefix(THINK_OPEN), True
    elif open_before is None:
        end = text.find(THINK_CLOSE)
        open_before = end >= 0 and THINK_OPEN not in text[:end]
    if not open_before:
        return "", text
    reasoning, _, content = text.partition(THINK_CLOSE)
    return reasoning.removeprefix("\n"), content.lstrip("\n")


def text_of(value: Any) -> str:
    """Return the text of a content: a string, or parts with texts."""
    if isinstance(value, list):
        return "".join(text_of(part.get("text")) for part in value if isinstance(part, dict))
    return value if isinstance(value, str) else ""


def _suspect_values(arguments: Any) -> int:
    if isinstance(arguments, str):
        if "<" not in arguments:
            return 0
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return 0
    values = arguments.values() if isinstance(arguments, dict) else ()
    return sum(holds_call_tag(value) for value in values if isinstance(value, str))
