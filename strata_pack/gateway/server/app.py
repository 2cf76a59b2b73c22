"""The ASGI application: routes are a dict lookup of path and method."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from strata_pack.gateway.failures import ApiError, no_route
from strata_pack.gateway.fleet import Fleet
from strata_pack.gateway.server.about import ABOUT
from strata_pack.gateway.server.access import Sink
from strata_pack.gateway.server.generate import GENERATING, NATIVE
from strata_pack.gateway.server.keys import Keys
from strata_pack.gateway.server.middleware import GatewayMiddleware
from strata_pack.gateway.server.routes import Endpoint, Route
from strata_pack.gateway.service import Gateway

SHORT_PATHS = {
    path.removeprefix("/v1"): path
    for path in ("/v1/chat/completions", "/v1/chat/completions/input_tokens", "/v1/responses", "/v1/models")
}
"""llama-server's paths without the version -> the path; a client's base URL may lack it."""

EndpointTable = dict[str, dict[str, Endpoint]]
"""Endpoints by path and method."""


def create_app(served: Gateway | Fleet, keys: Keys | None = None, sinks: Sequence[Sink] = ()) -> ASGIApp:
    """Return the ASGI application of one gateway or several; ``sinks`` get every finished request."""
    fleet = served if isinstance(served, Fleet) else Fleet([served])
    settings = fleet.first.settings
    table = _table((*GENERATING, *(NATIVE if settings.pass_native else ()), *ABOUT))

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        scope["path"] = SHORT_PATHS.get(scope["path"], scope["path"])
        response = await _endpoint(table, scope)(fleet, Request(scope, receive))
        await response(scope, receive, send)

    return GatewayMiddleware(
        application, settings, fleet.metrics, Keys(settings.api_keys) if keys is None else keys, sinks
    )


def _table(routes: Sequence[Route]) -> EndpointTable:
    table: EndpointTable = {}
    for route in routes:
        table.setdefault(route.path, {})[route.method] = route.endpoint
    return table


def _endpoint(table: EndpointTable, scope: Scope) -> Endpoint:
    """Return the endpoint of this path and method. Raises ``ApiError`` 404 or 405."""
    path = scope["path"]
    methods = table.get(path) or _below(table, path)
    if methods is None:
        raise no_route(path)
    endpoint = methods.get("GET" if scope["method"] == "HEAD" else scope["method"])
    if endpoint is None:
        allowed = ", ".join([*methods, *(["HEAD"] if "GET" in methods else [])])
        raise ApiError(405, f"{path[:100]} takes {allowed}", kind="no_route", headers={"allow": allowed})
    return endpoint


def _below(table: EndpointTable, path: str) -> dict[str, Endpoint] | None:
    """Return the endpoints of a route whose path, ending in a slash, is a prefix of ``path`` ("/" is not one)."""
    above = (one for one in table if len(one) > 1 and one.endswith("/") and path.startswith(one))
    return next((table[one] for one in above), None)
