"""Plain ASGI responses: JSON, and an event stream that starts with its first bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import suppress
from typing import Protocol

from starlette.types import Receive, Scope, Send

from strata_pack.gateway.failures import ApiError, shutting_down

FAREWELL_SECONDS = 1.0
MAX_EVENT = 8 << 20
"""Most bytes of one event that is passed on."""

PING = b": still working\n\n"
EVENT_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ReplyStream:
    """A complete response."""

    def __init__(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.body = body
        self.status = status
        own = {} if status == 204 else {"content-type": "application/json", "content-length": str(len(body))}
        self._headers = {**own, **(headers or {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


class BodyWriter(Protocol):
    """The client's side of a response that has started."""

    @property
    def writable(self) -> bool:
        """Whether more may be written now."""

    def write(self, data: bytes) -> None:
        """Write a piece of the body; more follows."""


class Outlet:
    """The fast path to a stream's client, for data that arrives while the stream waits.

    It is open after the stream itself has sent its first piece, while the client reads and no
    ping is being sent.
    """

    def __init__(self) -> None:
        self.begun = False
        """Whether the stream has sent its beginning (a ping does not count)."""
        self.body_writer: BodyWriter | None = None
        self.pinging = False
        self.last = 0.0
        """Time of the last sending, in the event loop's time."""
        self._loop = asyncio.get_running_loop()

    def is_open(self) -> bool:
        """Return whether ``write`` is allowed."""
        return self.begun and not self.pinging and self.body_writer is not None and self.body_writer.writable

    def write(self, data: bytes) -> bool:
        """Send ``data`` at once; return ``False`` if that is not allowed."""
        body_writer = self.body_writer
        if body_writer is None or self.pinging or not self.begun or not body_writer.writable:
            return False
        self.last = self._loop.time()
        body_writer.write(data)
        return True


class EventStream:
    """A stream of server-sent events.

    Until the first bytes arrive, a failure of ``body`` is raised and becomes a plain error response. Whenever nothing
    was sent for ``ping_seconds`` (a long prefill, a long queue, a long call that is held back until complete), a
    comment is sent, so that no proxy times out. ``failure`` writes the end of a stream that fails later. ``outlet`` is
    the fast path for ``body`` while it waits.
    """

    def __init__(
        self,
        body: AsyncGenerator[bytes, None],
        failure: Callable[[ApiError], bytes],
        *,
        ping_seconds: float,
        outlet: Outlet | None = None,
    ) -> None:
        self._body = body
        self._failure = failure
        self._ping_seconds = ping_seconds
        self._outlet = outlet or Outlet()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        connection = scope.get("strata.connection")
        out = _Out(send, self._ping_seconds, self._outlet, None if connection is None else connection.body_writer)
        try:
            async for data in self._body:
                await out.write(data)
            await out.write(b"", last=True)
        except ApiError as error:
            if not out.started:
                raise
            await out.write(self._failure(error), last=True)
        except asyncio.CancelledError:
            # Either the client has gone and this is lost, or the gateway is shutting down and the client gets the
            # message.
            if out.started:
                with suppress(asyncio.CancelledError, asyncio.TimeoutError):
                    await asyncio.wait_for(out.write(self._failure(shutting_down()), last=True), FAREWELL_SECONDS)
            raise
        finally:
            out.close()
            await self._body.aclose()


class _Out:
    """The client's side of a stream: starts with the first bytes, and sends pings while nothing else is sent."""

    def __init__(
        self, send: Send, ping_seconds: float, outlet: Outlet, find_writer: Callable[[], BodyWriter | None] | None
    ) -> None:
        self.started = False
        self._send = send
        self._outlet = outlet
        self._find_writer = find_writer
        self._ping_seconds = ping_seconds
        self._loop = asyncio.get_running_loop()
        outlet.last = self._loop.time()
        self._timer = self._loop.call_later(ping_seconds, self._check)
        self._ping: asyncio.Task[None] | None = None

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Send ``data``, after a ping that waits for the client to read; no ping after the ``last``."""
        if last:
            self._timer.cancel()
        if self._ping is not None:
            await self._ping
        await self._write(data, last=last)

    async def _write(self, data: bytes, *, last: bool = False) -> None:
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM_HEADERS})
            self._outlet.body_writer = self._find_writer() if self._find_writer is not None else None
        self._outlet.last = self._loop.time()
        writer = self._outlet.body_writer
        if data and not last and writer is not None and writer.writable:
            writer.write(data)
        else:
            await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    def close(self) -> None:
        """Stop everything, including a waiting ping."""
        self._outlet.body_writer = None
        self._timer.cancel()
        if self._ping is not None:
            self._ping.cancel()

    def _check(self) -> None:
        wait = self._outlet.last + self._ping_seconds - self._loop.time()
        if wait <= 0:
            if not self._outlet.pinging:
                self._outlet.pinging = True
                self._ping = self._loop.create_task(self._write(PING))
                self._ping.add_done_callback(self._pinged)
            wait = self._ping_seconds
        self._timer = self._loop.call_later(wait, self._check)

    def _pinged(self, _: asyncio.Task[None]) -> None:
        self._outlet.pinging = False


async def whole_events(pieces: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of an event stream in complete events, so that a ping can be sent between them."""
    rest = b""
    async for piece in pieces:
        rest += piece
        end = rest.rfind(b"\n\n") + 2
        if end >= 2:
            yield rest[:end]
            rest = rest[end:]
        elif len(rest) > MAX_EVENT:
            raise ApiError(502, "the llama.cpp server sends too long an event", kind="upstream_error")
    if rest:
        yield rest
