"""Information endpoints: models, health, status, metrics, live page and API descriptions."""

from __future__ import annotations

import importlib.resources
import re
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request

from strata_pack.gateway.api.openapi import openapi
from strata_pack.gateway.failures import ApiError, shutting_down
from strata_pack.gateway.fleet import Fleet
from strata_pack.gateway.reply import encode
from strata_pack.gateway.server.live import live_page
from strata_pack.gateway.server.prometheus import CONTENT_TYPE, prometheus_text
from strata_pack.gateway.server.routes import Response, Route
from strata_pack.gateway.service import Gateway
from strata_pack.gateway.streams import ReplyStream

MODEL_PATH = "/v1/models/"
METRICS_FORMS = {"application/json": "json", "text/plain": "text", "application/openmetrics-text": "text"}
WEIGHT = re.compile(r"[01](?:\.[0-9]{0,3})?")


async def models(fleet: Fleet, _request: Request) -> Response:
    """List the models."""
    entries = [_model_entry(gateway, fleet) for gateway in fleet.gateways]
    ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"]}
    return ReplyStream(encode({"object": "list", "data": entries, "has_more": False, **ends}))


async def model(fleet: Fleet, request: Request) -> Response:
    """Describe one model."""
    name = unquote(request.scope["path"].removeprefix(MODEL_PATH))
    return ReplyStream(encode(_model_entry(fleet.exactly(name), fleet)))


async def health(fleet: Fleet, _request: Request) -> Response:
    """Answer 200 if requests can be served, 503 if not."""
    if fleet.draining:
        raise shutting_down()
    if not await fleet.ready():
        raise ApiError(503, "the llama.cpp server is not ready", kind="upstream_unavailable", retry_after=2)
    return ReplyStream(encode({"status": "ok"}))


async def status(fleet: Fleet, _request: Request) -> Response:
    """Return the served model, its runtime and the load."""
    return ReplyStream(encode(await fleet.status()))


async def metrics(fleet: Fleet, request: Request) -> Response:
    """Return the metrics, as JSON or as Prometheus text."""
    if _prefers_text(",".join(request.headers.getlist("accept"))):
        return await prometheus(fleet, request)
    return ReplyStream(encode(fleet.metrics_dict()))


async def prometheus(fleet: Fleet, _request: Request) -> Response:
    """Return the metrics as Prometheus text."""
    sources = [(one.metrics, one.admission, one.served) for one in fleet.gateways]
    text = prometheus_text(sources, fleet.metrics if fleet.several else None)
    return ReplyStream(text, headers={"content-type": CONTENT_TYPE})


async def live(fleet: Fleet, _request: Request) -> Response:
    """Return the data of the live page."""
    shown = {
        "status": await fleet.status(),
        **fleet.metrics_dict(),
        "implicit_ends": [asdict(end) for gateway in fleet.gateways for end in gateway.metrics.ends],
    }
    return ReplyStream(encode(shown))


async def page(_fleet: Fleet, _request: Request) -> Response:
    """Return the live page."""
    body, headers = _live_page()
    return ReplyStream(body, headers=headers)


async def dashboard(_fleet: Fleet, _request: Request) -> Response:
    """Return the Grafana dashboard."""
    return ReplyStream(importlib.resources.files(__package__).joinpath("grafana.json").read_bytes())


async def described(_fleet: Fleet, _request: Request) -> Response:
    """Return the OpenAPI description."""
    return ReplyStream(_schema())


ABOUT = (
    Route("GET", "/v1/models", models),
    Route("GET", MODEL_PATH, model),
    Route("GET", "/v1/status", status),
    Route("GET", "/v1/live", live),
    Route("GET", "/health", health),
    Route("GET", "/metrics", metrics),
    Route("GET", "/metrics/prometheus", prometheus),
    Route("GET", "/grafana.json", dashboard),
    Route("GET", "/openapi.json", described),
    Route("GET", "/", page),
)

_live_page = cache(live_page)


@cache
def _schema() -> bytes:
    return encode(openapi())


def _model_entry(gateway: Gateway, fleet: Fleet) -> dict[str, Any]:
    """Return the description of a model, with the fields of OpenAI's API and of Anthropic's."""
    name = gateway.served.model
    created = int(fleet.metrics.started)
    state = {} if gateway.host is None else {"state": gateway.host.state}
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "strata-pack",
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        **state,
    }


def _prefers_text(accept: str) -> bool:
    """Return whether an ``Accept`` header asks for Prometheus text before JSON (RFC 9110, section 12.5.1)."""
    best = {"json": 0.0, "text": 0.0}
    for order, entry in enumerate(accept.lower().split(",")):
        media, *parameters = (part.strip() for part in entry.split(";"))
        form = METRICS_FORMS.get(media)
        weight = next((part[2:] for part in parameters if part.startswith("q=")), "1")
        if form and WEIGHT.fullmatch(weight):
            # Of two types with the same weight the first one wins.
            best[form] = max(best[form], float(weight) - order * 1e-6 if float(weight) else 0.0)
    return best["text"] > best["json"]
