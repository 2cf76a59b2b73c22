"""Admission control: at most ``parallel`` requests generate at a time, others wait in a queue that is fair to clients.

A client with a hundred requests does not delay one with a single request: the queue is round-robin over clients,
and first come, first served for one client.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict, deque

from strata_pack.gateway.failures import ApiError

TYPICAL_SECONDS = 5.0
"""Assumed duration of a request in seconds until the first one has ended."""


class Admission:
    """The upstream's slots and the queue for them. ``busy`` and ``waiting`` are counts of requests."""

    def __init__(self, parallel: int, queue: int, queue_seconds: float) -> None:
        self.parallel = parallel
        self.queue = queue
        self.busy = 0
        self.waiting = 0
        self._queue_seconds = queue_seconds
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._typical = TYPICAL_SECONDS

    def slot(self, client: str) -> Slot:
        """Return the context manager that holds a slot for ``client``."""
        return Slot(self, client)

    def leave(self, seconds: float) -> None:
        """Give up a slot that was held for ``seconds``."""
        self._typical += 0.2 * (seconds - self._typical)
        self._release()

    async def enter(self, client: str) -> None:
        """Wait for a slot. Raises ``ApiError`` 429 as ``Slot`` says."""
        if self.busy < self.parallel and not self._lines:
            self.busy += 1
            return
        if self.waiting >= self.queue:
            raise self._refusal(f"all {self.parallel} slots are busy and {self.waiting} requests are waiting already")
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._lines.setdefault(client, deque()).append(turn)
        self.waiting += 1
        # Not asyncio.wait_for: before Python 3.12 it swallows a cancellation that coincides with a result.
        timer = loop.call_later(self._queue_seconds, self._expire, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.exception() is None:
                self._release()  # the slot was assigned at the moment the client left
            raise
        finally:
            timer.cancel()
            self.waiting -= 1
            self._forget(client, turn)

    def _expire(self, turn: asyncio.Future[None]) -> None:
        if not turn.done():
            turn.set_exception(self._refusal(f"no slot became free within {self._queue_seconds:.0f} s"))

    def _forget(self, client: str, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(client)
        if line is not None:
            if turn in line:
                line.remove(turn)
            if not line:
                del self._lines[client]

    def _release(self) -> None:
        """Give the slot to the next waiting client (round-robin), or free it."""
        while self._lines:
            client, line = next(iter(self._lines.items()))
            turn = line.popleft()
            if line:
                self._lines.move_to_end(client)
            else:
                del self._lines[client]
            if not turn.done():
                turn.set_result(None)
                return
        self.busy -= 1

    def _refusal(self, message: str) -> ApiError:
        rounds = math.ceil((self.waiting + 1) / self.parallel)
        wait = min(max(1, math.ceil(rounds * self._typical)), 300)
        return ApiError(429, message, kind="too_many_requests", code="rate_limit_exceeded", retry_after=wait)


class Slot:
    """Holds a slot for the block, which gets the seconds spent waiting.

    Raises ``ApiError`` 429 with ``retry_after`` when the queue is full or the wait too long.
    """

    def __init__(self, admission: Admission, client: str) -> None:
        self._admission = admission
        self._client = client

    async def __aenter__(self) -> float:
        asked = time.monotonic()
        await self._admission.enter(self._client)
        self._began = time.monotonic()
        return self._began - asked

    async def __aexit__(self, *_: object) -> None:
        self._admission.leave(time.monotonic() - self._began)
