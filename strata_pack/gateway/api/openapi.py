"""``/openapi.json``: request schemas come from the request classes, reply schemas are written here."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from strata_pack import __version__
from strata_pack.gateway.api.chat.request import ChatRequest
from strata_pack.gateway.api.messages.request import CountRequest, MessagesRequest
from strata_pack.gateway.api.responses.request import ResponsesRequest

REFERENCE = "#/components/schemas/{model}"
STRING: dict[str, Any] = {"type": "string"}
INTEGER: dict[str, Any] = {"type": "integer"}
NUMBER: dict[str, Any] = {"type": "number"}
OBJECT: dict[str, Any] = {"type": "object"}
NULLABLE_STRING: dict[str, Any] = {"type": ["string", "null"]}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with these properties, required unless the name ends in an underscore."""
    required = [name for name in properties if not name.endswith("_")]
    named = {name.rstrip("_"): schema for name, schema in properties.items()}
    return {"type": "object", "properties": named, "required": required}


def _list(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


def _one_of(*values: str | None) -> dict[str, Any]:
    return {"enum": list(values)}


CALL = {
    "anyOf": [
        _object(id=STRING, type=_one_of("function"), function=_object(name=STRING, arguments=STRING)),
        _object(id=STRING, type=_one_of("custom"), custom=_object(name=STRING, input=STRING)),
    ]
}
MESSAGE = _object(
    role=_one_of("assistant"),
    content=NULLABLE_STRING,
    reasoning_content_=STRING,
    reasoning_=STRING,
    tool_calls_=_list(CALL),
    function_call_=_object(name=STRING, arguments=STRING),
)
CHOICE = _object(
    index=INTEGER,
    message=MESSAGE,
    finish_reason=_one_of("stop", "length", "tool_calls", "function_call"),
    logprobs={"type": ["object", "null"]},
    ended_inside_thinking_={"type": "boolean"},
)
CHAT_USAGE = _object(
    prompt_tokens=INTEGER,
    completion_tokens=INTEGER,
    total_tokens=INTEGER,
    prompt_tokens_details=_object(cached_tokens=INTEGER),
    completion_tokens_details=_object(reasoning_tokens=INTEGER),
)
MESSAGES_USAGE = _object(
    input_tokens=INTEGER, cache_read_input_tokens=INTEGER, cache_creation_input_tokens=INTEGER, output_tokens=INTEGER
)
MODEL = _object(
    id=STRING,
    object=_one_of("model"),
    created=INTEGER,
    owned_by=STRING,
    type=_one_of("model"),
    display_name=STRING,
    created_at={"type": "string", "format": "date-time"},
)
SCHEMAS: dict[str, dict[str, Any]] = {
    "ChatCompletion": _object(
        id=STRING,
        object=_one_of("chat.completion"),
        created=INTEGER,
        model=STRING,
        choices=_list(CHOICE),
        usage=CHAT_USAGE,
        system_fingerprint_=STRING,
        timings_=OBJECT,
        x_strata_=OBJECT,
    ),
    "Response": _object(
        id=STRING,
        object=_one_of("response"),
        created_at=INTEGER,
        model=STRING,
        status=_one_of("completed", "incomplete"),
        output=_list(
            _object(
                id=STRING,
                type=_one_of("reasoning", "message", "function_call", "custom_tool_call"),
                status=_one_of("completed", "incomplete"),
            )
        ),
        usage=OBJECT,
        store={"type": "boolean"},
        previous_response_id=NULLABLE_STRING,
        error={"type": "null"},
        incomplete_details={"type": ["object", "null"]},
        instructions=NULLABLE_STRING,
        metadata=OBJECT,
        reasoning=_object(effort=NULLABLE_STRING, summary=NULLABLE_STRING),
        text=_object(format=_object(type=STRING)),
        tool_choice={"type": ["string", "object"]},
        tools=_list(_object(type=STRING)),
        truncation=_one_of("auto", "disabled"),
        ended_inside_thinking_={"type": "boolean"},
        x_strata_=OBJECT,
    ),
    "Message": _object(
        id=STRING,
        type=_one_of("message"),
        role=_one_of("assistant"),
        model=STRING,
        content=_list(_object(type=_one_of("thinking", "text", "tool_use"))),
        stop_reason=_one_of("end_turn", "max_tokens", "stop_sequence", "tool_use"),
        stop_sequence=NULLABLE_STRING,
        usage=MESSAGES_USAGE,
        x_strata_=OBJECT,
    ),
    "TokenCount": _object(input_tokens=INTEGER),
    "InputTokenCount": _object(object=_one_of("response.input_tokens"), input_tokens=INTEGER),
    "InputItems": _object(
        object=_one_of("list"),
        data=_list(OBJECT),
        first_id=NULLABLE_STRING,
        last_id=NULLABLE_STRING,
        has_more={"type": "boolean"},
    ),
    "Deleted": _object(id=STRING, object=_one_of("response"), deleted={"const": True}),
    "Completion": OBJECT,
    "Models": _object(
        object=_one_of("list"), data=_list(MODEL), has_more={"const": False}, first_id=STRING, last_id=STRING
    ),
    "Model": MODEL,
    "Status": _object(
        model=STRING,
        quant=STRING,
        pack={"type": ["object", "null"]},
        template=_object(id=STRING, status=STRING, sha256=STRING),
        runtime=STRING,
        uptime=NUMBER,
        slots=_object(all=INTEGER, busy=INTEGER),
        waiting=INTEGER,
        draining={"type": "boolean"},
        upstream_ready={"type": "boolean"},
    ),
    "Health": _object(status=_one_of("ok")),
    "Metrics": _object(totals=OBJECT, running=INTEGER, requests=_list(OBJECT)),
    "Live": _object(status=OBJECT, totals=OBJECT, requests=_list(OBJECT), implicit_ends=_list(OBJECT)),
    "OpenAIError": _object(
        error=_object(
            message=STRING,
            type=STRING,
            param=NULLABLE_STRING,
            code=NULLABLE_STRING,
            n_prompt_tokens_=INTEGER,
            n_ctx_=INTEGER,
        ),
    ),
    "AnthropicError": _object(type=_one_of("error"), error=_object(type=STRING, message=STRING)),
}

TOKEN_LIST = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
COMPLETION_REQUEST = {
    "type": "object",
    "properties": {
        "prompt": {
            "anyOf": [
                STRING,
                {"type": "array", "items": STRING, "minItems": 1},
                TOKEN_LIST,
                {"type": "array", "items": TOKEN_LIST, "minItems": 1},
            ]
        },
        "max_tokens": {"type": "integer", "minimum": 1},
        "stream": {"type": "boolean"},
    },
    "required": ["prompt"],
}
"""``/v1/completions`` is passed to llama-server; further fields are not checked."""

STREAMED: dict[str, Any] = {"text/event-stream": {}}
POSTS = (
    ("/v1/chat/completions", "Generate the next message", "ChatRequest", "ChatCompletion", True),
    ("/v1/chat/completions/input_tokens", "Count the tokens of a prompt", "ChatRequest", "InputTokenCount", False),
    ("/v1/responses", "Generate a response (stored for some hours)", "ResponsesRequest", "Response", True),
    ("/v1/responses/input_tokens", "Count the tokens of a prompt", "ResponsesRequest", "InputTokenCount", False),
    ("/v1/messages", "Generate a message (Anthropic's API)", "MessagesRequest", "Message", True),
    ("/v1/messages/count_tokens", "Count the tokens of a prompt", "CountRequest", "TokenCount", False),
    ("/v1/completions", "Complete a text (passed to llama-server)", "CompletionRequest", "Completion", True),
)
GETS = (
    ("/v1/models", "The model that is served", "Models"),
    ("/v1/status", "Pack, template and runtime", "Status"),
    ("/v1/live", "What the live page shows", "Live"),
    ("/health", "Whether it can generate", "Health"),
    ("/metrics", "Counters and the last requests", "Metrics"),
)
ERRORS = {
    "400": "The request cannot be served; `param` names the field",
    "401": "The API key is missing or wrong",
    "403": "A web page whose origin was not allowed",
    "408": "The body did not arrive in time",
    "413": "The body is too large",
    "415": "The body's encoding is not supported",
    "421": "The host name is not allowed",
    "429": "The queue is full; see Retry-After",
    "502": "The llama.cpp server failed",
    "503": "The llama.cpp server is away or loading; see Retry-After",
    "504": "The llama.cpp server was silent for too long",
}


def openapi() -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of the gateway."""
    models = [(kind, "validation") for kind in (ChatRequest, ResponsesRequest, MessagesRequest, CountRequest)]
    _, definitions = models_json_schema(models, ref_template=REFERENCE)  # type: ignore[arg-type]
    paths: dict[str, Any] = {}
    for path, summary, request, reply, streams in POSTS:
        content = {**_json(reply), **(STREAMED if streams else {})}
        body = {"required": True, "content": _json(request)}
        paths[path] = {"post": {"summary": summary, "requestBody": body, "responses": _responses(path, content)}}
    for path, summary, reply in GETS:
        content = _json(reply)
        if path == "/metrics":
            content = {**content, "text/plain": {"schema": STRING}}
        paths[path] = {"get": {"summary": summary, "responses": _responses(path, content)}}
    paths["/v1/models/{model}"] = {
        "get": {
            "summary": "The model that is served, if it has this name",
            "parameters": [{"name": "model", "in": "path", "required": True, "schema": STRING}],
            "responses": {
                **_responses("/v1/models", _json("Model")),
                "404": {"description": "There is no such model here", "content": _json("OpenAIError")},
            },
        }
    }
    gone = {"404": {"description": "It is not stored here, or no longer", "content": _json("OpenAIError")}}
    for path, method, summary, reply in (
        ("/v1/responses/{response_id}", "get", "A stored response", "Response"),
        ("/v1/responses/{response_id}", "delete", "Delete a stored response", "Deleted"),
        ("/v1/responses/{response_id}/input_items", "get", "The input items of a stored response", "InputItems"),
    ):
        paths.setdefault(path, {})[method] = {
            "summary": summary,
            "parameters": [{"name": "response_id", "in": "path", "required": True, "schema": STRING}],
            "responses": {**_responses(path, _json(reply)), **gone},
        }
    for path, summary, kind in (
        ("/metrics/prometheus", "The counters as Prometheus text", "text/plain"),
        ("/grafana.json", "A Grafana dashboard", "application/json"),
        ("/", "The live page", "text/html"),
    ):
        schema = OBJECT if kind == "application/json" else STRING
        paths[path] = {"get": {"summary": summary, "responses": _responses(path, {kind: {"schema": schema}})}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "strata-pack gateway",
            "version": __version__,
            "description": "OpenAI- and Anthropic-compatible; no generated tool call gets lost.",
        },
        "security": [{}, {"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": {**definitions["$defs"], **SCHEMAS, "CompletionRequest": COMPLETION_REQUEST},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _json(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": REFERENCE.format(model=schema)}}}


def _responses(path: str, content: dict[str, Any]) -> dict[str, Any]:
    failure = _json("AnthropicError" if path.startswith("/v1/messages") else "OpenAIError")
    errors = {status: {"description": text, "content": failure} for status, text in ERRORS.items()}
    return {"200": {"description": "The answer", "content": content}, **errors}
