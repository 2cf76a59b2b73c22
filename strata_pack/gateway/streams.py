"""Responses as plain ASGI: a JSON answer, and a stream of events that starts when its first bytes are there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

from starlette.types import Receive, Scope, Send

from strata_pack.gateway.failures import ApiError, shutting_down

FAREWELL_SECONDS = 1.0
PING = b": still working\n\n"
EVENT_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Reply:
    """A whole answer."""

    def __init__(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.body = body
        self.status = status
        self._headers = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


class EventStream:
    """A stream of server-sent events.

    Until the first bytes are there, a failure of ``body`` is raised, to become a plain error answer; after
    ``ping_seconds`` without any (a long prefill, a long queue) the stream starts with a comment so that no proxy
    gives up. ``failure`` writes the end of a stream that breaks later.
    """

    def __init__(
        self, body: AsyncGenerator[bytes, None], failure: Callable[[ApiError], bytes], *, ping_seconds: float
    ) -> None:
        self._body = body
        self._failure = failure
        self._ping_seconds = ping_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        started = False

        async def start() -> None:
            nonlocal started
            if not started:
                started = True
                await send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM_HEADERS})

        first = asyncio.ensure_future(anext(self._body))
        try:
            while not (await asyncio.wait({first}, timeout=self._ping_seconds))[0]:
                await start()
                await send({"type": "http.response.body", "body": PING, "more_body": True})
            data = first.result()
            await start()
            await send({"type": "http.response.body", "body": data, "more_body": True})
            async for data in self._body:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except ApiError as error:
            if not started:
                raise
            await send({"type": "http.response.body", "body": self._failure(error), "more_body": True})
        except asyncio.CancelledError:
            # The client has gone, and this is lost; or the gateway is shutting down, and the client learns it.
            if started:
                data = self._failure(shutting_down())
                with suppress(asyncio.CancelledError):
                    await asyncio.wait_for(send({"type": "http.response.body", "body": data}), FAREWELL_SECONDS)
            raise
        finally:
            first.cancel()
            with suppress(asyncio.CancelledError, ApiError, StopAsyncIteration):
                await first
            await self._body.aclose()
        await send({"type": "http.response.body", "body": b""})
