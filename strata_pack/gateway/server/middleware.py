"""ASGI middleware of every request: authorization, size and time limits, cancellation on disconnect.

It reads the body (with a size and a time limit), then watches the connection (``protocol.py``): when the client
disconnects, the request's task is cancelled, which closes the upstream connection and frees the slot.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Sequence
from contextlib import nullcontext

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strata_pack.gateway.caller import Caller
from strata_pack.gateway.deadline import Deadline
from strata_pack.gateway.failures import ApiError, internal, shutting_down
from strata_pack.gateway.metrics import Metrics
from strata_pack.gateway.offload import offload
from strata_pack.gateway.reply import encode
from strata_pack.gateway.server.access import Access, Sink
from strata_pack.gateway.server.browsers import Headers, OriginPolicy
from strata_pack.gateway.server.encodings import decoded
from strata_pack.gateway.server.keys import Keys
from strata_pack.gateway.server.protocol import Connection
from strata_pack.gateway.settings import Settings
from strata_pack.gateway.streams import ReplyStream

log = logging.getLogger("strata_pack.gateway")

OPEN_PATHS = ("/health", "/")
"""Paths without a key: the health check, and the live page (which has no data)."""

CONVERSATIONS = {"/v1/responses": "input", "/v1/completions": "prompt"}
"""An API's field of the conversation, if not ``messages``."""

ANTHROPIC_PATH = "/v1/messages"
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
STALL_CHECK_SECONDS = 5.0


def is_anthropic(scope: Scope) -> bool:
    """Return whether the client uses Anthropic's API: by the path, or (``/v1/models``) by the header that its clients
    send."""
    return scope["path"].startswith(ANTHROPIC_PATH) or any(name == b"anthropic-version" for name, _ in scope["headers"])


def error_reply(error: ApiError, scope: Scope, request_id: str) -> ReplyStream:
    """Return the error in the format of the client's API."""
    if is_anthropic(scope):
        value = {**error.anthropic(), "request_id": request_id}
    else:
        value = error.openai(conversation=CONVERSATIONS.get(scope["path"], "messages"))
    headers = dict(error.headers)
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return ReplyStream(encode(value), error.status, headers)


