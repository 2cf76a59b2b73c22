"""Replies of ``/v1/messages``: content blocks in the order thinking, text, tool_use; whole, and as a stream."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from strata_pack.gateway.failures import ApiError
from strata_pack.gateway.fast_path import Frame
from strata_pack.gateway.reply import Choice, Logprobs, add_usage, named_event, quoted, with_x_strata, x_strata
from strata_pack.gateway.turn import Origin
from strata_pack.parsing import Event, EventKind, ToolCall

STOP_REASONS = {"tool_calls": "tool_use", "length": "max_tokens", "stop": "end_turn"}
KINDS = {"reasoning": "thinking", "content": "text"}
EMPTY = {"thinking": {"type": "thinking", "thinking": "", "signature": ""}, "text": {"type": "text", "text": ""}}
SIGNATURE_BYTES = 24
DELTAS = {"thinking": ("thinking_delta", "thinking"), "text": ("text_delta", "text")}


class Signature:
    """The signature of a thinking block, computed while its text is streamed.

    It proves nothing and is not checked when it comes back, but clients return only signed thinking blocks.
    """

    def __init__(self, text: str = "") -> None:
        self._hash = hashlib.sha256()
        self.add(text)

    def add(self, text: str) -> None:
        """Add more of the text."""
        self._hash.update(text.encode("utf-8", "replace"))

    @property
    def text(self) -> str:
        """The signature of the text so far."""
        return b64encode(self._hash.digest()[:SIGNATURE_BYTES]).decode()


class MessagesWriter:
    """Writes one message. ``origins`` as in ``Turn``."""

    def __init__(
        self, request_id: str, model: str, *, show_extra: bool, origins: Mapping[str, Origin] | None = None
    ) -> None:
        self._origins = origins or {}
        self._request_id = request_id
        self._head: dict[str, Any] = {"id": f"msg_{request_id}", "type": "message", "role": "assistant", "model": model}
        self._show_extra = show_extra
        self._block = -1
        self._open: str | None = None
        self._signature = Signature()

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        (choice,) = choices
        blocks: list[dict[str, Any]] = []
        if choice.reasoning:
            signature = Signature(choice.reasoning).text
            blocks.append({"type": "thinking", "thinking": choice.reasoning, "signature": signature})
        if choice.content:
            blocks.append({"type": "text", "text": choice.content})
        blocks += [self._call(call, call.arguments) for call in choice.calls]
        reply = {**self._head, "content": blocks, **_ending(choice), "usage": _usage([choice])}
        return with_x_strata(reply, self._extra(choice))

    def _call(self, call: ToolCall, arguments: dict[str, Any]) -> dict[str, Any]:
        origin = self._origins.get(call.name, Origin(call.name))
        block = {"type": "tool_use", "id": call.id, "name": origin.name, "input": arguments}
        return block if origin.namespace is None else {**block, "namespace": origin.namespace}

    def _extra(self, choice: Choice) -> dict[str, Any] | None:
        return x_strata(self._request_id, [choice]) if self._show_extra else None

    # Streams

    def start(self, prompt_tokens: int) -> bytes:
        message = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**_usage([]), "input_tokens": prompt_tokens},
        }
        return named_event("message_start", {"type": "message_start", "message": message})

    def delta(self, index: int, events: list[Event], logprobs: Logprobs, report: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        parts: list[bytes] = []
        for event in events:
            kind = KINDS.get(event.kind)
            if kind is not None:
                if self._open != kind:
                    parts.append(self._begin(kind, EMPTY[kind]))
                if kind == "thinking":
                    self._signature.add(event.text)
                name, key = DELTAS[kind]
                parts.append(self._piece(f'"type":"{name}","{key}":{quoted(event.text)}'))
            elif event.call is not None and event.kind == "tool_start":
                parts.append(self._begin(event.call.id, self._call(event.call, {})))
            elif event.kind == "tool_args":
                parts.append(self._piece(f'"type":"input_json_delta","partial_json":{quoted(event.text)}'))
            elif event.kind == "tool_call":
                parts.append(self._close())
        return b"".join(parts)

    def frame(self, index: int, kind: EventKind) -> Frame | None:  # noqa: ARG002
        block = KINDS.get(kind)
        if block is None or self._open != block:
            return None
        name, key = DELTAS[block]
        before, _, after = self._piece(f'"type":"{name}","{key}":"\0"').partition(b"\0")
        return before, after

    def written(self, kind: EventKind, text: str) -> None:
        if KINDS.get(kind) == "thinking":
            self._signature.add(text)

    def _begin(self, what: str, block: dict[str, Any]) -> bytes:
        closed = self._close()
        self._block += 1
        self._open = what
        return closed + named_event(
            "content_block_start", {"type": "content_block_start", "index": self._block, "content_block": block}
        )

    def _piece(self, fields: str) -> bytes:
        return (
            f'event: content_block_delta\ndata: {{"type":"content_block_delta","index":{self._block},'
            f'"delta":{{{fields}}}}}\n\n'
        ).encode("utf-8", "replace")

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        signed = b""
        if self._open == "thinking":
            signed = self._piece(f'"type":"signature_delta","signature":"{self._signature.text}"')
            self._signature = Signature()
        self._open = None
        return signed + named_event("content_block_stop", {"type": "content_block_stop", "index": self._block})

    def finish(self, index: int, choice: Choice) -> bytes:  # noqa: ARG002
        shown = {"type": "message_delta", "delta": _ending(choice), "usage": _usage([choice])}
        return self._close() + named_event("message_delta", with_x_strata(shown, self._extra(choice)))

    def end(self, choices: list[Choice]) -> bytes:  # noqa: ARG002
        return named_event("message_stop", {"type": "message_stop"})

    def failure(self, error: ApiError) -> bytes:
        return named_event("error", error.anthropic())


def _ending(choice: Choice) -> dict[str, Any]:
    outcome = choice.outcome
    shown: dict[str, Any] = {"stop_reason": STOP_REASONS[outcome.finish_reason], "stop_sequence": None}
    if outcome.stop_text is not None and outcome.finish_reason == "stop":
        shown = {"stop_reason": "stop_sequence", "stop_sequence": outcome.stop_text}
    if choice.counters.ended_inside_thinking:
        shown["ended_inside_thinking"] = True
    return shown


def _usage(choices: list[Choice]) -> dict[str, Any]:
    """Return Anthropic's usage object, whose ``input_tokens`` exclude cached tokens."""
    tokens = add_usage(choices)
    return {
        "input_tokens": tokens["prompt"] - tokens["cached"],
        "cache_read_input_tokens": tokens["cached"],
        "cache_creation_input_tokens": 0,
        "output_tokens": tokens["completion"],
    }
