"""uvicorn's HTTP protocol with limits on what comes before a body: the bytes of the headers, and their time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Connection:
    """One client's connection: ``abort`` drops it, ``on_close`` are told when it is lost; then it is ``closed``."""

    def __init__(self) -> None:
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


def limited_protocol(header_bytes: int, header_seconds: float) -> type[asyncio.Protocol]:
    """Return the protocol class for ``uvicorn.Config(http=...)``.

    A connection whose headers are larger than ``header_bytes``, or not whole ``header_seconds`` after the connection
    was made or the request began, is closed. ``scope["strata.connection"]`` is the ``Connection``.
    """

    class LimitedProtocol(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None
        _fresh = 0
        _reading_headers = True

        def __init__(self, config: Config, server_state: Any, app_state: dict[str, Any], **more: Any) -> None:
            super().__init__(config, server_state, app_state, **more)
            self._connection = Connection()

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._connection.transport = transport
            self._start_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)
            self._connection.lost()

        def data_received(self, data: bytes) -> None:
            if self._reading_headers:
                self._fresh += len(data)
                super().data_received(data)
                # Still no end of the headers: all that came belongs to them.
                if self._reading_headers and self._fresh > header_bytes and not self.transport.is_closing():
                    self._refuse(b"431 Request Header Fields Too Large")
            else:
                super().data_received(data)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._start_timer()

        def on_headers_complete(self) -> None:
            self._stop_timer()
            self.scope["strata.connection"] = self._connection  # type: ignore[typeddict-unknown-key]
            self._reading_headers = False
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > header_bytes:
                self._refuse(b"431 Request Header Fields Too Large")
            else:
                super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            if self.cycle is not None and not self.transport.is_closing():
                super().on_body(body)

        def on_message_complete(self) -> None:
            self._fresh = 0
            self._reading_headers = True
            if self.cycle is not None and not self.transport.is_closing():
                super().on_message_complete()

        def _start_timer(self) -> None:
            self._stop_timer()
            self._timer = self.loop.call_later(header_seconds, self._too_slow)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _too_slow(self) -> None:
            if not self.transport.is_closing():
                self._refuse(b"408 Request Timeout")

        def _refuse(self, status: bytes) -> None:
            self.transport.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()

    return LimitedProtocol
