"""Parses a whole reply, or an asynchronous stream of deltas."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypedDict

from strata_pack.parsing.events import Counters, CountersDict, Event, ToolCall
from strata_pack.parsing.output_parser import OutputParser


class CallDict(TypedDict):
    """A call as JSON."""

    id: str
    name: str
    arguments: dict[str, Any]


class ReplyDict(TypedDict):
    """A ``Reply`` as JSON."""

    reasoning: str
    content: str
    calls: list[CallDict]
    counters: CountersDict


@dataclass(frozen=True, slots=True)
class Reply:
    """One parsed reply: the whole texts and the calls in order."""

    reasoning: str
    content: str
    calls: tuple[ToolCall, ...]
    counters: Counters

    def to_dict(self) -> ReplyDict:
        """Return the reply as plain JSON values."""
        return {
            "reasoning": self.reasoning,
            "content": self.content,
            "calls": [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in self.calls],
            "counters": self.counters.to_dict(),
        }


def collect(events: Iterable[Event], counters: Counters) -> Reply:
    """Return the reply that ``events`` make up."""
    texts: dict[str, list[str]] = {"reasoning": [], "content": []}
    calls: list[ToolCall] = []
    for event in events:
        if event.kind in texts:
            texts[event.kind].append(event.text)
        elif event.kind == "tool_call" and event.call is not None:
            calls.append(event.call)
    return Reply("".join(texts["reasoning"]), "".join(texts["content"]), tuple(calls), counters)


def parse(text: str, *, finish_reason: str | None = "stop", **options: Any) -> Reply:
    """Parse a whole reply. ``options`` are those of ``OutputParser``."""
    parser = OutputParser(**options)
    return collect([*parser.feed(text), *parser.finish(finish_reason)], parser.counters)


async def aparse(
    deltas: AsyncIterable[str],
    *,
    finish_reason: str | Callable[[], str | None] | None = "stop",
    parser: OutputParser | None = None,
    **options: Any,
) -> AsyncIterator[Event]:
    """Yield the events of a reply that arrives as ``deltas``.

    ``finish_reason`` may be a function that is called after the last delta: a server reports the reason only then. Pass
    a ``parser`` to read its counters afterwards, else ``options`` are those of ``OutputParser``.
    """
    if parser is None:
        parser = OutputParser(**options)
    async for delta in deltas:
        for event in parser.feed(delta):
            yield event
    for event in parser.finish(finish_reason() if callable(finish_reason) else finish_reason):
        yield event
