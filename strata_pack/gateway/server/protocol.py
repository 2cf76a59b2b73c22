"""uvicorn's HTTP protocol with limits on headers, idle connections and responses that the client does not read.

uvicorn has no public way to extend its protocols: the private names used here are in ``USED``, which a test checks,
and pyproject.toml limits uvicorn to tested versions.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from strata_pack.gateway.streams import BodyWriter


def no_writer() -> None:
    """Return nothing: a lost connection takes no response."""


class Connection:
    """One client's connection: ``abort`` drops it, ``on_close`` callbacks run when it is lost; then it is ``closed``.

    ``body_writer`` returns the client's side of the response in progress.
    """

    def __init__(self, body_writer: Callable[[], BodyWriter | None]) -> None:
        self.body_writer = body_writer
        self.closed = False
        self.on_close: list[Callable[[], None]] = []
        self.transport: asyncio.Transport | None = None

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def lost(self) -> None:
        self.closed = True
        for tell in tuple(self.on_close):
            tell()
        self.body_writer = no_writer  # the former one refers to the protocol, which refers to this object


class _AnswerBody:
    """The body of a response, written without ``send``, a coroutine that would double the cost of a token."""

    def __init__(self, cycle: Any) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._transport = cycle.transport
        self._chunked = cycle.chunked_encoding

    @property
    def writable(self) -> bool:
        return not (self._flow.write_paused or self._cycle.disconnected)

    def write(self, data: bytes) -> None:
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)


class _AnyLength(int):
    """A byte count that compares as neither too small nor too large, for uvicorn's count of expected bytes."""

    def __lt__(self, other: int) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__

    def __sub__(self, other: int) -> _AnyLength:
        return self


USED = (
    *("cycle", "headers", "loop", "scope", "transport", "url"),
    *("timeout_keep_alive", "timeout_keep_alive_handler", "timeout_keep_alive_task", "_unset_keepalive_if_required"),
    *("chunked_encoding", "disconnected", "expected_content_length", "message_event"),
    *("response_complete", "response_started", "flow", "write_paused"),
)
"""Private attributes of uvicorn's protocol and request cycle that are used here."""

UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
IGNORED_UPGRADE = b"\r\nx-ignored-upgrade:"
TAKEN_SECONDS = 1.0
OVERHEAD = 16
"""Allowed framing bytes of a chunked body for each body byte (a chunk of one byte has six)."""


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits. A connection is closed if its headers are larger than ``header_bytes`` or incomplete
    ``header_seconds`` after the connection or the request began; if its chunks are mostly framing or trailers; or if
    its client has read nothing of a response for ``stalled_seconds``."""

    header_bytes: int
    header_seconds: float
    stalled_seconds: float


def without_upgrade(data: bytes) -> bytes:
    """Return the beginning of a request with its ``Upgrade`` header renamed.

    A server may ignore the header (RFC 9110, section 7.8), but the parser drops the body of a request that has it.
    Java's HTTP client sends it (``h2c``) with its first request to a server.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    return UPGRADE.sub(IGNORED_UPGRADE, head) + end + rest


class LimitedConfig(uvicorn.Config):
    """uvicorn's configuration for ``app``, with ``limits`` for each connection."""

    def __init__(self, app: ASGIApp, limits: ConnectionLimits, **more: Any) -> None:
        super().__init__(app, http=LimitedProtocol, **more)
        self.limits = limits


