"""Client of the llama.cpp server: JSON calls, and streams of tokens."""

from __future__ import annotations

import asyncio
import json
import math
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from pydantic_core import from_json, to_json

from strata_pack.errors import WrongUse
from strata_pack.gateway.deadline import Deadline
from strata_pack.gateway.failures import ApiError, bad_request, prompt_too_long, unavailable
from strata_pack.gateway.loopback import adopted, is_loopback, send_at_once
from strata_pack.gateway.wire import AWAY, Wire

CONNECT_SECONDS = 5.0
IDLE_SECONDS = 300.0
"""Seconds without a byte after which a stream counts as dead (a long prefill sends nothing)."""

JSON_SECONDS = 60.0
MAX_LINE = 8 << 20
"""Most bytes of one server-sent event."""

MAX_ANSWER = 256 << 20
"""Most bytes of a response that is not a stream (the tokens of a long prompt are the longest)."""


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
        # Created once, because it reads all certificate authorities of the machine.
        self._context = ssl.create_default_context() if self._secure else None
        self._idle_seconds = idle_seconds
        self._on_loopback = not self._secure and is_loopback(parts.hostname)
        key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        host = f"[{self._host}]" if ":" in self._host else self._host
        self._headers = (
            f" HTTP/1.1\r\nHost: {host}:{self._port}\r\n{key}"
            "Accept: */*\r\nContent-Type: application/json\r\nConnection: close\r\n"
        )

    async def json(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, generates: bool = False
    ) -> dict[str, Any]:
        """Return the server's JSON object. Raises ``ApiError`` (503 unreachable, 400 refused).

        ``generates``: the response may take as long as a stream may be silent.
        """
        request = self._request(method, path, b"" if body is None else _encoded(body))
        wire = await self._send(request, self._idle_seconds if generates else JSON_SECONDS)
        try:
            return _object(await wire.headers(), await _all(wire))
        finally:
            wire.abort()

    async def forward(self, method: str, path: str, data: bytes) -> tuple[int, bytes]:
        """Return status and body of the server's response to ``data``. Raises ``ApiError`` if there is none."""
        wire = await self._send(self._request(method, path, data), JSON_SECONDS)
        try:
            return await wire.headers(), await _all(wire)
        finally:
            wire.abort()

    async def _send(self, request: bytes, idle_seconds: float, until: float = math.inf) -> Wire:
        """Return the exchange of ``request``, which is sent. Raises ``ApiError`` 503 for an unreachable server."""
        loop = asyncio.get_running_loop()

        def make() -> Wire:
            return Wire(loop, idle_seconds, until)

        begun = send_at_once(self._host, self._port, request) if self._on_loopback else None
        if begun is not None:
            wire = await adopted(begun.socket, make)
            if begun.size < len(request):
                wire.write(request[begun.size :], begun=True)
            return wire
        try:
            with Deadline(CONNECT_SECONDS):
                _, wire = await loop.create_connection(make, self._host, self._port, ssl=self._context)
        except OSError as error:  # a TimeoutError is one
            raise unavailable(AWAY) from error
        wire.write(request)
        return wire

    async def open(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        until: float = math.inf,
        silent: bool = False,
        sent: Callable[[], object] = lambda: None,
    ) -> Stream:
        """Post ``body`` and return the stream after a status of 200. Raises ``ApiError`` for another status.

        A stream that has not ended at ``until`` (event loop's time) fails with a 504. ``silent``: nothing is sent
        before the response is complete, so silence is not a failure. ``sent`` is called when the server has work to do.
        """
        idle = math.inf if silent else self._idle_seconds
        stream = Stream(await self._send(self._request("POST", path, _encoded(body)), idle, until))
        try:
            sent()
            await stream.begin()
        except BaseException:
            stream.close()
            raise
        return stream

    def _request(self, method: str, path: str, data: bytes) -> bytes:
        return f"{method} {self._base}{path}{self._headers}Content-Length: {len(data)}\r\n\r\n".encode("latin-1") + data


async def _all(wire: Wire) -> bytes:
    parts: list[bytes] = []
    size = 0
    while (data := await wire.read()) is not None:
        parts.append(data)
        size += len(data)
        if size > MAX_ANSWER:
            raise ApiError(502, "the llama.cpp server's reply is too large", kind="upstream_error")
    return b"".join(parts)