class GatewayMiddleware:
    """The middleware around ``app``."""

    def __init__(
        self, app: ASGIApp, settings: Settings, metrics: Metrics, keys: Keys, sinks: Sequence[Sink] = ()
    ) -> None:
        self._app = app
        self._sinks = tuple(sinks)
        self._keys = keys
        self._settings = settings
        self._metrics = metrics
        self._origins = OriginPolicy(settings.cors, settings.hosts, keyed=bool(keys))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        exchange = _Exchange(
            scope,
            send,
            request_id,
            self._settings.limits.stalled_client_seconds,
            self._origins.response_headers(headers),
        )
        began, clock = time.time(), time.monotonic()
        failure: ApiError | None = None
        try:
            failure = await self._answered(exchange, headers, receive)
        finally:
            if self._sinks:
                self._tell(exchange, headers, failure, began, time.monotonic() - clock)

    async def _answered(self, exchange: _Exchange, headers: dict[str, str], receive: Receive) -> ApiError | None:
        """Answer the request; return its error, if any."""
        scope = exchange.scope
        try:
            if (preflight := self._origins.preflight(scope["method"], headers)) is not None:
                await preflight(scope, receive, exchange.send)
                return None
            self._origins.check(scope["method"], scope["path"], headers, scope["http_version"])
            exchange.caller = Caller(exchange.request_id, self._admit(scope, headers))
            scope["strata.caller"] = exchange.caller
            try:
                body = await self._read(scope, headers, receive)
            except asyncio.CancelledError:
                # Only the end of the gateway's drain cancels here.
                uncancel()
                raise shutting_down() from None
            await exchange.run(self._app, body)
        except ApiError as error:
            if not error.counted:
                self._metrics.refused(error.kind)
            await self._fail(exchange, error)
            return error
        except Exception:
            log.exception("request %s failed", exchange.request_id)
            self._metrics.refused("internal")
            failure = internal()
            await self._fail(exchange, failure)
            return failure
        return None

    def _tell(
        self, exchange: _Exchange, headers: dict[str, str], failure: ApiError | None, began: float, seconds: float
    ) -> None:
        scope, caller = exchange.scope, exchange.caller
        record = caller.records[-1] if caller and caller.records else None
        outcome = failure.kind if failure else record.outcome if record else "cancelled" if exchange.gone else "ok"
        access = Access(
            at=began,
            seconds=seconds,
            request_id=exchange.request_id,
            client=caller.client if caller else str((scope.get("client") or ("unknown",))[0]),
            method=scope["method"],
            path=scope["path"],
            status=exchange.status,
            outcome=outcome,
            model=record.model if record else "",
            record=record,
            traceparent=headers.get("traceparent", ""),
        )
        for sink in self._sinks:
            try:
                sink(access)
            except Exception:
                log.exception("request %s could not be logged", exchange.request_id)

    async def _fail(self, exchange: _Exchange, error: ApiError) -> None:
        if not exchange.started and not exchange.gone:
            reply = error_reply(error, exchange.scope, exchange.request_id)
            await reply(exchange.scope, exchange.receive, exchange.send)

    def _admit(self, scope: Scope, headers: dict[str, str]) -> str:
        """Return the client's name for the queue. Raises ``ApiError`` 401."""
        address = str((scope.get("client") or ("unknown",))[0])
        if not self._keys:
            return address
        if scope["path"] in OPEN_PATHS:
            return address
        return self._keys.owner(headers)

    async def _read(self, scope: Scope, headers: dict[str, str], receive: Receive) -> bytes:
        """Return the body. Raises ``ApiError`` 413 or 408."""
        limit = self._settings.limits.body_bytes
        announced = headers.get("content-length", "")
        too_large = ApiError(413, f"the body is larger than {limit} bytes", kind="too_large")
        if announced.isdigit() and int(announced) > limit:
            raise too_large
        if scope["method"] in ("GET", "HEAD") and "transfer-encoding" not in headers and announced in ("", "0"):
            return b""
        parts: list[bytes] = []
        size, more = 0, True
        try:
            with nullcontext() if scope.get("strata.received") else Deadline(self._settings.limits.body_seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError(
                            400, "the client disconnected before it had sent the whole body", kind="disconnected"
                        )
                    part = message.get("body", b"")
                    size += len(part)
                    if size > limit:
                        raise too_large
                    parts.append(part)
                    more = message.get("more_body", False)
        except TimeoutError:
            raise ApiError(408, "the body did not arrive in time", kind="slow_body") from None
        body = b"".join(parts)
        encodings = headers.get("content-encoding", "")
        return await offload(limit, lambda: decoded(body, encodings, limit)) if encodings else body


class _Exchange:
    """One request and its response; detects a client that disconnects or stops reading."""

    def __init__(
        self, scope: Scope, send: Send, request_id: str, stalled_seconds: float, more_headers: Headers
    ) -> None:
        self._more_headers = more_headers
        self.caller: Caller | None = None
        self.status = 0
        """Status of the response, 0 before it starts."""
        self.scope = scope
        self.request_id = request_id
        self.started = False
        self.gone = False
        self._send = send
        self._complete = False
        self._sending_since: float | None = None
        self._stalled_seconds = stalled_seconds
        self._loop = asyncio.get_running_loop()
        self._insist: asyncio.TimerHandle | None = None

    async def run(self, app: ASGIApp, body: bytes) -> None:
        """Run ``app``; it is cancelled if the client disconnects or does not read."""
        self.scope["strata.body"] = body
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._stall = self._loop.call_later(STALL_CHECK_SECONDS, self._check_stall)
        connection: Connection = self.scope["strata.connection"]
        connection.on_close.append(self._client_left)
        if connection.closed:
            self._client_left()
        try:
            await app(self.scope, self.receive, self.send)
        except asyncio.CancelledError:
            uncancel()
            if not self.gone and not self._complete:
                failure = shutting_down()
                failure.counted = True
                raise failure from None
        finally:
            connection.on_close.remove(self._client_left)
            self._stall.cancel()
            if self._insist is not None:
                self._insist.cancel()

    async def receive(self) -> Message:
        """Wait for ever: the body was read, and the connection reports a disconnect."""
        await self._loop.create_future()
        raise AssertionError("unreachable")

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            message["headers"] = [*message.get("headers", []), *self._own_headers()]
        elif not message.get("more_body", False):
            self._complete = True
        # A ping may be waiting already: then the stall began with it.
        self._sending_since = self._sending_since or self._loop.time()
        try:
            await self._send(message)
        finally:
            self._sending_since = None

    def _own_headers(self) -> list[tuple[bytes, bytes]]:
        request_id = self.request_id.encode("latin-1")
        own = [(b"x-request-id", request_id), (b"x-content-type-options", b"nosniff"), *self._more_headers]
        return [*own, (b"request-id", request_id)] if is_anthropic(self.scope) else own

    def _client_left(self) -> None:
        if not self._complete:
            self.gone = True
            self._task.cancel()
            # More than once: asyncio.wait_for of Python before 3.12 may swallow a cancellation.
            self._insist = self._loop.call_later(1.0, self._client_left)

    def _check_stall(self) -> None:
        since = self._sending_since
        if since is not None and self._loop.time() - since > self._stalled_seconds:
            self.gone = True
            self._task.cancel()
            self.scope["strata.connection"].abort()
        self._stall = self._loop.call_later(STALL_CHECK_SECONDS, self._check_stall)


def uncancel() -> None:
    """Take back a cancellation of this task that was caught (Python counts them since 3.11)."""
    task = asyncio.current_task()
    if task is not None and hasattr(task, "uncancel"):
        task.uncancel()
