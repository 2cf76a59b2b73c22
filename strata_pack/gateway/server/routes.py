"""What every endpoint is made of: a function of the gateways and the request, and how it reads what it was sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

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

EXTRA_HEADER = "x-strata"


@dataclass(frozen=True)
class Route:
    """An endpoint; one whose path ends in a slash answers every path that begins with it."""

    method: HttpMethod
    path: str
    endpoint: Endpoint


async def read(request: Request, kind: type[B], make: Callable[[B], T]) -> T:
    """Return what ``make`` makes of the request's body; raises ``ApiError`` 400 for a body that is not ``kind``."""
    data = await request.body()
    return await offload(len(data), lambda: make(read_body(kind, sound_json(data))))


def caller_of(request: Request) -> Caller:
    """Return who asks, as the middleware found out."""
    caller: Caller = request.scope["strata.caller"]
    return caller


def wants_extra(request: Request) -> bool:
    """Return whether the client asks for ``x_strata`` in its reply."""
    value: Any = request.headers.get(EXTRA_HEADER, "")
    return value.lower() in ("1", "true", "yes")
