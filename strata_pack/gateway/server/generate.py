"""Endpoints that use the model: the three APIs, and those passed on to llama-server."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Any
from urllib.parse import unquote

from pydantic import Field
from starlette.requests import Request

from strata_pack.gateway.api.chat.reply import ChatWriter, FunctionsWriter
from strata_pack.gateway.api.chat.request import ChatRequest, chat_turn
from strata_pack.gateway.api.fields import Body, Kept, TokenLimit, read_body, sound_json
from strata_pack.gateway.api.messages.reply import MessagesWriter
from strata_pack.gateway.api.messages.request import CountRequest, MessagesRequest, count_turn, messages_turn
from strata_pack.gateway.api.responses.reply import ResponsesWriter
from strata_pack.gateway.api.responses.request import ResponsesRequest, ResponsesTurn, responses_turn
from strata_pack.gateway.api.responses.store import EmptyMemory, input_items
from strata_pack.gateway.failures import ApiError, bad_request, no_route
from strata_pack.gateway.fleet import Fleet
from strata_pack.gateway.offload import offload
from strata_pack.gateway.reply import encode
from strata_pack.gateway.server.routes import Response, Route, body_of, caller_of, read, wants_extra
from strata_pack.gateway.streams import ReplyStream

RESPONSE_PATH = "/v1/responses/"

PASSED = {
    "/v1/embeddings": "/v1/embeddings",
    "/embeddings": "/v1/embeddings",
    "/v1/rerank": "/v1/rerank",
    "/rerank": "/v1/rerank",
    "/v1/reranking": "/v1/rerank",
    "/reranking": "/v1/rerank",
}
"""Paths passed on for specially started llama-servers (embeddings, reranking) -> llama-server's path."""

UNKNOWN_CONSTRAINTS = (
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
    *("regex", "ebnf", "structural_tag"),
)
"""Constraints that llama-server would silently ignore."""


class CompletionRequest(Body):
    """The fields of a ``/v1/completions`` body that are checked before it is passed on."""

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
    regex: Any = None
    ebnf: Any = None
    structural_tag: Any = None


class PassedRequest(Kept):
    """A body that is passed on unchecked."""


async def chat(fleet: Fleet, request: Request) -> Response:
    """Answer OpenAI's chat completions."""
    choices = fleet.first.settings.limits.choices
    body, turn = await read(request, ChatRequest, lambda body: (body, chat_turn(body, choices)))
    caller = caller_of(request)
    gateway = fleet.named(body.model)
    kind = ChatWriter if body.functions is None else FunctionsWriter
    writer = kind(
        caller.request_id,
        gateway.served.model,
        include_usage=body.include_usage,
        show_extra=wants_extra(request),
        origins=turn.origins,
        fingerprint=lambda: gateway.served.build,
    )
    return await gateway.answer("chat", turn, writer, caller)


async def count_chat(fleet: Fleet, request: Request) -> Response:
    """Count the tokens of a chat request, as llama-server does."""
    choices = fleet.first.settings.limits.choices
    name, turn = await read(request, ChatRequest, lambda body: (body.model, chat_turn(body, choices)))
    tokens = await fleet.named(name).count(turn)
    return ReplyStream(encode({"object": "response.input_tokens", "input_tokens": tokens}))


async def responses(fleet: Fleet, request: Request) -> Response:
    """Answer OpenAI's responses."""
    caller = caller_of(request)
    memory = fleet.first.store.of(caller.client)
    data = body_of(request)

    def read_all() -> tuple[bytes, str | None, ResponsesTurn]:
        sound = sound_json(data)
        asked = read_body(ResponsesRequest, sound)
        return sound, asked.model, responses_turn(asked, memory or EmptyMemory())

    body, name, turn = await offload(len(data), read_all)
    gateway = fleet.named(name)
    keep = None
    if memory is not None and turn.store:
        keep = partial(memory.add, body=body, previous_id=turn.echoed["previous_response_id"])
    writer = ResponsesWriter(caller.request_id, gateway.served.model, turn, show_extra=wants_extra(request), keep=keep)
    return await gateway.answer("responses", turn, writer, caller)


