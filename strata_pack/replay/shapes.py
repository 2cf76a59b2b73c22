"""Recognises the formats of recorded replies ("shapes"): one function per format, listed in one table.

A shape function takes a JSON object and returns its turns, an empty list if it recognises the object but there is no
turn in it (a user's line, for example), or None if it does not recognise it. The first match in the table decides.
Sources: the API references of OpenAI (Chat Completions, Responses, Batch), Anthropic (Messages), Ollama, OpenRouter;
OpenTelemetry's semantic conventions for generative AI; the export formats of the tools named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from strata_pack.parsing import thinking_open
from strata_pack.replay.messages import as_dict, as_string, is_reply, json_value, message_turn, tools_of
from strata_pack.replay.otel import otel_turns
from strata_pack.replay.replies import RecordedTurn, text_of

Turns = list[RecordedTurn]
LogShape = Callable[[dict[str, Any]], Turns | None]

MAX_DEPTH = 6
"""Maximum nesting depth of wrappers."""


def _choices(record: dict[str, Any]) -> Turns | None:
    """Recognise OpenAI's chat completions and completions, and compatible servers."""
    choices = record.get("choices")
    if not isinstance(choices, list):
        return None
    turns: Turns = []
    for choice in choices:
        choice = as_dict(choice)
        reason = choice.get("finish_reason")
        if isinstance(choice.get("message"), dict):
            turns.append(message_turn(choice["message"], reason))
        elif isinstance(choice.get("text"), str):
            turns.append(RecordedTurn(content=choice["text"], finish_reason=as_string(reason), raw=True))
    return turns if turns or not choices else None


def _responses(record: dict[str, Any]) -> Turns | None:
    """Recognise OpenAI's Responses API."""
    output = record.get("output")
    if not isinstance(output, list) or not (
        record.get("object") == "response" or any("type" in as_dict(item) for item in output)
    ):
        return None
    turn = items_turn(output)
    details = as_dict(record.get("incomplete_details")).get("reason")
    return [] if turn is None else [replace(turn, finish_reason=as_string(details) or as_string(record.get("status")))]


def items_turn(items: Iterable[Any]) -> RecordedTurn | None:
    """Return the turn that items of the Responses API form, None if none of them is the model's."""
    reasoning: list[str] = []
    content: list[str] = []
    calls: list[Any] = []
    known = False
    for item in map(as_dict, items):
        kind = item.get("type")
        if kind == "reasoning":
            text = text_of(item.get("content")) or text_of(item.get("summary")) or as_string(item.get("text")) or ""
            reasoning.append(text)
        elif kind == "message" and item.get("role", "assistant") == "assistant":
            content.append(text_of(item.get("content")))
        elif kind in ("function_call", "custom_tool_call", "local_shell_call", "mcp_call"):
            calls.append(item.get("arguments", item.get("input", item.get("action"))))
        else:
            continue
        known = True
    if not known:
        return None
    return RecordedTurn("\n".join(filter(None, reasoning)), "".join(content), tuple(calls), raw=not any(reasoning))


def _anthropic(record: dict[str, Any]) -> Turns | None:
    """Recognise Anthropic's Messages API."""
    if record.get("type") != "message" or record.get("role") != "assistant":
        return None
    return [message_turn(record)] if "content" in record else []


def _ollama(record: dict[str, Any]) -> Turns | None:
    """Recognise whole replies of Ollama's ``/api/chat`` and ``/api/generate`` (for streams see ``chunks``)."""
    if not isinstance(record.get("done"), bool):
        return None
    if isinstance(record.get("message"), dict):
        return [message_turn(record["message"], record.get("done_reason"))]
    if not isinstance(record.get("response"), str):
        return None
    thinking = text_of(record.get("thinking"))
    reason = as_string(record.get("done_reason"))
    return [RecordedTurn(thinking, record["response"], finish_reason=reason, raw=not thinking)]


