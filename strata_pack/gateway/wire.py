"""One HTTP/1.1 exchange with the llama.cpp server, as an asyncio protocol.

A request is one TCP connection: closing it tells llama-server to stop generating. httpx costs about
as much per chunk as everything else that the gateway does per token, and its pool leaks connections
when requests are cancelled, which happens when clients disconnect.

Received data goes to the one waiting coroutine. A stream's tokens need not wake it: ``tap`` takes them as
they arrive, so a token costs neither an event-loop iteration nor any of the stream's coroutines.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import cast

import httptools

from strata_pack.gateway.failures import UNREACHED, ApiError, unavailable

MAX_BUFFERED = 256 << 10
"""Bytes buffered for a slow client before reading from its upstream connection pauses."""

GONE = "the llama.cpp server died while it was generating; try again"
AWAY = "the llama.cpp server does not answer; it may be restarting, try again"


class Wire(asyncio.Protocol):
    """One HTTP/1.1 exchange. Callbacks of ``httptools`` collect; one coroutine at a time waits."""

    tap: Callable[[bytes], bool] | None = None
    """Called with body data that arrives while ``read`` waits; false leaves it to ``read``."""
    plain: Callable[[bytes], bool] | None = None
    """Called first with data that may be one complete chunk, with its framing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, idle_seconds: float, until: float) -> None:
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._status: int | None = None
        self._complete = False
        self._framed = False
        self._chunk_over = False
        """Whether the received data ends at the end of a chunk, so that a complete one may follow."""
        self._failure: Exception | None = None
        self._paused = False
        self._idle_seconds = idle_seconds
        self._until = until
        self._last = 0.0
        self._watch: asyncio.TimerHandle | None = None

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # Only here: uvloop creates a protocol also for connections that fail.
        self._last = self._loop.time()
        self._check_time()

    def data_received(self, data: bytes) -> None:
        self._last = self._loop.time()
        if self.plain is not None and self._chunk_over and self._offered(self.plain, data):
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail(ApiError(502, "the llama.cpp server does not speak HTTP", kind="upstream_error"))
        if self._chunk_over and not data.endswith(b"\r\n"):
            self._chunk_over = False
        if self._parts and self.tap is not None and not self._complete and self._offered(self.tap, self._arrived()):
            self._taken()
            return
        self._wake()
        if self._size > MAX_BUFFERED and self._open is not None and not self._paused:
            self._paused = True
            self._open.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_watching()
        # Each of them refers back to this object, which then only the garbage collector would free.
        del self._parser
        self.tap = self.plain = None
        if self._status is not None and not self._framed and error is None:
            self._complete = True  # without length or chunks the end of the connection is the end of the body
        if self._complete:
            self._wake()
        else:
            self._fail(unavailable(AWAY if self._status is None else GONE, kind="upstream_gone"))

    # Called by httptools

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: ARG002
        self._framed = self._framed or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:  # otherwise it is an interim (1xx) response
            self._status = status

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        self._size += len(body)

    def on_chunk_header(self) -> None:
        self._chunk_over = False

    def on_chunk_complete(self) -> None:
        self._chunk_over = True

    def on_message_complete(self) -> None:
        self._complete = self._status is not None

    # Called by the reading coroutine

    def write(self, request: bytes, *, begun: bool = False) -> None:
        """Send a request, or the rest of one that was ``begun``. Raises ``ApiError`` if the server has already closed
        the connection."""
        if self._open is None:
            raise unavailable(AWAY, kind="upstream_gone" if begun else UNREACHED)
        self._open.write(request)

    async def headers(self) -> int:
        """Return the status. Raises ``ApiError`` if the connection ends before it."""
        while self._status is None:
            if self._failure is not None:
                raise self._failure
            await self._wait()
        return self._status

    async def read(self) -> bytes | None:
        """Return the received data, ``None`` at the end of the body. Raises ``ApiError`` if the body is truncated."""
        while not self._parts:
            if self._complete:
                return None
            if self._failure is not None:
                raise self._failure
            await self._wait()
        data = self._arrived()
        self._taken()
        if self._paused:
            self._paused = False
            if self._open is not None:
                self._open.resume_reading()
        return data

    def _offered(self, take: Callable[[bytes], bool], data: bytes) -> bool:
        """Return whether ``take`` has taken ``data``; ``read`` raises its exceptions."""
        if self._waiter is None or self._waiter.done():
            return False
        try:
            return take(data)
        except Exception as error:  # noqa: BLE001 - it belongs to the coroutine that waits; here is the loop
            self._fail(error)
            return False

    def _arrived(self) -> bytes:
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def _taken(self) -> None:
        self._parts.clear()
        self._size = 0

    def abort(self) -> None:
        """Drop the connection at once."""
        self._stop_watching()
        if self._open is not None:
            self._open.abort()

    @property
    def _open(self) -> asyncio.Transport | None:
        """The transport, ``None`` if it is closing (uvloop's then refuses every call)."""
        transport = self._transport
        return None if transport is None or transport.is_closing() else transport

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, failure: Exception) -> None:
        if self._failure is None:
            self._failure = failure
        self._wake()

    def _check_time(self) -> None:
        now = self._loop.time()
        silent = self._last + self._idle_seconds
        if now >= self._until:
            self._give_up("the reply took longer than --request-timeout allows", "request_timeout")
        elif now >= silent and not self._paused:
            self._give_up("the llama.cpp server sent nothing for too long", "upstream_timeout")
        elif (at := min(max(silent, now + 1.0), self._until)) < math.inf:
            self._watch = self._loop.call_at(at, self._check_time)

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    def _give_up(self, message: str, kind: str) -> None:
        self._fail(ApiError(504, message, kind=kind))
        self.abort()