async def response(fleet: Fleet, request: Request) -> Response:
    """Return or delete a stored response, or return its input items."""
    memory = fleet.first.store.of(caller_of(request).client)
    response_id, _, rest = unquote(request.scope["path"].removeprefix(RESPONSE_PATH)).partition("/")
    if rest not in ("", "input_items") or (rest and request.method == "DELETE"):
        raise no_route(request.scope["path"])
    if memory is None:
        raise ApiError(404, "responses are not stored here", kind="no_response", code="response_not_found")
    if request.method == "DELETE":
        memory.delete(response_id)
        return ReplyStream(encode({"id": response_id, "object": "response", "deleted": True}))
    kept = memory.get(response_id)
    if not rest:
        return ReplyStream(kept.response)
    return ReplyStream(encode(input_items(kept, request.query_params)))


async def count_input(fleet: Fleet, request: Request) -> Response:
    """Count the tokens of a responses request."""
    memory = fleet.first.store.of(caller_of(request).client)
    name, turn = await read(
        request, ResponsesRequest, lambda body: (body.model, responses_turn(body, memory or EmptyMemory()))
    )
    tokens = await fleet.named(name).count(turn)
    return ReplyStream(encode({"object": "response.input_tokens", "input_tokens": tokens}))


async def messages(fleet: Fleet, request: Request) -> Response:
    """Answer Anthropic's messages."""
    name, turn = await read(request, MessagesRequest, lambda body: (body.model, messages_turn(body)))
    gateway = fleet.named(name)
    caller = caller_of(request)
    writer = MessagesWriter(
        caller.request_id, gateway.served.model, show_extra=wants_extra(request), origins=turn.origins
    )
    return await gateway.answer("messages", turn, writer, caller)


async def count_tokens(fleet: Fleet, request: Request) -> Response:
    """Count the tokens of a messages request."""
    name, turn = await read(request, CountRequest, lambda body: (body.model, count_turn(body)))
    return ReplyStream(encode({"input_tokens": await fleet.named(name).count(turn)}))


async def completions(fleet: Fleet, request: Request) -> Response:
    """Pass a prompt on."""
    data = body_of(request)
    data = await offload(len(data), lambda: sound_json(data))
    body = read_body(CompletionRequest, data)
    for field in UNKNOWN_CONSTRAINTS:
        if getattr(body, field) is not None:
            raise bad_request(f"{field}: is not supported here; use grammar or json_schema", field)
    most = fleet.first.settings.limits.choices
    prompts = [] if isinstance(body.prompt, str) else [one for one in body.prompt if not isinstance(one, int)]
    if len(prompts) > most:
        raise bad_request(f"prompt: at most {most} prompts at a time", "prompt")
    record = caller_of(request).record("completions", stream=bool(body.stream))
    return await fleet.named(body.model).pass_through("/v1/completions", json.loads(data), record)


async def passed(fleet: Fleet, request: Request) -> Response:
    """Pass on a request that only some servers support."""
    path = PASSED[request.scope["path"]]
    body = await read(request, PassedRequest, lambda body: body.given())
    record = caller_of(request).record(path.rpartition("/")[2], stream=False)
    name = body.get("model")
    gateway = fleet.named(name if isinstance(name, str) else None)
    return await gateway.pass_through(path, body, record)


async def native(fleet: Fleet, request: Request) -> Response:
    """Pass on one of llama-server's own endpoints."""
    data = sound_json(body_of(request))
    query = request.url.query
    path = request.scope["path"] + (f"?{query}" if query else "")
    async with fleet.named(request.query_params.get("model")).held() as engine:
        status, answer = await engine.upstream.forward(request.method, path, data)
    return ReplyStream(answer, status)


GENERATING = (
    Route("POST", "/v1/chat/completions", chat),
    Route("POST", "/v1/chat/completions/input_tokens", count_chat),
    Route("POST", "/v1/responses", responses),
    Route("POST", "/v1/responses/input_tokens", count_input),
    Route("GET", RESPONSE_PATH, response),
    Route("DELETE", RESPONSE_PATH, response),
    Route("POST", "/v1/messages", messages),
    Route("POST", "/v1/messages/count_tokens", count_tokens),
    Route("POST", "/v1/completions", completions),
    *(Route("POST", path, passed) for path in PASSED),
)

NATIVE = (
    Route("POST", "/tokenize", native),
    Route("POST", "/detokenize", native),
    Route("POST", "/apply-template", native),
    Route("GET", "/props", native),
    Route("GET", "/slots", native),
)
"""llama-server's own endpoints. They bypass queue and template, so they are off by default."""
