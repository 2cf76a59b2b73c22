"""Endpoints: the type of their functions, and helpers to read requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from starlette.requests import Request

from strata_pack.gateway.api.fields import Body, read_body, sound_json
from strata_pack.gateway.caller import Caller
from strata_pack.gateway.fleet import Fleet
from strata_pack.gateway.offload import offload
from strata_pack.gateway.streams import EventStream, ReplyStream

Response = ReplyStream | EventStream
Endpoint = Callable[[Fleet, Request], Awaitable[Response]]
HttpMethod = Literal["GET", "POST", "DELETE"]
T = TypeVar("T")
B = TypeVar("B", bound=Body)

EXTRA_HEADER = b"x-strata"
YES = (b"1", b"true", b"yes")


@dataclass(frozen=True)
class Route:
    """An endpoint; a path that ends in a slash matches every path that starts with it."""

    method: HttpMethod
    path: str
    endpoint: Endpoint


async def read(request: Request, kind: type[B], make: Callable[[B], T]) -> T:
    """Decode the request's body as ``kind`` and return ``make`` of it. Raises ``ApiError`` 400 for an invalid body."""
    data = body_of(request)
    return await offload(len(data), lambda: make(read_body(kind, sound_json(data))))


def body_of(request: Request) -> bytes:
    """Return the body, which the middleware has read."""
    body: bytes = request.scope["strata.body"]
    return body


def caller_of(request: Request) -> Caller:
    """Return the caller that the middleware has identified."""
    caller: Caller = request.scope["strata.caller"]
    return caller


def wants_extra(request: Request) -> bool:
    """Return whether the client requests ``x_strata`` in its reply."""
    headers: list[tuple[bytes, bytes]] = request.scope["headers"]
    return any(name == EXTRA_HEADER and value.lower() in YES for name, value in headers)