def _llama_server(record: dict[str, Any]) -> Turns | None:
    """Recognise llama.cpp's ``/completion``."""
    if not isinstance(record.get("content"), str) or not ({"stop", "stop_type", "tokens_predicted"} & record.keys()):
        return None
    prompt = record.get("prompt")
    thinks = thinking_open(prompt) if isinstance(prompt, str) and prompt else None
    reason = as_string(record.get("stop_type")) or ("limit" if record.get("stopped_limit") is True else None)
    return [RecordedTurn(content=record["content"], finish_reason=reason, raw=True, thinks=thinks)]


def completed(turn: RecordedTurn, request: Mapping[str, Any]) -> RecordedTurn:
    """Return the turn with tools and model of its request."""
    prompt = request.get("prompt")
    return replace(
        turn,
        model=turn.model or as_string(request.get("model")),
        tools=turn.tools if turn.tools is not None else tools_of(request),
        thinks=thinking_open(prompt) if turn.thinks is None and isinstance(prompt, str) and prompt else turn.thinks,
    )


def _claude_code(record: dict[str, Any]) -> Turns | None:
    """Recognise a line of a Claude Code session that is not a reply (``chunks`` assembles replies)."""
    kinds = {"user", "system", "summary", "file-history-snapshot", "queue-operation", "progress", "attachment"}
    if as_string(record.get("type")) in kinds and ({"sessionId", "uuid", "leafUuid", "messageId"} & record.keys()):
        return []
    return None


def _langfuse(record: dict[str, Any]) -> Turns | None:
    """Recognise Langfuse's observations, and traces with observations in them."""
    if isinstance(record.get("observations"), list):
        return [turn for one in record["observations"] for turn in _langfuse(as_dict(one)) or ()]
    if record.get("type") not in ("GENERATION", "SPAN", "EVENT", "TRACE", "AGENT", "TOOL", "CHAIN") or not (
        {"traceId", "trace_id", "startTime", "start_time", "output"} & record.keys()
    ):
        return None
    if record["type"] != "GENERATION":
        return []
    output = record.get("output")
    value = json_value(output)
    output = output if value is None else value
    if isinstance(output, str):
        found = [RecordedTurn(content=output, raw=True)]
    else:
        output = output[-1] if isinstance(output, list) and output else output
        found = (turns_in(output) if isinstance(output, dict) else None) or []
    asked = json_value(record.get("input")) or record.get("input")
    return [completed(turn, {"model": record.get("model"), **as_dict(asked)}) for turn in found]


def _opencode(record: dict[str, Any]) -> Turns | None:
    """Recognise OpenCode: a message with its parts, or a session with messages."""
    info, parts = record.get("info"), record.get("parts")
    if not isinstance(info, dict) or not isinstance(parts, list):
        return None
    if info.get("role") != "assistant":
        return []
    pieces = [as_dict(part) for part in parts]

    def text(kind: str) -> str:
        return "".join(text_of(piece.get("text")) for piece in pieces if piece.get("type") == kind)

    calls = tuple(as_dict(piece.get("state")).get("input") for piece in pieces if piece.get("type") == "tool")
    reason = as_string(info.get("finish"))
    reasoning = text("reasoning")
    return [RecordedTurn(reasoning, text("text"), calls, reason, as_string(info.get("modelID")), raw=not reasoning)]


WRAPPERS = ("response", "body", "output", "result", "completion", "response_body", "response_obj")
"""Keys under which tools store the reply next to the request."""


def _wrapped(record: dict[str, Any], depth: int = 0) -> Turns | None:
    """Recognise a reply next to its request: OpenAI's batch output, LiteLLM's logs (also with the response as a
    string)."""
    for key in WRAPPERS:
        inner = record.get(key)
        value = json_value(inner)
        inner = inner if value is None else value
        if isinstance(inner, list) and len(inner) == 1:
            inner = inner[0]
        if isinstance(inner, dict):
            found = turns_in(inner, depth + 1)
            if found is not None:
                return [completed(turn, _request(record)) for turn in found]
        elif isinstance(inner, str) and inner and ({"messages", "model", "request", "prompt"} & record.keys()):
            return [completed(RecordedTurn(content=inner, raw=True), _request(record))]
    return None


