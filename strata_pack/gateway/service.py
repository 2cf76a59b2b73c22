"""The gateway itself: a turn goes in, a response in the words of its API comes out, and everything is counted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from strata_pack.gateway.admission import Admission
from strata_pack.gateway.api.responses.store import Store
from strata_pack.gateway.failures import ApiError, bad_request, internal, unavailable
from strata_pack.gateway.generation import Generation
from strata_pack.gateway.grammar.gbnf import answer_constraint, call_grammar
from strata_pack.gateway.metrics import COUNTS, Metrics, RequestRecord
from strata_pack.gateway.offload import offload, weight
from strata_pack.gateway.prompt import THINK_CLOSE, Prompt, Prompts
from strata_pack.gateway.reply import Choice, Logprobs, Writer, data_event, encode
from strata_pack.gateway.settings import Served, Settings
from strata_pack.gateway.streams import EventStream, ReplyStream, whole_events
from strata_pack.gateway.turn import GrammarAnswer, Turn
from strata_pack.gateway.upstream import Upstream
from strata_pack.parsing import CallFormat, Counters, Dialect, Event, OutputParser

log = logging.getLogger("strata_pack.gateway")


@dataclass(frozen=True)
class Caller:
    """Who asks: an id for this request, and the name under which the queue is fair (a key or an address).

    ``records`` gets what the metrics know of the request.
    """

    request_id: str
    client: str
    records: list[RequestRecord] = field(default_factory=list)

    def record(self, api: str, *, stream: bool) -> RequestRecord:
        """Return the record of this request."""
        record = RequestRecord(self.request_id, api, stream=stream, client=self.client)
        self.records.append(record)
        return record


@dataclass(frozen=True)
class _Asked:
    """A turn, its prompt, and the fields of ``/completion`` (grammar or schema) that hold for the answer."""

    turn: Turn
    prompt: Prompt
    constraint: dict[str, Any]


@dataclass(frozen=True)
class RunningModel:
    """What a gateway knows of a server that runs: how to ask it, and how to read what it generates."""

    upstream: Upstream
    prompts: Prompts
    call_format: CallFormat
    dialect: Dialect | str
    served: Served
    slots: int = 1


class Host(Protocol):
    """Who loads a model when it is needed."""

    @property
    def state(self) -> str:
        """ "unloaded", "loading", "loaded" or "leaving"."""

    def hold(self) -> AbstractAsyncContextManager[RunningModel]:
        """Keep the model loaded for the block."""


class Gateway:
    """One model, and all that lives as long as the gateway. ``host`` loads it when it is needed, if there is one."""

    def __init__(
        self,
        settings: Settings,
        upstream: Upstream | None,
        prompts: Prompts | None,
        *,
        call_format: CallFormat = "auto",
        dialect: Dialect | str = "qwen",
        host: Host | None = None,
        store: Store | None = None,
    ) -> None:
        limits = settings.limits
        self.settings = settings
        self._upstream = upstream
        self._prompts = prompts
        self.metrics = Metrics()
        self.admission = Admission(limits.parallel, limits.queue, limits.queue_seconds)
        self.store = Store(limits.store_bytes, limits.store_seconds) if store is None else store
        self.draining = False
        self.host = host
        self._call_format = call_format
        self._dialect = dialect

    @property
    def upstream(self) -> Upstream:
        """The server; raises ``ApiError`` 503 where the model is not loaded."""
        if self._upstream is None:
            raise unavailable("the model is not loaded")
        return self._upstream

    @property
    def prompts(self) -> Prompts:
        """What makes prompts; raises ``ApiError`` 503 where the model is not loaded."""
        if self._prompts is None:
            raise unavailable("the model is not loaded")
        return self._prompts

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Keep the model loaded for the block; waits until it is."""
        if self.host is None:
            yield
            return
        async with self.host.hold() as engine:
            self._upstream, self._prompts = engine.upstream, engine.prompts
            self._call_format, self._dialect = engine.call_format, engine.dialect
            self.settings = replace(self.settings, served=engine.served)
            yield

    async def count(self, turn: Turn) -> int:
        """Return the number of tokens of the prompt of ``turn``."""
        async with self.held():
            return await self.prompts.count(await self.prompts.build(turn))

    async def answer(self, api: str, turn: Turn, writer: Writer, caller: Caller) -> ReplyStream | EventStream:
        """Return the response to ``turn``. Errors before the first byte of a stream are raised by the response."""
        if turn.reasoning_budget is None:
            turn = replace(turn, reasoning_budget=self.settings.reasoning_budget)
        record = caller.record(api, stream=turn.stream)
        if turn.stream:
            body = self._stream(turn, writer, record)
            return EventStream(body, writer.failure, ping_seconds=self.settings.limits.ping_seconds)
        with self.counted(record):
            async with self.held():
                asked = await self._ask(turn)
                runs = [self._collect(asked, record, index) for index in range(turn.choices)]
                choices = [await runs[0]] if len(runs) == 1 else await _together(runs)
        return ReplyStream(encode(writer.whole(choices)))

    @contextmanager
    def counted(self, record: RequestRecord) -> Iterator[None]:
        """Add ``record`` up, whatever way the block ends."""
        record.model = self.settings.served.model
        self.metrics.start(record)
        outcome = "internal"
        try:
            yield
            outcome = "ok"
        except ApiError as error:
            outcome = error.kind
            error.counted = True
            raise
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "draining" if self.draining else "cancelled"
            raise
        except Exception as error:
            log.exception("request %s failed", record.id)
            failure = internal()
            failure.counted = True
            raise failure from error
        finally:
            self.metrics.end(record, outcome)

    # One choice

    async def _ask(self, turn: Turn) -> _Asked:
        """Return what is asked of the upstream for ``turn``, the same for all its choices."""
        if turn.top_logprobs is not None and self.settings.served.drafts:
            raise bad_request(
                "logprobs: this server drafts with the model's draft head, and then llama.cpp tells few of them; serve "
                "the model with --spec off",
                "logprobs",
            )
        constraint: dict[str, Any] = {}
        if isinstance(turn.answer, GrammarAnswer):
            constraint = {"grammar": turn.answer.grammar}
        elif turn.answer is not None:
            schema = turn.answer.schema
            constraint = await offload(weight(schema), lambda: answer_constraint(schema))
        if turn.tool_choice == "required":
            tools = [tool for tool in turn.tools if turn.tool_name in (None, tool["function"]["name"])]
            form: Literal["xml", "json"] = "json" if self._call_format == "json" else "xml"
            grammar = await offload(weight(tools), lambda: call_grammar(tools, form, parallel=turn.parallel_tool_calls))
            constraint = {"grammar": grammar}
        prompt = await self.prompts.build(turn)
        if left_out := (*turn.left_out, *prompt.left_out):
            self._note_left_out(left_out)
        return _Asked(turn, prompt, constraint)

    def _note_left_out(self, left_out: tuple[str, ...]) -> None:
        for what in self.metrics.left_out(left_out):
            log.info("left out, because it cannot be served here: %s (said once; /metrics counts them)", what)

    def _generation(self, asked: _Asked, index: int) -> Generation:
        turn, prompt = asked.turn, asked.prompt
        spent = prompt.thinking and turn.reasoning_budget == 0
        if spent:
            prompt = prompt.then(THINK_CLOSE)
        parser = OutputParser(
            thinking=prompt.thinking,
            tools=turn.parsed_tools,
            stream_tools=turn.stream,
            implicit_end=self.settings.implicit_end,
            call_format=self._call_format,
            dialect=self._dialect,
        )
        generation = Generation(
            turn,
            prompt,
            parser,
            upstream=self.upstream,
            prompts=self.prompts,
            constraint=asked.constraint,
            seed=None if turn.seed is None else (turn.seed + index) % (1 << 32),
        )
        generation.outcome.budget_closed = spent
        return generation

    def _close(self, generation: Generation, record: RequestRecord) -> Choice:
        """Add what ``generation`` counted to ``record``; return its choice, still without texts."""
        outcome, counters = generation.outcome, generation.parser.counters
        counts = _counts(counters)
        counts["budget_closed"] = int(outcome.budget_closed)
        for name in COUNTS:
            setattr(record, name, getattr(record, name) + counts[name])
        for reason, count in counters.rejected_candidates.items():
            record.rejected_candidates[reason] = record.rejected_candidates.get(reason, 0) + count
        usage = outcome.usage
        record.prompt_tokens = max(record.prompt_tokens, usage.prompt)
        record.cached_tokens = max(record.cached_tokens, usage.cached)
        record.tokens_read_again += usage.read_again
        record.completion_tokens += usage.completion
        record.reasoning_tokens += usage.reasoning
        record.tool_calls += generation.calls
        if counters.implicit_ends:
            self._tell(generation, counters, record)
        for name in counters.suspect_parameters:
            log.warning("[strata] the value of parameter %r holds a tag of a tool call (request %s)", name, record.id)
        extra = {
            **counts,
            "rejected_candidates": dict(counters.rejected_candidates),
            "tokens_read_again": usage.read_again,
            "reasoning_tokens": usage.reasoning,
        }
        return Choice(outcome, counters, extra)

    def _tell(self, generation: Generation, counters: Counters, record: RequestRecord) -> None:
        log.info(
            "[strata] implicit end of thinking: %d tool call(s) written inside the thinking without </think> "
            "were read as calls (request %s)",
            counters.implicit_calls,
            record.id,
        )
        self.metrics.implicit_end(record, generation.call_names, generation.reasoning_tail)

    def _until(self) -> float:
        """Return when a generation that begins now has to be over, in the loop's time."""
        return asyncio.get_running_loop().time() + self.settings.limits.request_seconds

    @asynccontextmanager
    async def _running(
        self, generation: Generation, record: RequestRecord
    ) -> AsyncIterator[AsyncGenerator[list[Event], None]]:
        """Hold a slot while the block reads the events of ``generation``; count it, also when it is cut off."""
        try:
            async with self.admission.slot(record.client) as waited:
                record.queued = max(record.queued, waited)
                generation.until = self._until()
                async with aclosing(generation.events()) as batches:
                    yield batches
        except BaseException:
            self._close(generation, record)
            raise

    async def _collect(self, asked: _Asked, record: RequestRecord, index: int) -> Choice:
        generation = self._generation(asked, index)
        reasoning: list[str] = []
        content: list[str] = []
        calls = []
        logprobs: list[dict[str, Any]] = []
        async with self._running(generation, record) as batches:
            async for events in batches:
                record.first_token(generation.outcome.usage.prompt)
                for event in events:
                    if event.kind == "reasoning":
                        if asked.turn.shows_reasoning:
                            reasoning.append(event.text)
                    elif event.kind == "content":
                        content.append(event.text)
                    elif event.kind == "tool_call" and event.call is not None:
                        calls.append(event.call)
                for entries in generation.take_logprobs() or ():
                    logprobs += entries
        choice = self._close(generation, record)
        record.finish_reason = choice.outcome.finish_reason
        choice.reasoning, choice.content, choice.calls = "".join(reasoning), "".join(content), calls
        choice.logprobs = None if asked.turn.top_logprobs is None else logprobs
        return choice

    # Streams

    async def _stream(self, turn: Turn, writer: Writer, record: RequestRecord) -> AsyncGenerator[bytes, None]:
        with self.counted(record):
            async with self.held():
                asked = await self._ask(turn)
                choices: list[Choice] = []
                single = turn.choices == 1
                parts = (self._single if single else self._several)(asked, writer, record, choices)
                begun = False
                async with aclosing(parts):
                    async for part in parts:
                        if part:
                            yield part if begun else writer.start(record.prompt_tokens) + part
                            begun = True
                end = writer.end(choices)
                yield end if begun else writer.start(record.prompt_tokens) + end

    async def _single(
        self, asked: _Asked, writer: Writer, record: RequestRecord, choices: list[Choice], index: int = 0
    ) -> AsyncGenerator[bytes, None]:  # fmt: skip
        generation = self._generation(asked, index)
        async with self._running(generation, record) as batches:
            async for events in batches:
                record.first_token(generation.outcome.usage.prompt)
                logprobs = generation.take_logprobs()
                if not asked.turn.shows_reasoning:
                    events, logprobs = _without_reasoning(events, logprobs)
                yield writer.delta(index, events, logprobs)
        choice = self._close(generation, record)
        record.finish_reason = choice.outcome.finish_reason
        choices.append(choice)
        yield writer.finish(index, choice)

    async def _several(
        self, asked: _Asked, writer: Writer, record: RequestRecord, choices: list[Choice]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the parts of all choices as they come. A small queue: a slow client slows the generations."""
        queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(maxsize=4)

        async def pump(index: int) -> None:
            try:
                async with aclosing(self._single(asked, writer, record, choices, index)) as parts:
                    async for part in parts:
                        await queue.put(part)
                await queue.put(None)
            except Exception as error:  # noqa: BLE001 - else the stream would wait for this choice for ever
                await queue.put(error)

        tasks = [asyncio.create_task(pump(index)) for index in range(asked.turn.choices)]
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

    # Other answers

    async def pass_through(self, path: str, body: dict[str, Any], record: RequestRecord) -> ReplyStream | EventStream:
        """Return the upstream's own answer to ``body``, counted and in the queue like any other."""

        async def parts() -> AsyncGenerator[bytes, None]:
            with self.counted(record):
                async with (
                    self.held(),
                    self.admission.slot(record.client) as record.queued,
                    await self.upstream.open(path, body, until=self._until(), silent=not record.stream) as stream,
                    aclosing(stream.raw()) as pieces,
                ):
                    async for piece in whole_events(pieces) if record.stream else pieces:
                        record.first_token()
                        yield piece

        if record.stream:
            return EventStream(
                parts(), lambda error: data_event(error.openai()), ping_seconds=self.settings.limits.ping_seconds
            )
        async with aclosing(parts()) as pieces:
            return ReplyStream(b"".join([piece async for piece in pieces]))

    async def status(self) -> dict[str, Any]:
        """Return the answer of ``GET /v1/status``."""
        served = self.settings.served
        sha256 = self._prompts.template.sha256 if self._prompts else None
        loaded = {} if self.host is None else {"state": self.host.state}
        return {
            "model": served.model,
            "quant": served.quant,
            "pack": served.pack,
            "template": {
                "id": served.template_id,
                "status": served.template_status,
                "sha256": sha256,
            },
            **loaded,
            "runtime": served.runtime,
            "uptime": time.time() - self.metrics.started,
            "slots": {"all": self.admission.parallel, "busy": self.admission.busy},
            "waiting": self.admission.waiting,
            "draining": self.draining,
            "upstream_ready": await self.ready(),
        }

    async def ready(self) -> bool:
        """Whether the upstream says that it can generate."""
        if self.host is not None and self.host.state != "loaded":
            return False
        try:
            return (await self.upstream.json("GET", "/health")).get("status") == "ok"
        except ApiError:
            return False


def _counts(counters: Counters) -> dict[str, int]:
    return {
        "implicit_reasoning_ends": counters.implicit_ends,
        "implicit_calls": counters.implicit_calls,
        "stranded_calls": counters.stranded_calls,
        "unfinished_calls": counters.unfinished_calls,
        "undeclared_calls": counters.undeclared_calls,
        "coercion_failures": counters.coercion_failures,
        "dropped_text": counters.dropped_text,
        "suspect_values": counters.suspect_values,
        "ended_inside_thinking": int(counters.ended_inside_thinking),
    }


def _without_reasoning(events: list[Event], logprobs: Logprobs) -> tuple[list[Event], Logprobs]:
    """Return the events that are no thinking, and their log probabilities."""
    shown = [number for number, event in enumerate(events) if event.kind != "reasoning"]
    return [events[number] for number in shown], logprobs and [logprobs[number] for number in shown]


async def _together(runs: list[Any]) -> list[Choice]:
    """Run all; the first failure stops the others."""
    tasks = [asyncio.ensure_future(run) for run in runs]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await _cancel(tasks)


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
