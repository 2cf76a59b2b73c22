"""Counts the stranded calls of recorded replies, and the calls that each policy would recover.

Replies are processed one at a time, so a log of any size is read in constant memory. Only a reply whose thinking
contains ``<tool_call>`` is parsed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, get_args

from strata_pack.errors import BadInput
from strata_pack.parsing.machine import CallFormat, ImplicitEnd
from strata_pack.parsing.whole import parse
from strata_pack.progress import Progress
from strata_pack.replay.drift import drifted_calls
from strata_pack.replay.reader import read_log
from strata_pack.replay.replies import BadLine, RecordedReply
from strata_pack.replay.shapes import KNOWN

POLICIES: tuple[ImplicitEnd, ...] = get_args(ImplicitEnd)
SNIPPET = 160
"""Characters of an example's text, from its first call on."""


@dataclass(frozen=True, slots=True)
class Example:
    """One reply with stranded calls: its place in the log, the call, and the text from there on."""

    log: str
    line: int
    calls: tuple[str, ...]
    recovered_by: tuple[str, ...]
    text: str


@dataclass(slots=True)
class ModelReplay:
    """The replies of one model.

    ``stranded_calls`` are complete calls inside the thinking; ``recovered`` maps a policy to the number of them that
    the parser would deliver; ``calls_in_content`` are complete calls that the server left in the answer's text;
    ``suspect_values`` are strings in delivered or recovered calls with a call's tag alone on a line; ``drifted_calls``
    are calls in the model's text that are not in canonical form.
    """

    turns: int = 0
    ended_in_thinking: int = 0
    cut: int = 0
    turns_with_stranded_calls: int = 0
    stranded_calls: int = 0
    recovered: dict[str, int] = field(default_factory=lambda: dict.fromkeys(POLICIES, 0))
    calls_in_content: int = 0
    suspect_values: int = 0
    drifted_calls: int = 0
    examples: list[Example] = field(default_factory=list)


class ExampleDict(TypedDict):
    """An ``Example`` as JSON."""

    log: str
    line: int
    calls: list[str]
    recovered_by: list[str]
    text: str


class ModelReplayDict(TypedDict):
    """A ``ModelReplay`` as JSON: its fields."""

    turns: int
    ended_in_thinking: int
    cut: int
    turns_with_stranded_calls: int
    stranded_calls: int
    recovered: dict[str, int]
    calls_in_content: int
    suspect_values: int
    drifted_calls: int
    examples: list[ExampleDict]


class ReplayDict(TypedDict):
    """A ``Replay`` as JSON; ``models`` by name."""

    models: dict[str, ModelReplayDict]
    unreadable_lines: int
    first_unreadable: str | None


@dataclass(slots=True)
class Replay:
    """The result for logs, by model, and the lines that are not replies."""

    models: dict[str, ModelReplay] = field(default_factory=dict)
    unreadable_lines: int = 0
    first_unreadable: str | None = None

    def to_dict(self) -> ReplayDict:
        """Return the result as plain JSON values."""
        return {
            "models": {
                name: {
                    "turns": model.turns,
                    "ended_in_thinking": model.ended_in_thinking,
                    "cut": model.cut,
                    "turns_with_stranded_calls": model.turns_with_stranded_calls,
                    "stranded_calls": model.stranded_calls,
                    "recovered": model.recovered,
                    "calls_in_content": model.calls_in_content,
                    "suspect_values": model.suspect_values,
                    "drifted_calls": model.drifted_calls,
                    "examples": [
                        {
                            "log": example.log,
                            "line": example.line,
                            "calls": list(example.calls),
                            "recovered_by": list(example.recovered_by),
                            "text": example.text,
                        }
                        for example in model.examples
                    ],
                }
                for name, model in sorted(self.models.items())
            },
            "unreadable_lines": self.unreadable_lines,
            "first_unreadable": self.first_unreadable,
        }


def add_reply(model: ModelReplay, reply: RecordedReply, log: str, *, call_format: CallFormat, examples: int) -> None:
    """Count ``reply``, and keep it as an example unless there are enough."""
    model.turns += 1
    model.ended_in_thinking += bool(reply.reasoning) and not reply.closed
    model.suspect_values += reply.suspect_values
    model.cut += reply.finish_reason == "length"
    options: dict[str, Any] = {"tools": reply.tools, "call_format": call_format, "finish_reason": reply.finish_reason}
    if "<tool_call>" in reply.content:
        answer = parse(reply.content, thinking=False, **options)
        model.calls_in_content += len(answer.calls)
        model.suspect_values += answer.counters.suspect_values
        model.drifted_calls += drifted_calls(reply.content, len(answer.calls))
    if "<tool_call>" not in reply.reasoning:
        return
    whole = parse(reply.text, implicit_end="off", **options)
    if not whole.counters.stranded_calls:
        return
    model.turns_with_stranded_calls += 1
    model.stranded_calls += whole.counters.stranded_calls
    recovered_by: list[str] = []
    names: tuple[str, ...] = ()
    for policy in POLICIES:
        parsed = parse(reply.text, implicit_end=policy, **options)
        saved = parsed.counters.implicit_calls
        if policy == "any":
            model.drifted_calls += drifted_calls(reply.reasoning, saved)
        model.recovered[policy] += saved
        if saved:
            recovered_by.append(policy)
            names = names or tuple(call.name for call in parsed.calls[:saved])
    if len(model.examples) < examples:
        start = reply.reasoning.find("<tool_call>")
        text = reply.reasoning[start : start + SNIPPET]
        model.examples.append(Example(log, reply.line, names, tuple(recovered_by), text))


def replay_log(
    logs: Iterable[Path],
    *,
    call_format: CallFormat = "auto",
    examples: int = 3,
    progress: Progress | None = None,
) -> Replay:
    """Read ``logs`` and return how the parser would have read their replies.

    ``examples``: number of replies with stranded calls to keep for each model. Raises as ``read_log``, and ``BadInput``
    if the logs have no reply.
    """
    result, paths = Replay(), list(logs)
    for path in paths:
        for reply in read_log(path, progress):
            if isinstance(reply, BadLine):
                result.unreadable_lines += 1
                result.first_unreadable = result.first_unreadable or f"{path}:{reply.line} {reply.why}"
            else:
                model = result.models.setdefault(reply.model, ModelReplay())
                add_reply(model, reply, str(path), call_format=call_format, examples=examples)
    if not result.models:
        first = f" (the first: {result.first_unreadable})" if result.first_unreadable else ""
        raise BadInput(f"contains no reply{first}", where=", ".join(map(str, paths)), remedy=f"known formats: {KNOWN}")
    return result
