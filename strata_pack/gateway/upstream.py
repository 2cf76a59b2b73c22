"""The llama.cpp server behind the gateway: JSON calls and token streams by a protocol of our own.

A request is one TCP connection: closing it is how llama-server learns that nobody wants the rest. httpx costs about
as much per chunk as everything else the gateway does to a token together, and its pool loses connections for good
when their requests are cancelled, as those of clients that leave are. Hence ``_Wire``, which gives the bytes of the
body as they arrive to the one coroutine that waits for them, without a queue or a task in between.
"""

from __future__ import annotations

import asyncio
import json
import math
import ssl
from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
from pydantic_core import from_json

from strata_pack.errors import WrongUse
from strata_pack.gateway.deadline import Deadline
from strata_pack.gateway.failures import ApiError, bad_request, prompt_too_long, unavailable

CONNECT_SECONDS = 5.0
IDLE_SECONDS = 300.0
"""Seconds without a byte after which a stream counts as dead (a long prefill sends nothing)."""

JSON_SECONDS = 60.0
MAX_LINE = 8 << 20
"""Bytes of one server-sent event; more is garbage."""

MAX_ANSWER = 256 << 20
"""Bytes of an answer that is no stream (the tokens of a long prompt are the longest)."""

MAX_BUFFERED = 256 << 10
"""Bytes that wait for a slow client before its upstream connection is not read any more."""

GONE = "the llama.cpp server went away while it was generating; try again"
AWAY = "the llama.cpp server does not answer; it may be restarting, try again"


class Upstream:
    """One llama.cpp server. ``api_key`` is sent as bearer token."""

    def __init__(self, url: str, *, api_key: str | None = None, idle_seconds: float = IDLE_SECONDS) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise WrongUse("is not the URL of a server", where=url, remedy="write it as http://HOST:PORT")
        self.url = url.rstrip("/")
        self._host = parts.hostname
        self._secure = parts.scheme == "https"
        self._port = parts.port or (443 if self._secure else 80)
        self._base = parts.path.rstrip("/")
        # Made once: it reads all certificate authorities of the machine.
        self._context = ssl.create_default_context() if self._secure else None
        self._idle_seconds = idle_seconds
        self._key = api_key

    async def json(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, generates: bool = False
    ) -> dict[str, Any]:
        """Return the JSON object that the server answers; raises ``ApiError`` (503 away, 400 refused).

        ``generates``: the answer may take as long as a stream may be silent.
        """
        wire = await self._connect(self._idle_seconds if generates else JSON_SECONDS, math.inf)
        try:
            wire.post(self._head(method, path), b"" if body is None else _encoded(body))
            return _object(await wire.headers(), await _all(wire))
        finally:
            wire.abort()

    async def forward(self, method: str, path: str, data: bytes) -> tuple[int, bytes]:
        """Return status and body of the server's own answer to ``data``; raises ``ApiError`` if there is none."""
        wire = await self._connect(JSON_SECONDS, math.inf)
        try:
            wire.post(self._head(method, path), data)
            return await wire.headers(), await _all(wire)
        finally:
            wire.abort()

    async def _connect(self, idle_seconds: float, until: float) -> _Wire:
        loop = asyncio.get_running_loop()
        try:
            with Deadline(CONNECT_SECONDS):
                _, wire = await loop.create_connection(
                    lambda: _Wire(loop, idle_seconds, until), self._host, self._port, ssl=self._context
                )
        except OSError as error:  # a TimeoutError is one
            raise unavailable(AWAY) from error
        return wire

    async def open(
        self, path: str, body: Mapping[str, Any], *, until: float = math.inf, silent: bool = False
    ) -> Stream:  # fmt: skip
        """Post ``body`` and return the stream once its headers say 200; else raises ``ApiError``.

        A stream that is not over when the loop's time is ``until`` breaks off with a 504. ``silent``: nothing comes
        before the answer is whole, so that silence is no sign of death.
        """
        head, data = self._head("POST", path), _encoded(body)
        idle = math.inf if silent else self._idle_seconds
        return await _asked(await self._connect(idle, until), head, data)

    def _head(self, method: str, path: str) -> str:
        key = f"Authorization: Bearer {self._key}\r\n" if self._key else ""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return (
            f"{method} {self._base}{path} HTTP/1.1\r\nHost: {host}:{self._port}\r\n{key}"
            "Accept: */*\r\nContent-Type: application/json\r\nConnection: close\r\n"
        )


async def _asked(wire: _Wire, head: str, data: bytes) -> Stream:
    """Post a request over ``wire`` and return its stream; raises ``ApiError`` for a refusal."""
    stream = Stream(wire)
    try:
        wire.post(head, data)
        status = await wire.headers()
        if status != 200:
            _object(status, await _all(wire))
            raise unavailable(f"the llama.cpp server answers with status {status}", kind="upstream_error")
    except BaseException:
        stream.close()
        raise
    return stream


async def _all(wire: _Wire) -> bytes:
    parts: list[bytes] = []
    size = 0
    while (data := await wire.read()) is not None:
        parts.append(data)
        size += len(data)
        if size > MAX_ANSWER:
            raise ApiError(502, "the llama.cpp server sends an endless answer", kind="upstream_error")
    return b"".join(parts)