_json = json.JSONEncoder(ensure_ascii=False).encode


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        return to_json(body)
    except ValueError:  # an unpaired surrogate, for example in a template's variable
        return _json(body).encode("utf-8", "replace")


def _object(status: int, content: bytes) -> dict[str, Any]:
    """Return the JSON object of a response. Raises ``ApiError`` for an error response."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if status == 200 and isinstance(value, dict):
        return value
    raise refusal(status, value if isinstance(value, dict) else {})


def refusal(status: int, value: Mapping[str, Any]) -> ApiError:
    """Return the error for our client of an upstream's error response."""
    error = value.get("error")
    details = error if isinstance(error, dict) else {}
    message = str(details.get("message") or f"the llama.cpp server answers with status {status}")
    limit, asked = details.get("n_ctx"), details.get("n_prompt_tokens")
    if details.get("type") == "exceed_context_size_error" and isinstance(limit, int) and isinstance(asked, int):
        return prompt_too_long(asked, limit)
    if status in (400, 413, 422):
        return bad_request(f"the llama.cpp server refuses the request: {message}")
    if status == 501:
        return ApiError(501, f"the llama.cpp server cannot do this: {message}", kind="not_supported")
    if status == 503:
        return unavailable("the llama.cpp server is loading its model; try again", kind="upstream_loading")
    return ApiError(502, f"the llama.cpp server failed: {message}", kind="upstream_error")


Take = Callable[[list[dict[str, Any]]], bool]
"""Receives events of a stream as they arrive; returns false to leave them to ``events``."""


class Stream:
    """A running ``/completion``: lists of the decoded events that have arrived. Close it to stop the generation."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._rest = b""

    async def begin(self) -> None:
        """Wait for the head of the response. Raises ``ApiError`` for another status than 200."""
        status = await self._wire.headers()
        if status != 200:
            _object(status, await _all(self._wire))
            raise unavailable(f"the llama.cpp server answers with status {status}", kind="upstream_error")

    def divert(self, take: Take, plain: Callable[[bytes], bool]) -> None:
        """Pass events to ``take`` while ``events`` waits; ``events`` returns those that it does not take.

        It gets complete events of a running completion, never the last one nor an error; and only those that
        ``plain``, which gets complete chunks first, has not taken.
        """

        def tap(data: bytes) -> bool:
            if self._rest or not data.endswith(b"\n"):
                return False
            try:
                events = _events(data.split(b"\n"))
            except ApiError:
                return False
            if any(event.get("stop") for event in events):
                return False
            return take(events) if events else True

        def take_chunk(chunk: bytes) -> bool:
            return not self._rest and plain(chunk)

        self._wire.tap = tap
        self._wire.plain = take_chunk

    async def raw(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the body as they arrive."""
        while (data := await self._wire.read()) is not None:
            yield data

    async def events(self) -> list[dict[str, Any]]:
        """Return the events that have arrived, at least one. Do not call it after the event with ``stop``.

        Raises ``ApiError`` for an error event, a body that is no event stream, or a disconnect.
        """
        while (data := await self._wire.read()) is not None:
            lines = (self._rest + data if self._rest else data).split(b"\n")
            self._rest = lines.pop()
            if len(self._rest) > MAX_LINE:
                raise ApiError(502, "the llama.cpp server sends too long a line", kind="upstream_error")
            if found := _events(lines):
                return found
        raise ApiError(502, "the llama.cpp server ended its reply too early", kind="upstream_error")

    def close(self) -> None:
        """Close the connection, which stops the generation."""
        self._wire.abort()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _events(lines: list[bytes]) -> list[dict[str, Any]]:
    return [_event(line) for line in lines if line.startswith((b"data: ", b"error: "))]


def _event(line: bytes) -> dict[str, Any]:
    """Return the event of one line. Raises ``ApiError`` if it is an error or no piece of a completion."""
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
    """Return the JSON of a line with invalid UTF-8 or an unpaired surrogate. Raises ``ApiError`` if it is no JSON."""
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise ApiError(502, "the llama.cpp server sends no JSON", kind="upstream_error") from None
