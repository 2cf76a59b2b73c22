"""The ASGI application: which path does what."""

from __future__ import annotations

import importlib.resources
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote

from pydantic import Field
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from strata_pack.gateway.api.chat.reply import ChatWriter, FunctionsWriter
from strata_pack.gateway.api.chat.request import ChatRequest, chat_turn
from strata_pack.gateway.api.fields import Body, Kept, TokenLimit, read_body, sound_json
from strata_pack.gateway.api.messages.reply import MessagesWriter
from strata_pack.gateway.api.messages.request import CountRequest, MessagesRequest, count_turn, messages_turn
from strata_pack.gateway.api.openapi import openapi
from strata_pack.gateway.api.responses.reply import ResponsesWriter
from strata_pack.gateway.api.responses.request import ResponsesRequest, ResponsesTurn, responses_turn
from strata_pack.gateway.api.responses.store import EmptyMemory, input_items
from strata_pack.gateway.failures import ApiError, bad_request, shutting_down
from strata_pack.gateway.fleet import Fleet
from strata_pack.gateway.offload import offload
from strata_pack.gateway.reply import encode
from strata_pack.gateway.server.access import Sink
from strata_pack.gateway.server.keys import Keys
from strata_pack.gateway.server.live import live_page
from strata_pack.gateway.server.middleware import Guard
from strata_pack.gateway.server.prometheus import CONTENT_TYPE, prometheus_text
from strata_pack.gateway.service import Caller, Gateway
from strata_pack.gateway.streams import EventStream, ReplyStream

Response = ReplyStream | EventStream
Endpoint = Callable[[Request], Awaitable[Response]]
Routes = dict[str, dict[str, Endpoint]]
"""Endpoints by path and method."""
T = TypeVar("T")
B = TypeVar("B", bound=Body)
MODEL_PATH = "/v1/models/"
RESPONSE_PATH = "/v1/responses/"
PREFIXES = (MODEL_PATH, RESPONSE_PATH)
EXTRA_HEADER = "x-strata"
METRICS_FORMS = {"application/json": "json", "text/plain": "text", "application/openmetrics-text": "text"}
WEIGHT = re.compile(r"[01](?:\.[0-9]{0,3})?")


class CompletionRequest(Body):
    """What is checked of a ``/v1/completions`` body before it is passed on."""

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1)]
        | Annotated[list[int], Field(min_length=1)]
        | Annotated[list[list[int]], Field(min_length=1)]
    )
    model: str | None = None
    stream: bool | None = None
    max_tokens: TokenLimit = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None


class PassedRequest(Kept):
    """A body that is llama-server's matter."""


PASSED = {
    "/v1/embeddings": "/v1/embeddings",
    "/embeddings": "/v1/embeddings",
    "/v1/rerank": "/v1/rerank",
    "/rerank": "/v1/rerank",
    "/v1/reranking": "/v1/rerank",
    "/reranking": "/v1/rerank",
}
"""Paths of what a llama-server that was started for it does -> its own."""

NATIVE = (
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/apply-template"),
    ("GET", "/props"),
    ("GET", "/slots"),
)
"""llama-server's own endpoints. They bypass the queue and the template, so that an operator has to open them."""

UNKNOWN_CONSTRAINTS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs")
"""Constraints that llama-server would pass over without a word."""


def create_app(served: Gateway | Fleet, keys: Keys | None = None, sinks: Sequence[Sink] = ()) -> ASGIApp:
    """Return the ASGI application of a gateway or several; ``sinks`` are told of every request that is over."""
    fleet = served if isinstance(served, Fleet) else Fleet([served])
    routes = _routes(fleet)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        response = await _endpoint(routes, scope)(Request(scope, receive))
        await response(scope, receive, send)

    asked = Keys(fleet.first.settings.api_keys) if keys is None else keys
    return Guard(application, fleet.first.settings, fleet.metrics, asked, sinks)


def _endpoint(routes: Routes, scope: Scope) -> Endpoint:
    """Return what answers this path and method; raises 404 or 405. Paths are fixed texts, or begin with one."""
    path = scope["path"]
    methods = routes.get(path) or next((routes[prefix] for prefix in PREFIXES if path.startswith(prefix)), None)
    if methods is None:
        raise ApiError(404, "there is nothing at this path", kind="no_route")
    endpoint = methods.get("GET" if scope["method"] == "HEAD" else scope["method"])
    if endpoint is None:
        allowed = ", ".join([*methods, *(["HEAD"] if "GET" in methods else [])])
        raise ApiError(405, f"this path takes {allowed}", kind="no_route", headers={"allow": allowed})
    return endpoint


