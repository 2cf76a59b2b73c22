"""Replies of ``/v1/responses``: output items in the order reasoning, message, function_call; whole, and as a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from strata_pack.gateway.api.responses.encrypted_content import encode_thinking
from strata_pack.gateway.api.responses.request import ResponsesTurn
from strata_pack.gateway.failures import ApiError
from strata_pack.gateway.fast_path import Frame
from strata_pack.gateway.reply import (
    Choice,
    Logprobs,
    add_usage,
    custom_input,
    named_event,
    quoted,
    with_x_strata,
    x_strata,
)
from strata_pack.gateway.turn import Origin
from strata_pack.parsing import Event, EventKind, ToolCall

FIRST_EVENTS = ("response.created", "response.in_progress")
"""Events that begin a stream; written before the first delta is sent."""

ITEM_KINDS = {"reasoning": "reasoning", "content": "message"}
PART_KINDS = {"reasoning": "reasoning_text", "content": "output_text"}
DELTA_NAMES = {"reasoning": "response.reasoning_text.delta", "content": "response.output_text.delta"}


def _part(kind: str, text: str) -> dict[str, Any]:
    part: dict[str, Any] = {"type": PART_KINDS[kind], "text": text}
    return part if kind == "reasoning" else {**part, "annotations": [], "logprobs": []}


ID_PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc", "custom_tool_call": "ctc"}


class ResponsesWriter:
    """Writes one response. ``keep`` is called with the finished response; ``None`` if it is not stored."""

    def __init__(
        self,
        request_id: str,
        model: str,
        turn: ResponsesTurn,
        *,
        show_extra: bool,
        keep: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        self._request_id = request_id
        # A new id, because clients may send the same request id repeatedly.
        self._unique = uuid.uuid4().hex
        self._keep = keep
        self._origins: Mapping[str, Origin] = turn.origins
        self._show_extra = show_extra
        self._carries = turn.carries_thinking
        self._base: dict[str, Any] = {
            "id": f"resp_{self._unique}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "error": None,
            "incomplete_details": None,
            "store": keep is not None,
            **turn.echoed,
        }
        self._sequence = len(FIRST_EVENTS)
        self._output: list[dict[str, Any]] = []
        self._kind: str | None = None
        self._call: ToolCall | None = None
        self._texts: list[str] = []

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        (choice,) = choices
        texts = [(kind, text) for kind, text in (("reasoning", choice.reasoning), ("content", choice.content)) if text]
        status = _status(choice)
        output = [
            self._text_item(kind, number, text, "completed" if number + 1 < len(texts) else status)
            for number, (kind, text) in enumerate(texts)
        ]
        for call in choice.calls:
            output.append(self._call_item(len(output), call, call.arguments_json, "completed"))
        return self._kept(self._response(output, choice))

    def _kept(self, response: dict[str, Any]) -> dict[str, Any]:
        if self._keep is not None:
            self._keep(response)
        return response

    def _is_custom(self, call: ToolCall) -> bool:
        return call.name in self._origins and self._origins[call.name].custom

    def _call_item(self, number: int, call: ToolCall, arguments: str, status: str) -> dict[str, Any]:
        """Return the item of a call; ``arguments`` are the input of a custom tool once the call is complete."""
        origin = self._origins.get(call.name, Origin(call.name))
        kind, field = ("custom_tool_call", "input") if origin.custom else ("function_call", "arguments")
        item = {
            "id": self._item_id(kind, number),
            "type": kind,
            "status": status,
            "call_id": call.id,
            "name": origin.name,
            field: custom_input(call) if origin.custom and call.arguments else arguments,
        }
        return item if origin.namespace is None else {**item, "namespace": origin.namespace}

    def _text_item(self, kind: str, number: int, text: str | None, status: str) -> dict[str, Any]:
        """Return a reasoning or message item; ``text`` is ``None`` if it has no part yet."""
        parts = [] if text is None else [_part(kind, text)]
        item_id = self._item_id(ITEM_KINDS[kind], number)
        item: dict[str, Any] = {"id": item_id, "type": ITEM_KINDS[kind], "status": status}
        if kind == "content":
            return {**item, "role": "assistant", "content": parts}
        item |= {"summary": [], "content": parts}
        return {**item, "encrypted_content": encode_thinking(text)} if self._carries and text is not None else item

    def _item_id(self, kind: str, number: int) -> str:
        return f"{ID_PREFIXES[kind]}_{self._unique}_{number}"

    @property
    def _open_id(self) -> str:
        """The id of the item that is being written."""
        if self._call is not None:
            return self._item_id("custom_tool_call" if self._is_custom(self._call) else "function_call", self._number)
        return self._item_id(ITEM_KINDS[self._kind or "content"], self._number)

    def frame(self, index: int, kind: EventKind) -> Frame | None:  # noqa: ARG002
        return None  # every event has a number

    def written(self, kind: EventKind, text: str) -> None:  # noqa: ARG002
        raise AssertionError("there are no frames")

    @property
    def _number(self) -> int:
        return len(self._output)

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

    def start(self, prompt_tokens: int) -> bytes:  # noqa: ARG002
        response = self._response([], None)
        return b"".join(
            named_event(name, {"type": name, "sequence_number": number, "response": response})
            for number, name in enumerate(FIRST_EVENTS)
        )

    def delta(self, index: int, events: list[Event], logprobs: Logprobs, report: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        parts: list[bytes] = []
        for event in events:
            if event.kind in PART_KINDS:
                if self._kind != event.kind:
                    parts.append(self._begin_text(event.kind))
                self._texts.append(event.text)
                parts.append(self._piece(DELTA_NAMES[event.kind], event.text, ',"content_index":0'))
            elif event.kind == "tool_start" and event.call is not None:
                parts.append(self._begin_call(event.call))
            elif event.kind == "tool_args" and event.call is not None:
                self._texts.append(event.text)
                if not self._is_custom(
                    event.call
                ):  # the input is one string inside JSON, which half of the JSON does not give
                    parts.append(self._piece("response.function_call_arguments.delta", event.text, ""))
            elif event.kind == "tool_call" and event.call is not None:
                self._call = event.call
                parts.append(self._close_call("completed"))
        return b"".join(parts)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._open_id, "output_index": self._number}

    def _piece(self, name: str, text: str, more: str) -> bytes:
        number = len(self._output)
        self._sequence += 1
        if name == DELTA_NAMES["content"]:
            more += ',"logprobs":[]'
        return (
            f'event: {name}\ndata: {{"type":"{name}","sequence_number":{self._sequence - 1},'
            f'"item_id":"{self._open_id}","output_index":{number}{more},"delta":{quoted(text)}}}\n\n'
        ).encode("utf-8", "replace")

    def _begin_text(self, kind: str) -> bytes:
        closed = self._close("completed")
        self._kind = kind
        number = len(self._output)
        item = self._text_item(kind, number, None, "in_progress")
        return (
            closed
            + self._event("response.output_item.added", output_index=number, item=item)
            + self._event("response.content_part.added", **self._place, content_index=0, part=_part(kind, ""))
        )

    def _begin_call(self, call: ToolCall) -> bytes:
        closed = self._close("completed")
        self._call = call
        number = len(self._output)
        item = self._call_item(number, call, "", "in_progress")
        return closed + self._event("response.output_item.added", output_index=number, item=item)

    def _close(self, status: str) -> bytes:
        """Return the end of the open item, if any: a text ends with ``status``, a call is incomplete."""
        return self._close_text(status) + self._close_call("incomplete")

    def _close_text(self, status: str) -> bytes:
        if self._kind is None:
            return b""
        kind, place, text = self._kind, self._place, "".join(self._texts)
        extra: dict[str, Any] = {"logprobs": []} if kind == "content" else {}
        ended = self._event(
            DELTA_NAMES[kind].replace(".delta", ".done"), **place, content_index=0, text=text, **extra
        ) + self._event("response.content_part.done", **place, content_index=0, part=_part(kind, text))
        return ended + self._done(self._text_item(kind, place["output_index"], text, status))

    def _close_call(self, status: str) -> bytes:
        """Return the end of the open call. An incomplete call has no "done" event for its arguments."""
        if self._call is None:
            return b""
        call, place, arguments = self._call, self._place, "".join(self._texts)
        item = self._call_item(place["output_index"], call, arguments, status)
        ended = b""
        if status == "completed" and self._is_custom(call):
            ended = self._piece("response.custom_tool_call_input.delta", item["input"], "")
            ended += self._event("response.custom_tool_call_input.done", **place, input=item["input"])
        elif status == "completed":
            ended = self._event(
                "response.function_call_arguments.done", **place, name=item["name"], arguments=arguments
            )
        return ended + self._done(item)

    def _done(self, item: dict[str, Any]) -> bytes:
        ended = self._event("response.output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)
        self._kind, self._call = None, None
        self._texts.clear()
        return ended

    def finish(self, index: int, choice: Choice) -> bytes:  # noqa: ARG002
        closed = self._close(_status(choice))
        response = self._kept(self._response(self._output, choice))
        return closed + self._event(f"response.{response['status']}", response=response)

    def end(self, choices: list[Choice]) -> bytes:  # noqa: ARG002
        return b""

    def failure(self, error: ApiError) -> bytes:
        failure = {"code": error.code or error.kind, "message": error.message}
        response = {**self._response(self._output, None), "status": "failed", "error": failure}
        return self._event("response.failed", response=response)


def _status(choice: Choice) -> str:
    return "incomplete" if choice.outcome.finish_reason == "length" else "completed"
