"""Replies of ``/v1/responses``: output items in the order reasoning, message, function_call; whole, and as a stream."""

from __future__ import annotations

import time
from typing import Any

from strata_pack.gateway.failures import ApiError
from strata_pack.gateway.reply import (
    Choice,
    Logprobs,
    add_usage,
    named_event,
    quoted,
    with_x_strata,
    x_strata,
)
from strata_pack.gateway.turn import Turn
from strata_pack.parsing import Event, ToolCall

PART_KINDS = {"reasoning": "reasoning_text", "content": "output_text"}
DELTA_NAMES = {"reasoning": "response.reasoning_text.delta", "content": "response.output_text.delta"}


def _part(kind: str, text: str) -> dict[str, Any]:
    part: dict[str, Any] = {"type": PART_KINDS[kind], "text": text}
    return part if kind == "reasoning" else {**part, "annotations": [], "logprobs": []}


def _text_item(kind: str, item_id: str, text: str | None, status: str) -> dict[str, Any]:
    """Return a reasoning or message item; ``text`` ``None`` for one that has no part yet."""
    parts = [] if text is None else [_part(kind, text)]
    if kind == "reasoning":
        return {"id": item_id, "type": "reasoning", "status": status, "summary": [], "content": parts}
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": parts}


def _call_item(item_id: str, call: ToolCall, arguments: str, status: str) -> dict[str, Any]:
    return {
        "id": item_id,
        "type": "function_call",
        "status": status,
        "call_id": call.id,
        "name": call.name,
        "arguments": arguments,
    }