def _routes(fleet: Fleet) -> Routes:
    first = fleet.first
    limits, store = first.settings.limits, first.store
    schema = encode(openapi())
    started = int(fleet.metrics.started)
    page, page_headers = live_page()

    async def chat(request: Request) -> Response:
        body, turn = await _read(request, ChatRequest, lambda body: (body, chat_turn(body, limits.choices)))
        caller = _caller(request)
        gateway = fleet.named(body.model)
        kind = ChatWriter if body.functions is None else FunctionsWriter
        writer = kind(
            caller.request_id,
            gateway.settings.served.model,
            include_usage=body.include_usage,
            show_extra=_wants_extra(request),
            origins=turn.origins,
        )
        return await gateway.answer("chat", turn, writer, caller)

    async def responses(request: Request) -> Response:
        caller = _caller(request)
        memory = store.of(caller.client)
        data = await request.body()

        def read() -> tuple[bytes, str | None, ResponsesTurn]:
            sound = sound_json(data)
            asked = read_body(ResponsesRequest, sound)
            return sound, asked.model, responses_turn(asked, memory or EmptyMemory())

        body, name, turn = await offload(len(data), read)
        gateway = fleet.named(name)
        keep = None
        if memory is not None and turn.store:
            keep = partial(memory.add, body=body, previous_id=turn.told["previous_response_id"])
        writer = ResponsesWriter(
            caller.request_id, gateway.settings.served.model, turn, show_extra=_wants_extra(request), keep=keep
        )
        return await gateway.answer("responses", turn, writer, caller)

    async def response(request: Request) -> Response:
        memory = store.of(_caller(request).client)
        response_id, _, rest = unquote(request.scope["path"].removeprefix(RESPONSE_PATH)).partition("/")
        if rest not in ("", "input_items") or (rest and request.method == "DELETE"):
            raise ApiError(404, "there is nothing at this path", kind="no_route")
        if memory is None:
            raise ApiError(404, "responses are not stored here", kind="no_response", code="response_not_found")
        if request.method == "DELETE":
            memory.delete(response_id)
            return ReplyStream(encode({"id": response_id, "object": "response", "deleted": True}))
        kept = memory.get(response_id)
        if not rest:
            return ReplyStream(kept.response)
        return ReplyStream(encode(input_items(kept, request.query_params)))

    async def count_input(request: Request) -> Response:
        memory = store.of(_caller(request).client)
        name, turn = await _read(
            request, ResponsesRequest, lambda body: (body.model, responses_turn(body, memory or EmptyMemory()))
        )
        tokens = await fleet.named(name).count(turn)
        return ReplyStream(encode({"object": "response.input_tokens", "input_tokens": tokens}))

    async def messages(request: Request) -> Response:
        name, turn = await _read(request, MessagesRequest, lambda body: (body.model, messages_turn(body)))
        gateway = fleet.named(name)
        caller = _caller(request)
        writer = MessagesWriter(
            caller.request_id,
            gateway.settings.served.model,
            show_extra=_wants_extra(request),
            origins=turn.origins,
        )
        return await gateway.answer("messages", turn, writer, caller)

    async def count_tokens(request: Request) -> Response:
        name, turn = await _read(request, CountRequest, lambda body: (body.model, count_turn(body)))
        return ReplyStream(encode({"input_tokens": await fleet.named(name).count(turn)}))

    async def completions(request: Request) -> Response:
        data = await request.body()
        data = await offload(len(data), lambda: sound_json(data))
        body = read_body(CompletionRequest, data)
        for field in UNKNOWN_CONSTRAINTS:
            if getattr(body, field) is not None:
                raise bad_request(f"{field}: is not served here; llama-server knows grammar and json_schema", field)
        prompts = [] if isinstance(body.prompt, str) else [one for one in body.prompt if not isinstance(one, int)]
        if len(prompts) > limits.choices:
            raise bad_request(f"prompt: at most {limits.choices} prompts at a time", "prompt")
        record = _caller(request).record("completions", stream=bool(body.stream))
        return await fleet.named(body.model).pass_through("/v1/completions", json.loads(data), record)

    async def passed(request: Request) -> Response:
        path = PASSED[request.scope["path"]]
        data = await request.body()
        body = await offload(len(data), lambda: _object(sound_json(data)))
        record = _caller(request).record(path.rpartition("/")[2], stream=False)
        name = body.get("model")
        gateway = fleet.named(name if isinstance(name, str) else None)
        return await gateway.pass_through(path, body, record)

    async def native(request: Request) -> Response:
        data = sound_json(await request.body())
        query = request.url.query
        path = request.scope["path"] + (f"?{query}" if query else "")
        gateway = fleet.named(request.query_params.get("model"))
        async with gateway.held():
            status, answer = await gateway.upstream.forward(request.method, path, data)
        return ReplyStream(answer, status)

    async def models(_request: Request) -> Response:
        entries = [_model_entry(gateway, started) for gateway in fleet.gateways]
        ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"]}
        return ReplyStream(encode({"object": "list", "data": entries, "has_more": False, **ends}))

    async def model(request: Request) -> Response:
        name = unquote(request.scope["path"].removeprefix(MODEL_PATH))
        return ReplyStream(encode(_model_entry(fleet.exactly(name), started)))

    async def health(_request: Request) -> Response:
        if fleet.draining:
            raise shutting_down()
        if not await fleet.ready():
            raise ApiError(503, "the llama.cpp server is not ready", kind="upstream_unavailable", retry_after=2)
        return ReplyStream(encode({"status": "ok"}))

    async def status(_request: Request) -> Response:
        return ReplyStream(encode(await fleet.status()))

    async def metrics(request: Request) -> Response:
        if _prefers_text(",".join(request.headers.getlist("accept"))):
            return await prometheus(request)
        return ReplyStream(encode(fleet.metrics_dict()))

    async def prometheus(_request: Request) -> Response:
        sources = [(one.metrics, one.admission, one.settings.served) for one in fleet.gateways]
        text = prometheus_text(sources, fleet.metrics if fleet.several else None)
        return ReplyStream(text, headers={"content-type": CONTENT_TYPE})

    async def live(_request: Request) -> Response:
        shown = {
            "status": await fleet.status(),
            **fleet.metrics_dict(),
            "implicit_ends": [asdict(end) for gateway in fleet.gateways for end in gateway.metrics.ends],
        }
        return ReplyStream(encode(shown))

    async def page_(_request: Request) -> Response:
        return ReplyStream(page, headers=page_headers)

    async def dashboard(_request: Request) -> Response:
        return ReplyStream(importlib.resources.files(__package__).joinpath("grafana.json").read_bytes())

    async def described(_request: Request) -> Response:
        return ReplyStream(schema)

    table: tuple[tuple[str, str, Endpoint], ...] = (
        ("POST", "/v1/chat/completions", chat),
        ("POST", "/v1/responses", responses),
        ("POST", "/v1/responses/input_tokens", count_input),
        ("GET", RESPONSE_PATH, response),
        ("DELETE", RESPONSE_PATH, response),
        ("POST", "/v1/messages", messages),
        ("POST", "/v1/messages/count_tokens", count_tokens),
        ("POST", "/v1/completions", completions),
        *(("POST", path, passed) for path in PASSED),
        *((method, path, native) for method, path in (NATIVE if first.settings.pass_native else ())),
        ("GET", "/v1/models", models),
        ("GET", MODEL_PATH, model),
        ("GET", "/v1/status", status),
        ("GET", "/v1/live", live),
        ("GET", "/health", health),
        ("GET", "/metrics", metrics),
        ("GET", "/metrics/prometheus", prometheus),
        ("GET", "/grafana.json", dashboard),
        ("GET", "/openapi.json", described),
        ("GET", "/", page_),
    )
    routes: Routes = {}
    for method, path, endpoint in table:
        routes.setdefault(path, {})[method] = endpoint
    return routes


async def _read(request: Request, kind: type[B], make: Callable[[B], T]) -> T:
    """Return what ``make`` makes of the request's body."""
    data = await request.body()
    return await offload(len(data), lambda: make(read_body(kind, sound_json(data))))


def _object(data: bytes) -> dict[str, Any]:
    """Return a body that is passed on; raises a 400 unless it is an object of JSON."""
    return read_body(PassedRequest, data).given()


def _model_entry(gateway: Gateway, created: int) -> dict[str, Any]:
    """Return the description of a model, with the fields of OpenAI's API and of Anthropic's."""
    name = gateway.settings.served.model
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
            # Of two with the same weight the first one wins.
            best[form] = max(best[form], float(weight) - order * 1e-6 if float(weight) else 0.0)
    return best["text"] > best["json"]


def _caller(request: Request) -> Caller:
    caller: Caller = request.scope["strata.caller"]
    return caller


def _wants_extra(request: Request) -> bool:
    value: Any = request.headers.get(EXTRA_HEADER, "")
    return value.lower() in ("1", "true", "yes")
