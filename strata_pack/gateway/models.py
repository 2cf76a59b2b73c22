"""Several models on one machine: loaded on demand, unloaded when idle or to make room for another.

A request *holds* its model while it runs. A request for a model that is not loaded waits until it is; if there
is no room, the least recently used model is unloaded: it takes no new requests (they wait), running requests
on it finish, and its server is stopped. Models are loaded one at a time, in the order of the requests.
The next request restarts a server that has died.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Literal, Protocol

from strata_pack.errors import StrataError
from strata_pack.gateway.engine import RunningModel
from strata_pack.gateway.failures import ApiError, shutting_down

log = logging.getLogger("strata_pack.gateway")

FAILED_SECONDS = 5.0
"""Seconds until a model that did not load is tried again."""

ModelState = Literal["unloaded", "loading", "loaded", "leaving"]


class Server(Protocol):
    """A running llama.cpp server."""

    @property
    def running(self) -> bool:
        """Whether its process runs."""

    def stop(self) -> None:
        """Stop it and wait for its end."""


@dataclass(frozen=True)
class Loaded:
    """A loaded model."""

    server: Server
    engine: RunningModel


class NoMemory(StrataError):
    """A model did not load because there was not enough memory."""


class LoadingStopped(StrataError):
    """The gateway is shutting down, so the model is not loaded."""


Load = Callable[[], Loaded]
"""Starts a server and reads its properties; runs in a thread. Raises ``StrataError``, ``NoMemory`` for lack of
memory, ``LoadingStopped`` at shutdown."""


class Models:
    """The models of one gateway; at most ``most`` are loaded at a time.

    ``idle_seconds``: seconds without a request after which a model is unloaded, ``None`` for never.
    """

    def __init__(self, most: int, idle_seconds: float | None = None) -> None:
        self.all: list[ServedModel] = []
        self._most = most
        self._idle_seconds = idle_seconds
        self._loading = asyncio.Lock()

    def add(self, name: str, load: Load) -> ServedModel:
        """Add a model that is not loaded yet."""
        model = ServedModel(name, load, self)
        self.all.append(model)
        return model

    async def close(self) -> None:
        """Stop all servers, including one that is starting."""
        async with self._loading:
            for model in self.all:
                await model.unload()

    # What a model asks

    async def load(self, model: ServedModel) -> None:
        """Load ``model``, unloading others if necessary, and wake the waiting requests."""
        async with self._loading:
            try:
                if not model.is_usable:
                    await self._make(model)
            except LoadingStopped:
                model.serve(shutting_down())
            except StrataError as error:
                log.error("model %s: does not load: %s", model.name, error)
                model.fail(error.problem)
            except Exception:  # otherwise the waiting requests would wait for ever
                log.exception("model %s: does not load", model.name)
                model.fail("the gateway failed")
            else:
                model.serve()

    async def _make(self, model: ServedModel) -> None:
        await model.unload()  # clean up after a server that died
        while len(self._loaded_but(model)) >= self._most:
            await self._push_out(model)
        while True:
            try:
                return await model.start()
            except NoMemory as error:
                if not self._loaded_but(model):
                    raise
                log.info("model %s: %s; another model is unloaded first", model.name, error)
                await self._push_out(model)

    def idle_since(self, model: ServedModel) -> None:
        """Start the idle time of ``model``."""
        if self._idle_seconds is not None:
            asyncio.get_running_loop().call_later(self._idle_seconds, self._check_idle, model)

    def _check_idle(self, model: ServedModel) -> None:
        assert self._idle_seconds is not None
        if model.state == "loaded" and not model.users and time.monotonic() - model.used >= self._idle_seconds * 0.99:
            model.task = asyncio.get_running_loop().create_task(self._unload_idle(model))

    async def _unload_idle(self, model: ServedModel) -> None:
        async with self._loading:
            if model.state == "loaded" and not model.users:
                log.info("model %s: unloaded after %g s without a request", model.name, self._idle_seconds)
                await model.unload()

    def _loaded_but(self, model: ServedModel) -> list[ServedModel]:
        return [other for other in self.all if other is not model and other.state in ("loaded", "leaving")]

    async def _push_out(self, model: ServedModel) -> None:
        """Unload the least recently used model, preferring one without requests."""
        victim = min(self._loaded_but(model), key=lambda other: (other.users > 0, other.used))
        log.info("model %s: is unloaded to make room for %s", victim.name, model.name)
        await victim.leave()


class ServedModel:
    """One model. ``users`` is the number of requests that hold it, ``used`` the time of the last use (monotonic)."""

    def __init__(self, name: str, load: Load, models: Models) -> None:
        self.name = name
        self.state: ModelState = "unloaded"
        self.users = 0
        self.loads = 0
        self.used = 0.0
        self.task: asyncio.Task[None] | None = None
        self._load = load
        self._models = models
        self._loaded: Loaded | None = None
        self._lost: Loaded | None = None
        self._free = asyncio.Event()
        self._failed: tuple[float, ApiError] | None = None
        self._attempt: asyncio.Task[None] | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def is_usable(self) -> bool:
        """Whether it is loaded and its server still runs."""
        loaded = self._loaded
        return self.state == "loaded" and loaded is not None and loaded.server.running and loaded is not self._lost

    def lose(self, engine: RunningModel | None) -> None:
        """Load the model again for the next request: a process may seem to run for a while after its sockets are
        closed."""
        if self._loaded is not None and self._loaded.engine is engine:
            self._lost = self._loaded

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[RunningModel]:
        """Hold the loaded model for the block. Raises ``ApiError`` 503 if it does not load."""
        if self.is_usable:
            self.users += 1
        else:
            await self._wait()
        try:
            assert self._loaded is not None
            yield self._loaded.engine
        finally:
            self._release()

    @property
    def waiting(self) -> int:
        """Number of requests that wait for the model."""
        return len(self._waiters)

    async def _wait(self) -> None:
        """Wait until the model is loaded, then hold it. All waiting requests share one attempt."""
        if self._failed is not None and time.monotonic() - self._failed[0] < FAILED_SECONDS:
            raise self._failed[1]
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiters.append(turn)
        if self._attempt is None or self._attempt.done():
            self._attempt = loop.create_task(self._models.load(self))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.exception() is None:
                self._release()  # it was assigned at the moment the client left
            elif turn in self._waiters:
                self._waiters.remove(turn)
            raise

    def _release(self) -> None:
        self.users -= 1
        self.used = time.monotonic()
        if not self.users:
            self._free.set()
            self._models.idle_since(self)

    def serve(self, failure: ApiError | None = None) -> None:
        """Give the model, or its ``failure``, to all waiting requests.

        At once, before the model can be unloaded again: otherwise alternating models would never answer.
        """
        waiters, self._waiters = self._waiters, []
        for turn in waiters:
            if turn.done():
                continue
            if failure is not None:
                turn.set_exception(failure)
            else:
                self.users += 1
                turn.set_result(None)

    async def start(self) -> None:
        """Load the model; raises what ``Load`` raises."""
        self.state = "loading"
        began = time.monotonic()
        try:
            self._loaded = await asyncio.to_thread(self._load)
        except BaseException:
            self.state = "unloaded"
            raise
        self.state, self.used, self._failed = "loaded", time.monotonic(), None
        self.loads += 1
        log.info("model %s: loaded in %.1f s", self.name, time.monotonic() - began)
        self._models.idle_since(self)

    def fail(self, reason: str) -> None:
        """Fail the waiting requests, and new ones for a moment, because the model does not load.

        Clients get the reason without the paths and the server's output, which the log has.
        """
        failure = ApiError(
            503, f"the model {self.name!r} does not load: {reason}; the gateway's log has the details",
            kind="model_failed", code="model_not_loaded", retry_after=int(FAILED_SECONDS),
        )  # fmt: skip
        self._failed = (time.monotonic(), failure)
        self.serve(failure)

    async def leave(self) -> None:
        """Take no more requests, wait for running ones, and unload the model."""
        self.state = "leaving"
        while self.users:
            self._free.clear()
            await self._free.wait()
        await self.unload()

    async def unload(self) -> None:
        """Stop the server, if there is one."""
        loaded, self._loaded, self._lost = self._loaded, None, None
        self.state = "unloaded"
        if loaded is not None:
            with suppress(StrataError):
                await asyncio.to_thread(loaded.server.stop)
