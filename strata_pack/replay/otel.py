"""Reads OpenTelemetry spans and logs of generative AI, as exporters write them.

Source: OpenTelemetry's semantic conventions for generative AI, and OTLP's JSON encoding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from strata_pack.replay.messages import as_dict, as_list, as_string, is_reply, json_value, message_turn
from strata_pack.replay.replies import RecordedTurn, text_of

Turns = list[RecordedTurn]


def otel_turns(record: dict[str, Any]) -> Turns | None:
    """Read OTLP exports (``resourceSpans``, ``resourceLogs``), and single spans."""
    for outer, middle, inner in (
        ("resourceSpans", "scopeSpans", "spans"),
        ("resourceLogs", "scopeLogs", "logRecords"),
    ):
        if isinstance(record.get(outer), list):
            spans = [
                span
                for resource in record[outer]
                for scope in as_list(as_dict(resource).get(middle))
                for span in as_list(as_dict(scope).get(inner))
            ]
            return [turn for span in spans for turn in _otel_span(as_dict(span)) or ()]
    return _otel_span(record)


def _otel_value(value: Any) -> Any:
    """Return the plain value of an OTLP AnyValue."""
    if not isinstance(value, dict):
        return value
    for key in ("stringValue", "intValue", "boolValue", "doubleValue"):
        if key in value:
            return value[key]
    if "arrayValue" in value:
        return [_otel_value(one) for one in as_list(as_dict(value["arrayValue"]).get("values"))]
    if "kvlistValue" in value:
        return _attributes(as_dict(value["kvlistValue"]).get("values"))
    return value


def _attributes(attributes: Any) -> dict[str, Any]:
    """Return attributes as a dict, from OTLP's list of pairs or from a plain object."""
    if isinstance(attributes, dict):
        return attributes
    return {str(as_dict(one).get("key")): _otel_value(as_dict(one).get("value")) for one in as_list(attributes)}


def _otel_span(span: dict[str, Any]) -> Turns | None:
    attributes = _attributes(span.get("attributes"))
    events = [as_dict(event) for event in as_list(span.get("events"))]
    name = span.get("eventName") or span.get("event_name") or attributes.get("event.name")
    if name == "gen_ai.choice":
        body = as_dict(_otel_value(span.get("body")))
        message = as_dict(body.get("message")) or body
        return [message_turn(message, body.get("finish_reason"))] if is_reply(message) else []
    if not any(key.startswith("gen_ai.") for key in attributes) and not any(
        str(event.get("name", "")).startswith("gen_ai.") for event in events
    ):
        return None if name is None or not str(name).startswith("gen_ai.") else []
    model = as_string(attributes.get("gen_ai.response.model")) or as_string(attributes.get("gen_ai.request.model"))
    turns = _otel_messages(attributes.get("gen_ai.output.messages"))
    turns += _otel_flat(attributes)
    for event in events:
        inner = _attributes(event.get("attributes"))
        turns += _otel_messages(inner.get("gen_ai.output.messages"))
        if event.get("name") == "gen_ai.choice":
            message = json_value(inner.get("message")) or inner
            turns += [message_turn(message, inner.get("finish_reason"))] if is_reply(message) else []
        elif isinstance(inner.get("gen_ai.completion"), str):
            value = json_value(inner["gen_ai.completion"])
            value = value[-1] if isinstance(value, list) and value else value
            turns += (
                [message_turn(value)]
                if is_reply(value)
                else [RecordedTurn(content=inner["gen_ai.completion"], raw=True)]
            )
    reasons = attributes.get("gen_ai.response.finish_reasons")
    reason = reasons[0] if isinstance(reasons, list) and reasons else reasons
    return [
        replace(turn, model=turn.model or model, finish_reason=turn.finish_reason or as_string(reason))
        for turn in turns
    ]


def _otel_messages(messages: Any) -> Turns:
    """Return the turns of ``gen_ai.output.messages``: messages with parts."""
    value = json_value(messages) if isinstance(messages, str) else messages
    turns = []
    for message in map(as_dict, as_list(value)):
        if message.get("role", "assistant") != "assistant":
            continue
        parts = [as_dict(part) for part in as_list(message.get("parts"))]

        def text(kinds: Sequence[str], parts: list[dict[str, Any]] = parts) -> str:
            return "".join(
                text_of(part.get("content", part.get("text"))) for part in parts if part.get("type") in kinds
            )

        calls = tuple(part.get("arguments") for part in parts if part.get("type") == "tool_call")
        reasoning = text(("reasoning", "thinking"))
        reason = as_string(message.get("finish_reason"))
        turns.append(RecordedTurn(reasoning, text(("text",)), calls, reason, raw=not reasoning))
    return turns


def _otel_flat(attributes: Mapping[str, Any]) -> Turns:
    """Return the turns of attributes such as ``gen_ai.completion.0.content``."""
    turns = []
    for number in range(64):
        start = f"gen_ai.completion.{number}."
        own = {key.removeprefix(start): value for key, value in attributes.items() if key.startswith(start)}
        if not own:
            break
        calls = tuple(own[key] for key in sorted(own) if key.startswith("tool_calls.") and key.endswith(".arguments"))
        reasoning = text_of(own.get("reasoning")) or text_of(own.get("reasoning_content"))
        reason = as_string(own.get("finish_reason"))
        turns.append(RecordedTurn(reasoning, text_of(own.get("content")), calls, reason, raw=not reasoning))
    return turns