class LimitedProtocol(HttpToolsProtocol):
    """One connection of a ``LimitedConfig``. ``scope["strata.connection"]`` is the ``Connection``,
    ``scope["strata.received"]`` whether the whole body was received."""

    _timer: asyncio.TimerHandle | None = None
    _fresh = 0
    """Received bytes of the request outside its body."""
    _bodies = 0
    """Bytes of all bodies on the connection; ``_bodies_before``: of earlier requests."""
    _bodies_before = 0
    _reading_headers = True

    def __init__(self, config: LimitedConfig, server_state: Any, app_state: dict[str, Any], **more: Any) -> None:
        super().__init__(config, server_state, app_state, **more)
        self._limits = config.limits
        self._connection = Connection(self._taker)
        self._cycles: list[Any] = []
        self._taken: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio does not set it for sockets accepted from our listener, and each response would wait for a delayed
        # ACK.
        if (sock := transport.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection.transport = transport
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_watching()
        super().connection_lost(exc)
        for cycle in self._cycles:  # uvicorn notifies only the newest one, and a client may have pipelined several
            cycle.disconnected = True
            cycle.message_event.set()
        self._connection.lost()

    def data_received(self, data: bytes) -> None:
        if self._reading_headers and b"pgrade:" in data:
            data = without_upgrade(data)
        before = self._bodies
        self._fresh += len(data)
        super().data_received(data)
        self._fresh = max(0, self._fresh - (self._bodies - before))
        if self.transport.is_closing():
            return
        if self._fresh > self._limits.header_bytes + OVERHEAD * (self._bodies - self._bodies_before):
            self._refuse(b"431 Request Header Fields Too Large")
        elif not self._answering and self._timer is None and self.timeout_keep_alive_task is None:
            # uvicorn would wait for ever after a byte that begins no request or that is ignored.
            self._start_timer()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._bodies_before = self._bodies
        self._start_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reading_headers:  # otherwise it is a trailer, which is ignored
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self.scope["strata.connection"] = self._connection  # type: ignore[typeddict-unknown-key]
        self._reading_headers = False
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._limits.header_bytes:
            self._refuse(b"431 Request Header Fields Too Large")
        elif sum(name == b"host" for name, _ in self.headers) > 1:
            self._refuse(b"400 Bad Request")  # RFC 9112, section 3.2: proxies would read another one than we do
        else:
            super().on_headers_complete()
            if self.scope["http_version"] == "1.0":
                self._end_with_connection(self.cycle)
            self._cycles = [cycle for cycle in (*self._cycles, self.cycle) if not cycle.response_complete]

    @staticmethod
    def _end_with_connection(cycle: Any) -> None:
        """End a response to an HTTP/1.0 client, which knows no chunks, by closing the connection."""
        cycle.chunked_encoding = False
        cycle.expected_content_length = _AnyLength()

    def on_body(self, body: bytes) -> None:
        self._bodies += len(body)
        if self.cycle is not None and not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self.scope["strata.received"] = True  # type: ignore[typeddict-unknown-key]
        self._fresh = 0
        self._reading_headers = True
        if not self._answering:
            # The rest of a refused body: now the connection is idle as after any response.
            self._stop_timer()
            self._keep_alive()
        if self.cycle is not None and not self.transport.is_closing():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._stop_watching()
        if waiting := self.transport.get_write_buffer_size():
            # Later: most of it is sent in this iteration of the event loop.
            self._taken = self.loop.call_later(TAKEN_SECONDS, self._check_taken, waiting + 1)

    @property
    def _answering(self) -> bool:
        """Whether a request is being answered or waits to be."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _written(self) -> bool:
        """Whether part of a response was sent, so that an error page written now would be inside it."""
        return self._taker() is not None

    def _taker(self) -> _AnswerBody | None:
        """Return the client's side of the response in progress."""
        begun = (cycle for cycle in self._cycles if cycle.response_started and not cycle.response_complete)
        return next((_AnswerBody(cycle) for cycle in begun), None)

    def _keep_alive(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _check_taken(self, before: int) -> None:
        """Drop the connection if none of the bytes waiting to be sent (``before`` at the last check) were read."""
        self._taken = None
        waiting = self.transport.get_write_buffer_size()
        if self._answering or not waiting:
            return  # the next response has its own timer
        if waiting >= before:
            self.transport.abort()
        else:
            self._taken = self.loop.call_later(self._limits.stalled_seconds, self._check_taken, waiting)

    def _stop_watching(self) -> None:
        if self._taken is not None:
            self._taken.cancel()
            self._taken = None

    def send_400_response(self, msg: str) -> None:
        if self._written:
            self.transport.close()
        else:
            super().send_400_response(msg)

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self._limits.header_seconds, self._too_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        if self._answering:
            self._start_timer()  # the next request is slow, but the last response is still being sent
        elif not self.transport.is_closing():
            self._refuse(b"408 Request Timeout")

    def _refuse(self, status: bytes) -> None:
        if not self._written:
            self.transport.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()
