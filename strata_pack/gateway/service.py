"""The gateway: answer a turn with a response in the format of its API, and count it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from strata_pack.gateway.admission import Admission
from strata_pack.gateway.api.responses.store import Store
from strata_pack.gateway.caller import Caller
from strata_pack.gateway.choices import Job, collect, stream
from strata_pack.gateway.engine import Attempt, Host, RunningModel
from strata_pack.gateway.failures import ApiError, bad_request, internal, unavailable
from strata_pack.gateway.metrics import Metrics, RequestRecord
from strata_pack.gateway.passed import LAST_PIECES, note_usage
from strata_pack.gateway.reply import Choice, Writer, data_event, encode
from strata_pack.gateway.settings import Served, Settings
from strata_pack.gateway.streams import EventStream, Outlet, ReplyStream, whole_events
from strata_pack.gateway.turn import Turn
from strata_pack.gateway.upstream_request import prepare_request

log = logging.getLogger("strata_pack.gateway")


class Gateway:
    """One served model and the state of its gateway. ``host``, if given, loads the model on demand."""

    def __init__(
        self, settings: Settings, engine: RunningModel | None, *, host: Host | None = None, store: Store | None = None
    ) -> None:
        limits = settings.limits
        self.settings = settings
        self.metrics = Metrics()
        self.admission = Admission(limits.parallel, limits.queue, limits.queue_seconds)
        self.store = Store(limits.store_bytes, limits.store_seconds) if store is None else store
        self.draining = False
        self.host = host
        self._engine = engine

    @property
    def engine(self) -> RunningModel:
        """The running server. Raises ``ApiError`` 503 if the model is not loaded."""
        if self._engine is None:
            raise unavailable("the model is not loaded")
        return self._engine

    @property
    def served(self) -> Served:
        """Facts of the served model, as far as known."""
        served = self._engine.served if self._engine else None
        return served or self.settings.served

    def held(self, attempt: Attempt | None = None) -> AbstractAsyncContextManager[RunningModel]:
        """Keep the model loaded for the block; waits until it is loaded."""
        return nullcontext(self.engine) if self.host is None else self._hosted(self.host, attempt)

    @asynccontextmanager
    async def _hosted(self, host: Host, attempt: Attempt | None) -> AsyncIterator[RunningModel]:
        async with host.hold() as engine:
            self._engine = engine
            if attempt is not None:
                attempt.engine = engine
            yield engine

    def _attempts(self) -> Iterator[Attempt]:
        """Yield attempts at a request: a second one, with a newly loaded server, if the first one died unreached."""
        first = Attempt(may_fail=self.host is not None)
        yield first
        if first.failed and self.host is not None:
            self.host.lose(first.engine)
            yield Attempt(may_fail=False)

    async def count(self, turn: Turn) -> int:
        """Return the number of tokens of the prompt of ``turn``."""
        tokens = 0
        for attempt in self._attempts():
            with attempt:
                async with self.held(attempt) as engine:
                    tokens = await engine.prompts.count(await engine.prompts.build(turn))
        return tokens

    async def answer(self, api: str, turn: Turn, writer: Writer, caller: Caller) -> ReplyStream | EventStream:
        """Return the response to ``turn``. The response raises errors that occur before a stream's first byte."""
        if turn.reasoning_budget is None and self.settings.reasoning_budget is not None:
            turn = replace(turn, reasoning_budget=self.settings.reasoning_budget)
        record = caller.record(api, stream=turn.stream)
        if turn.stream:
            outlet = Outlet()
            body = self._stream(turn, writer, record, outlet)
            return EventStream(body, writer.failure, ping_seconds=self.settings.limits.ping_seconds, outlet=outlet)
        choices: list[Choice] = []
        with self.counted(record):
            for attempt in self._attempts():
                with attempt:
                    async with self.held(attempt) as engine:
                        choices = await collect(await self._job(turn, engine, record))
        return ReplyStream(encode(writer.whole(choices)))

    async def _stream(
        self, turn: Turn, writer: Writer, record: RequestRecord, outlet: Outlet
    ) -> AsyncGenerator[bytes, None]:
        with self.counted(record):
            for attempt in self._attempts():
                with attempt:
                    async with self.held(attempt) as engine:
                        choices: list[Choice] = []
                        job = await self._job(turn, engine, record)
                        async with aclosing(stream(job, writer, choices, outlet)) as parts:
                            async for part in parts:
                                if part:
                                    attempt.begun = True
                                    yield part if outlet.begun else writer.start(record.prompt_tokens) + part
                                    outlet.begun = True
                        end = writer.end(choices)
                        yield end if outlet.begun else writer.start(record.prompt_tokens) + end

    async def _job(self, turn: Turn, engine: RunningModel, record: RequestRecord) -> Job:
        if turn.top_logprobs is not None and self.served.drafts:
            raise bad_request(
                "logprobs: this server drafts with the model's draft head, and llama.cpp returns none for drafted "
                "tokens; serve the model with --spec off",
                "logprobs",
            )
        request = await prepare_request(turn, engine)
        if request.left_out:
            for what in self.metrics.left_out(request.left_out):
                log.info("left out, because it is not supported: %s (logged once; /metrics counts each one)", what)
        return Job(request, record, self.settings, self.admission, self.metrics)

    @contextmanager
    def counted(self, record: RequestRecord) -> Iterator[None]:
        """Count ``record`` when the block ends in any way."""
        record.model = self.served.model
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

    async def pass_through(self, path: str, body: dict[str, Any], record: RequestRecord) -> ReplyStream | EventStream:
        """Return the upstream's response to ``body``, counted and queued like any other request."""

        async def parts() -> AsyncGenerator[bytes, None]:
            last: deque[bytes] = deque(maxlen=LAST_PIECES if record.stream else None)
            with self.counted(record):
                for attempt in self._attempts():
                    with attempt:
                        async with (
                            self.held(attempt) as engine,
                            self.admission.slot(record.client) as record.queued,
                            await engine.upstream.open(
                                path, body, until=self._until(), silent=not record.stream
                            ) as passed,
                            aclosing(passed.raw()) as pieces,
                        ):
                            async for piece in whole_events(pieces) if record.stream else pieces:
                                attempt.begun = True
                                record.first_token()
                                last.append(piece)
                                yield piece
                note_usage(record, last)

        if record.stream:
            return EventStream(
                parts(), lambda error: data_event(error.openai()), ping_seconds=self.settings.limits.ping_seconds
            )
        async with aclosing(parts()) as pieces:
            return ReplyStream(b"".join([piece async for piece in pieces]))

    def _until(self) -> float:
        """Return the deadline of a request that is sent now, in the event loop's time."""
        return asyncio.get_running_loop().time() + self.settings.limits.request_seconds

    async def status(self) -> dict[str, Any]:
        """Return the body of ``GET /v1/status``."""
        served = self.served
        sha256 = self._engine.prompts.template.sha256 if self._engine else None
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
        """Return whether the upstream reports that it can generate."""
        if self.host is not None and self.host.state != "loaded":
            return False
        try:
            return (await self.engine.upstream.json("GET", "/health")).get("status") == "ok"
        except ApiError:
            return False