def _encoded(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _object(status: int, content: bytes) -> dict[str, Any]:
    """Return the JSON object of an answer; raise what an error answer means to our client."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if status == 200 and isinstance(value, dict):
        return value
    raise refusal(status, value if isinstance(value, dict) else {})


def refusal(status: int, value: Mapping[str, Any]) -> ApiError:
    """Return what the upstream's error answer means to our client."""
    error = value.get("error")
    told = error if isinstance(error, dict) else {}
    message = str(told.get("message") or f"the llama.cpp server answers with status {status}")
    limit, asked = told.get("n_ctx"), told.get("n_prompt_tokens")
    if told.get("type") == "exceed_context_size_error" and isinstance(limit, int) and isinstance(asked, int):
        return prompt_too_long(asked, limit)
    if status in (400, 413, 422):
        return bad_request(f"the llama.cpp server refuses the request: {message}")
    if status == 501:
        return ApiError(501, f"the llama.cpp server cannot do this: {message}", kind="not_supported")
    if status == 503:
        return unavailable("the llama.cpp server is loading its model; try again", kind="upstream_loading")
    return ApiError(502, f"the llama.cpp server failed: {message}", kind="upstream_error")


class Stream:
    """A running ``/completion``: lists of decoded events, as many as have arrived. Close it to stop the generation."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self._rest = b""

    async def raw(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the body as they come."""
        while (data := await self._wire.read()) is not None:
            yield data

    async def events(self) -> list[dict[str, Any]]:
        """Return the events that have come, at least one. Not to be asked after the one that says ``stop``.

        Raises ``ApiError`` for an error event, a body that is no event stream, or a server that goes away.
        """
        while (data := await self._wire.read()) is not None:
            lines = (self._rest + data if self._rest else data).split(b"\n")
            self._rest = lines.pop()
            if len(self._rest) > MAX_LINE:
                raise ApiError(502, "the llama.cpp server sends an endless line", kind="upstream_error")
            if found := [_event(line) for line in lines if line.startswith((b"data: ", b"error: "))]:
                return found
        raise ApiError(502, "the llama.cpp server ended its answer in the middle", kind="upstream_error")

    def close(self) -> None:
        """End the connection, and with it the generation."""
        self._wire.abort()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _event(line: bytes) -> dict[str, Any]:
    """Return the event of one line; raises ``ApiError`` if it is an error or no piece of a completion."""
    data = line.partition(b": ")[2]
    try:
        event = from_json(data)
    except ValueError:
        event = _read_again(data)
    if not isinstance(event, dict) or "error" in event or line.startswith(b"e"):
        raise refusal(500, event if isinstance(event, dict) and "error" in event else {"error": event})
    if not isinstance(event.get("content"), str):
        raise ApiError(502, "the llama.cpp server sends no text", kind="upstream_error")
    return event


def _read_again(data: bytes) -> Any:
    """Return the JSON of a line that is no UTF-8 or holds half a surrogate pair; raises ``ApiError`` for no JSON."""
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise ApiError(502, "the llama.cpp server sends no JSON", kind="upstream_error") from None


class _Wire(asyncio.Protocol):
    """One HTTP/1.1 exchange. Callbacks of ``httptools`` collect; one coroutine at a time waits."""

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
        self._failure: ApiError | None = None
        self._paused = False
        self._idle_seconds = idle_seconds
        self._until = until
        self._last = 0.0
        self._watch: asyncio.TimerHandle | None = None

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # Not before: uvloop makes a protocol for connections too that do not come about.
        self._last = self._loop.time()
        self._check_time()

    def data_received(self, data: bytes) -> None:
        self._last = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail(ApiError(502, "the llama.cpp server does not speak HTTP", kind="upstream_error"))
        self._wake()
        if self._size > MAX_BUFFERED and self._open is not None and not self._paused:
            self._paused = True
            self._open.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_watching()
        if self._status is not None and not self._framed and error is None:
            self._complete = True  # neither a length nor chunks: the end of the connection is the end of the body
        if self._complete:
            self._wake()
        else:
            self._fail(unavailable(AWAY if self._status is None else GONE, kind="upstream_gone"))

    # Called by httptools

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: ARG002
        self._framed = self._framed or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:  # else it is a note before the answer
            self._status = status

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        self._size += len(body)

    def on_message_complete(self) -> None:
        self._complete = self._status is not None

    # Called by the one who reads

    def post(self, head: str, body: bytes) -> None:
        """Send the request; raises ``ApiError`` if the server has closed the connection already."""
        if self._open is None:
            raise unavailable(AWAY)
        self._open.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body)

    async def headers(self) -> int:
        """Return the status; raises ``ApiError`` if the connection ends before."""
        while self._status is None:
            if self._failure is not None:
                raise self._failure
            await self._wait()
        return self._status

    async def read(self) -> bytes | None:
        """Return what has arrived, ``None`` at the end of the body; raises ``ApiError`` if it is cut."""
        while not self._parts:
            if self._complete:
                return None
            if self._failure is not None:
                raise self._failure
            await self._wait()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        if self._paused:
            self._paused = False
            if self._open is not None:
                self._open.resume_reading()
        return data

    def abort(self) -> None:
        """Drop the connection at once."""
        self._stop_watching()
        if self._open is not None:
            self._open.abort()

    @property
    def _open(self) -> asyncio.Transport | None:
        """The transport, unless it is closing: uvloop's then refuses every call."""
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

    def _fail(self, failure: ApiError) -> None:
        if self._failure is None:
            self._failure = failure
        self._wake()

    def _check_time(self) -> None:
        now = self._loop.time()
        silent = self._last + self._idle_seconds
        if now >= self._until:
            self._give_up("the reply was not whole in the time that a request has", "request_timeout")
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
