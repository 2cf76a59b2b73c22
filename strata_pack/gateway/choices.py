"""Generate the choices of one request, each in a slot, and write them as one reply or as parts of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from strata_pack.gateway.accounting import close_choice
from strata_pack.gateway.admission import Admission
from strata_pack.gateway.fast_path import FastPath, Frame
from strata_pack.gateway.generation import Generation
from strata_pack.gateway.metrics import Metrics, RequestRecord
from strata_pack.gateway.reply import Choice, Logprobs, Writer
from strata_pack.gateway.settings import Settings
from strata_pack.gateway.streams import Outlet
from strata_pack.gateway.upstream_request import UpstreamRequest, new_generation
from strata_pack.parsing import Event, EventKind, ToolCall

QUEUED_PARTS = 4
"""Queue length for parts of several choices: short, so that a slow client slows the generations down."""


@dataclass(frozen=True)
class Job:
    """One running request, with its metrics record."""

    request: UpstreamRequest
    record: RequestRecord
    settings: Settings
    admission: Admission
    metrics: Metrics


async def collect(job: Job) -> list[Choice]:
    """Return all finished choices; the first failure stops the others."""
    if job.request.turn.choices == 1:
        return [await _collected(job, 0)]
    tasks = [asyncio.create_task(_collected(job, index)) for index in range(job.request.turn.choices)]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await _cancel(tasks)


def stream(job: Job, writer: Writer, choices: list[Choice], outlet: Outlet) -> AsyncGenerator[bytes, None]:
    """Yield the parts of all choices as ``writer`` writes them, except text sent directly through ``outlet``.

    Finished choices are added to ``choices``.
    """
    if job.request.turn.choices > 1:
        return _together(job, writer, choices)
    return _parts(job, writer, choices, 0, outlet)


@asynccontextmanager
async def _running(
    job: Job, generation: Generation, way: FastPath | None
) -> AsyncIterator[AsyncGenerator[list[Event], None]]:
    """Hold a slot while the block reads the events of ``generation``; count it, also when it is aborted."""
    try:
        async with job.admission.slot(job.record.client) as waited:
            job.record.queued = max(job.record.queued, waited)
            generation.until = asyncio.get_running_loop().time() + job.settings.limits.request_seconds
            async with aclosing(generation.events(way)) as batches:
                yield batches
    except BaseException:
        close_choice(generation, job.record, job.metrics)
        raise


async def _collected(job: Job, index: int) -> Choice:
    turn, record = job.request.turn, job.record
    generation = new_generation(job.request, index, job.settings.implicit_end)
    reasoning: list[str] = []
    content: list[str] = []
    calls: list[ToolCall] = []
    logprobs: list[dict[str, Any]] = []

    def add(events: list[Event]) -> None:
        record.first_token(generation.outcome.usage.prompt)
        for event in events:
            if event.kind == "reasoning":
                if turn.shows_reasoning:
                    reasoning.append(event.text)
            elif event.kind == "content":
                content.append(event.text)
            elif event.kind == "tool_call" and event.call is not None:
                calls.append(event.call)
        for entries in generation.take_logprobs() or ():
            logprobs.extend(entries)

    way = FastPath(lambda: True, add, lambda _: None, lambda _: False, lambda *_: None)
    async with _running(job, generation, way) as batches:
        async for events in batches:
            add(events)
    choice = close_choice(generation, record, job.metrics)
    record.finish_reason = choice.outcome.finish_reason
    choice.reasoning, choice.content, choice.calls = "".join(reasoning), "".join(content), calls
    choice.logprobs = None if turn.top_logprobs is None else logprobs
    return choice


async def _parts(
    job: Job, writer: Writer, choices: list[Choice], index: int, outlet: Outlet | None = None
) -> AsyncGenerator[bytes, None]:
    """Yield the parts of one choice, except text sent directly through ``outlet``, and add it to ``choices``."""
    record = job.record
    shows_reasoning = job.request.turn.shows_reasoning
    generation = new_generation(job.request, index, job.settings.implicit_end)

    def part(events: list[Event]) -> bytes:
        logprobs = generation.take_logprobs()
        if not shows_reasoning:
            events, logprobs = _without_reasoning(events, logprobs)
        return writer.delta(index, events, logprobs, generation.take_report())

    way = None if outlet is None else _fast_path(writer, index, outlet, part, shows_reasoning=shows_reasoning)
    async with _running(job, generation, way) as batches:
        async for events in batches:
            if events:
                record.first_token(generation.outcome.usage.prompt)
            yield part(events)
    choice = close_choice(generation, record, job.metrics)
    record.finish_reason = choice.outcome.finish_reason
    choices.append(choice)
    yield writer.finish(index, choice)


def _fast_path(
    writer: Writer, index: int, outlet: Outlet, part: Callable[[list[Event]], bytes], *, shows_reasoning: bool
) -> FastPath:
    """Return the fast path of choice ``index`` to the client; ``part`` writes its events."""

    def deliver(events: list[Event]) -> None:
        if data := part(events):
            outlet.write(data)

    def frame(kind: EventKind) -> Frame | None:
        return writer.frame(index, kind) if shows_reasoning or kind != "reasoning" else None

    return FastPath(outlet.is_open, deliver, frame, outlet.write, writer.written)


async def _together(job: Job, writer: Writer, choices: list[Choice]) -> AsyncGenerator[bytes, None]:
    """Yield the parts of all choices as they come."""
    queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(maxsize=QUEUED_PARTS)

    async def pump(index: int) -> None:
        try:
            async with aclosing(_parts(job, writer, choices, index)) as parts:
                async for part in parts:
                    await queue.put(part)
            await queue.put(None)
        except Exception as error:  # noqa: BLE001 - else the stream would wait for this choice for ever
            await queue.put(error)

    tasks = [asyncio.create_task(pump(index)) for index in range(job.request.turn.choices)]
    try:
        running = len(tasks)
        while running:
            part = await queue.get()
            if isinstance(part, Exception):
                raise part
            if part is None:
                running -= 1
            else:
                yield part
    finally:
        await _cancel(tasks)


def _without_reasoning(events: list[Event], logprobs: Logprobs) -> tuple[list[Event], Logprobs]:
    """Return the events without reasoning, and their log probabilities."""
    shown = [number for number, event in enumerate(events) if event.kind != "reasoning"]
    return [events[number] for number in shown], logprobs and [logprobs[number] for number in shown]


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
