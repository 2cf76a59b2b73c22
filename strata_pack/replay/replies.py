"""Defines recorded replies as values, independent of the server or client that recorded them.

``reader.read_log`` is the entry point: it detects the file's format, splits it into records (``records``) and
recognises their formats (``shapes``, ``chunks``, ``text_lines``). No content of a log raises an exception.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strata_pack.parsing import holds_call_tag
from strata_pack.parsing.dialect import THINK_CLOSE, THINK_OPEN


@dataclass(frozen=True, slots=True)
class RecordedReply:
    """One reply of a log. ``tools`` is None if the log does not show what the request declared.

    ``suspect_values``: strings in its calls with a call's tag alone on a line.
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
        """Whether the reply has anything after its thinking: an answer or a call."""
        return bool(self.content or self.tool_calls)

    @property
    def text(self) -> str:
        """The generated text, as far as the log shows it, after a prompt that ends inside the thinking."""
        if not self.reasoning:
            return self.content
        return f"{self.reasoning}</think>\n\n{self.content}" if self.closed else self.reasoning


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not a reply, and the reason."""

    line: int
    why: str


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One reply found in a record, without its place in the log.

    ``calls`` are the arguments of each call that the server delivered, as JSON text or as a value. ``raw``: the content
    is the raw generated text including the thinking; ``thinks``: the prompt ends inside the thinking (None: unknown).
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
    """The first line of a reply that spans several records."""

    def reply(self, line: int) -> RecordedReply:
        """Return the reply at ``line``; inline thinking between tags is separated from the answer."""
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
"""Other vendors' names of OpenAI's finish reasons length, stop and tool_calls."""


def split_thinking(text: str, *, open_before: bool | None = False) -> tuple[str, str]:
    """Return (reasoning, content) of a text with inline thinking.

    ``open_before``: the prompt ends inside the thinking; None if unknown: then a ``</think>`` without a ``<think>``
    before it implies that.
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