class ResponsesWriter:
    """Writes one response."""

    def __init__(self, request_id: str, model: str, turn: Turn, *, show_extra: bool) -> None:
        self._request_id = request_id
        self._show_extra = show_extra
        self._base: dict[str, Any] = {
            "id": f"resp_{request_id}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "max_output_tokens": turn.max_tokens,
            "parallel_tool_calls": turn.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": turn.variables.get("reasoning_effort"), "summary": None},
            "store": False,
            "temperature": turn.sampling.get("temperature"),
            "top_p": turn.sampling.get("top_p"),
            "text": {"format": {"type": "text"}},
            "tool_choice": turn.tool_choice,
            "tools": [{"type": "function", "strict": False, **tool["function"]} for tool in turn.tools],
            "truncation": "disabled",
        }
        self._sequence = 0
        self._output: list[dict[str, Any]] = []
        self._kind: str | None = None
        self._call: ToolCall | None = None
        self._texts: list[str] = []

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        (choice,) = choices
        texts = [(kind, text) for kind, text in (("reasoning", choice.reasoning), ("content", choice.content)) if text]
        status = _status(choice)
        output = [
            _text_item(kind, self._item_id(number), text, "completed" if number + 1 < len(texts) else status)
            for number, (kind, text) in enumerate(texts)
        ]
        for call in choice.calls:
            output.append(_call_item(self._item_id(len(output)), call, call.arguments_json, "completed"))
        return self._response(output, choice)

    def _item_id(self, number: int) -> str:
        return f"item_{self._request_id}_{number}"

    def _response(self, output: list[dict[str, Any]], choice: Choice | None) -> dict[str, Any]:
        reply = {**self._base, "status": "in_progress", "output": output, "usage": None}
        if choice is None:
            return reply
        tokens = add_usage([choice])
        reply["status"] = _status(choice)
        if reply["status"] == "incomplete":
            reply["incomplete_details"] = {"reason": "max_output_tokens"}
        reply["usage"] = {
            "input_tokens": tokens["prompt"],
            "input_tokens_details": {"cached_tokens": tokens["cached"]},
            "output_tokens": tokens["completion"],
            "output_tokens_details": {"reasoning_tokens": tokens["reasoning"]},
            "total_tokens": tokens["prompt"] + tokens["completion"],
        }
        if choice.counters.ended_inside_thinking:
            reply["ended_inside_thinking"] = True
        return with_x_strata(reply, x_strata(self._request_id, [choice]) if self._show_extra else None)

    # Streams

    def _event(self, name: str, /, **fields: Any) -> bytes:
        self._sequence += 1
        return named_event(name, {"type": name, "sequence_number": self._sequence - 1, **fields})

    def start(self, prompt_tokens: int = 0) -> bytes:  # noqa: ARG002
        response = self._response([], None)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def delta(self, index: int, events: list[Event], logprobs: Logprobs) -> bytes:  # noqa: ARG002
        parts: list[bytes] = []
        for event in events:
            if event.kind in PART_KINDS:
                if self._kind != event.kind:
                    parts.append(self._begin_text(event.kind))
                self._texts.append(event.text)
                parts.append(self._piece(DELTA_NAMES[event.kind], event.text, ',"content_index":0'))
            elif event.kind == "tool_start" and event.call is not None:
                parts.append(self._begin_call(event.call))
            elif event.kind == "tool_args":
                self._texts.append(event.text)
                parts.append(self._piece("response.function_call_arguments.delta", event.text, ""))
            elif event.kind == "tool_call":
                parts.append(self._close("completed"))
        return b"".join(parts)

    @property
    def _place(self) -> dict[str, Any]:
        number = len(self._output)
        return {"item_id": self._item_id(number), "output_index": number}

    def _piece(self, name: str, text: str, more: str) -> bytes:
        number = len(self._output)
        self._sequence += 1
        if name == DELTA_NAMES["content"]:
            more += ',"logprobs":[]'
        return (
            f'event: {name}\ndata: {{"type":"{name}","sequence_number":{self._sequence - 1},'
            f'"item_id":"{self._item_id(number)}","output_index":{number}{more},"delta":{quoted(text)}}}\n\n'
        ).encode("utf-8", "replace")

    def _begin_text(self, kind: str) -> bytes:
        closed = self._close("completed")
        self._kind = kind
        number = len(self._output)
        item = _text_item(kind, self._item_id(number), None, "in_progress")
        return (
            closed
            + self._event("response.output_item.added", output_index=number, item=item)
            + self._event("response.content_part.added", **self._place, content_index=0, part=_part(kind, ""))
        )

    def _begin_call(self, call: ToolCall) -> bytes:
        closed = self._close("completed")
        self._call = call
        number = len(self._output)
        item = _call_item(self._item_id(number), call, "", "in_progress")
        return closed + self._event("response.output_item.added", output_index=number, item=item)

    def _close(self, status: str) -> bytes:
        """Return the end of the open item, if there is one."""
        text, place = "".join(self._texts), self._place
        if self._kind is not None:
            part = _part(self._kind, text)
            item = _text_item(self._kind, place["item_id"], text, status)
            extra: dict[str, Any] = {"logprobs": []} if self._kind == "content" else {}
            ended = self._event(
                DELTA_NAMES[self._kind].replace(".delta", ".done"), **place, content_index=0, text=text, **extra
            ) + self._event("response.content_part.done", **place, content_index=0, part=part)
        elif self._call is not None:
            item = _call_item(place["item_id"], self._call, text, status)
            ended = self._event(
                "response.function_call_arguments.done", **place, name=self._call.name, arguments=text
            )  # fmt: skip
        else:
            return b""
        ended += self._event("response.output_item.done", output_index=place["output_index"], item=item)
        self._output.append(item)
        self._kind, self._call = None, None
        self._texts.clear()
        return ended

    def finish(self, index: int, choice: Choice) -> bytes:  # noqa: ARG002
        closed = self._close(_status(choice))
        response = self._response(self._output, choice)
        return closed + self._event(f"response.{response['status']}", response=response)

    def end(self, choices: list[Choice]) -> bytes:  # noqa: ARG002
        return b""

    def failure(self, error: ApiError) -> bytes:
        told = {"code": error.code or error.kind, "message": error.message}
        response = {**self._response(self._output, None), "status": "failed", "error": told}
        return self._event("response.failed", response=response)


def _status(choice: Choice) -> str:
    return "incomplete" if choice.outcome.finish_reason == "length" else "completed"