def _request(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request in a record, or the record itself if it has the request's keys."""
    found: dict[str, Any] = {}
    for place in (record, record.get("request"), record.get("request_body"), record.get("model_parameters")):
        value = json_value(place) if isinstance(place, str) else place
        if isinstance(value, dict):
            found |= {key: value[key] for key in ("model", "tools", "prompt") if value.get(key) is not None}
    body = as_dict(as_dict(record.get("request")).get("body"))
    found |= {key: body[key] for key in ("model", "tools", "prompt") if body.get(key) is not None}
    optional = as_dict(record.get("optional_params")) or as_dict(record.get("model_parameters"))
    if "tools" not in found and isinstance(optional.get("tools"), list):
        found["tools"] = optional["tools"]
    return found


REQUEST_KEYS = frozenset({"stream", "temperature", "max_tokens", "max_completion_tokens", "tool_choice", "top_p"})


def _conversation(record: dict[str, Any]) -> Turns | None:
    """Recognise a whole conversation: every assistant turn in it. A request with only a history has no reply."""
    messages = record.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return None
    if record.keys() & REQUEST_KEYS:
        return []
    turns: Turns = []
    for message in messages:
        if "info" in message and "parts" in message:
            turns += _opencode(message) or ()
        elif message.get("role") in ("assistant", "model") and is_reply(message):
            turns.append(message_turn(message))
    return [completed(turn, record) for turn in turns]


def _message(record: dict[str, Any]) -> Turns | None:
    """Recognise a message, also under ``message`` or as a line of a chat's history (only an assistant's is a reply)."""
    message = record.get("message", record)
    role = as_dict(message).get("role", record.get("role"))
    if role in ("user", "system", "tool", "developer", "function"):
        return []
    if not is_reply(message):
        return None
    return [message_turn(message, record.get("finish_reason", record.get("stop_reason")))]


def _cline(record: dict[str, Any]) -> Turns | None:
    """Recognise an item of Cline's ``ui_messages.json`` that is not a reply (``chunks`` assembles replies)."""
    return [] if {"ts", "type"} <= record.keys() and record.get("type") in ("say", "ask") else None


LISTS = ("data", "items", "rows", "results", "records", "logs", "entries", "traces", "generations", "runs")
"""Keys under which an API's response has the requested records."""


def _listed(record: dict[str, Any], depth: int = 0) -> Turns | None:
    """Recognise several records in one object, as an API lists them (exports of Langfuse and others)."""
    for key in LISTS:
        inner = record.get(key)
        if isinstance(inner, list) and inner and all(isinstance(one, dict) for one in inner):
            found = [turns_in(one, depth + 1) for one in inner]
            if any(turns is not None for turns in found):
                return [turn for turns in found for turn in turns or ()]
    return None


NESTING = (_wrapped, _listed)
"""Formats that contain records of other formats."""

SHAPES: tuple[LogShape, ...] = (
    *(otel_turns, _langfuse, _claude_code, _cline, _opencode, _choices, _responses),
    *(_anthropic, _ollama, _llama_server, _wrapped, _conversation, _message, _listed),
)

KNOWN = (
    "OpenAI chat completions, completions, responses and batch output (whole, streamed or as server-sent events), "
    "Anthropic messages, Ollama, OpenRouter, Claude Code sessions, Codex rollouts, Cline, OpenCode, LiteLLM, Langfuse, "
    "OpenTelemetry gen_ai, HTTP archives, and the text logs of llama-server and vLLM; as JSON lines, one JSON value "
    "or an array, also under a key or after the words of a log line, in UTF-8 or UTF-16, plain, gzip or zstd"
)
"""The formats, for messages."""


def turns_in(record: dict[str, Any], depth: int = 0) -> Turns | None:
    """Return the turns of a JSON object, None if no format matches."""
    if depth > MAX_DEPTH:
        return None
    for shape in SHAPES:
        found = shape(record, depth) if shape in NESTING else shape(record)
        if found is not None:
            model, tools = as_string(record.get("model")), tools_of(record)
            return [
                replace(turn, model=turn.model or model, tools=tools if turn.tools is None else turn.tools)
                for turn in found
            ]
    return None


def iter_turns(records: Iterable[dict[str, Any]]) -> Iterator[RecordedTurn]:
    """Yield the turns of several objects."""
    for record in records:
        yield from turns_in(record) or ()
