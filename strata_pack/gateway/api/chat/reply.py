"""Replies of ``/v1/chat/completions``: whole, and as a stream of chunks.

The thinking is sent twice, as ``reasoning_content`` (llama.cpp, DeepSeek, older vLLM) and as ``reasoning`` (OpenRouter,
newer vLLM): clients read one of the two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from strata_pack.gateway.failures import ApiError
from strata_pack.gateway.fast_path import Frame
from strata_pack.gateway.reply import (
    Choice,
    Logprobs,
    add_usage,
    custom_input,
    data_event,
    encode,
    quoted,
    with_x_strata,
    x_strata,
)
from strata_pack.gateway.turn import Origin
from strata_pack.parsing import Event, EventKind, ToolCall

DONE = b"data: [DONE]\n\n"


def usage_of(choices: list[Choice]) -> dict[str, Any]:
    """Return OpenAI's ``usage`` object."""
    tokens = add_usage(choices)
    return {
        "prompt_tokens": tokens["prompt"],
        "completion_tokens": tokens["completion"],
        "total_tokens": tokens["prompt"] + tokens["completion"],
        "prompt_tokens_details": {"cached_tokens": tokens["cached"]},
        "completion_tokens_details": {"reasoning_tokens": tokens["reasoning"]},
    }


def _timings(choices: list[Choice]) -> dict[str, Any]:
    """Return llama-server's timings of the reply, which are those of one choice, if the server sent them."""
    timings = choices[0].outcome.timings if len(choices) == 1 else None
    return {} if timings is None else {"timings": timings}


def _function(call: ToolCall) -> dict[str, str]:
    return {"name": call.name, "arguments": call.arguments_json}


def _called(call: ToolCall, origin: Origin, *, begun: bool = False) -> dict[str, Any]:
    """Return a call in the form of the declared tool; without arguments if it has only ``begun``."""
    named = {"name": origin.name, **({} if origin.namespace is None else {"namespace": origin.namespace})}
    if origin.custom:
        return {"id": call.id, "type": "custom", "custom": {**named, "input": "" if begun else custom_input(call)}}
    function = {**named, "arguments": "" if begun else call.arguments_json}
    return {"id": call.id, "type": "function", "function": function}


class ChatWriter:
    """Writes one chat completion.

    ``include_usage``: a stream ends with a usage chunk; ``origins`` as in ``Turn``; ``fingerprint``, called when the
    model is loaded, returns the build of llama-server, empty if unknown.
    """

    def __init__(
        self,
        request_id: str,
        model: str,
        *,
        include_usage: bool,
        show_extra: bool,
        origins: Mapping[str, Origin] | None = None,
        fingerprint: Callable[[], str] = str,
    ) -> None:
        self._origins = origins or {}
        self._request_id = request_id
        self._named: dict[str, Any] = {"id": f"chatcmpl-{request_id}", "created": int(time.time()), "model": model}
        self._include_usage = include_usage
        self._show_extra = show_extra
        self._fingerprint = fingerprint
        self._openings: dict[int, bytes] = {}
        self._numbers: dict[int, dict[str, int]] = {}

    @cached_property
    def _head(self) -> dict[str, Any]:
        """The fields of every chunk."""
        fingerprint = self._fingerprint()
        return {**self._named, "system_fingerprint": fingerprint} if fingerprint else self._named

    @cached_property
    def _chunk(self) -> bytes:
        return encode({**self._head, "object": "chat.completion.chunk"})[:-1]

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        reply = {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage_of(choices),
            **_timings(choices),
        }
        return with_x_strata(reply, x_strata(self._request_id, choices) if self._show_extra else None)

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.content or (None if choice.calls else "")}
        if choice.reasoning:
            message["reasoning_content"] = message["reasoning"] = choice.reasoning
        if choice.calls:
            message |= self._calls(choice.calls)
        shown: dict[str, Any] = {
            "index": index,
            "message": message,
            "finish_reason": self._finish_reason(choice),
            "logprobs": None if choice.logprobs is None else {"content": choice.logprobs, "refusal": None},
        }
        if choice.counters.ended_inside_thinking:
            shown["ended_inside_thinking"] = True
        return shown

    def _finish_reason(self, choice: Choice) -> str:
        return choice.outcome.finish_reason

    def _calls(self, calls: list[ToolCall]) -> dict[str, Any]:
        """Return the message field with the calls."""
        return {"tool_calls": [_called(call, self._origins.get(call.name, Origin(call.name))) for call in calls]}

    def _call_start(self, index: int, call: ToolCall) -> str:
        """Return the fields of a delta that announces ``call``."""
        numbers = self._numbers.setdefault(index, {})
        number = numbers.setdefault(call.id, len(numbers))
        if (origin := self._origins.get(call.name)) is not None:
            shown = {"index": number, **_called(call, origin, begun=True)}
            return f'"tool_calls":[{encode(shown).decode()}]'
        return (
            f'"tool_calls":[{{"index":{number},"id":{quoted(call.id)},"type":"function",'
            f'"function":{{"name":{quoted(call.name)},"arguments":""}}}}]'
        )

    def _call_arguments(self, index: int, call: ToolCall, text: str) -> str:
        """Return the fields of a delta with more of the arguments of ``call``."""
        number = self._numbers[index][call.id]
        if call.name in self._origins and self._origins[call.name].custom:
            return ""  # the input is one string inside JSON, which half of the JSON does not give
        return f'"tool_calls":[{{"index":{number},"function":{{"arguments":{quoted(text)}}}}}]'

    def _call_end(self, index: int, call: ToolCall) -> str:
        """Return the fields of a delta that ends ``call``; "" for a function's call, whose arguments were streamed."""
        origin = self._origins.get(call.name)
        if origin is None or not origin.custom:
            return ""
        number = self._numbers[index][call.id]
        return f'"tool_calls":[{{"index":{number},"custom":{{"input":{quoted(custom_input(call))}}}}}]'

    # Streams

    def start(self, prompt_tokens: int) -> bytes:  # noqa: ARG002
        return b""

    def _opening(self, index: int) -> bytes:
        """Return the bytes before a delta of choice ``index``; the first time they start with the role chunk."""
        opening = self._openings.get(index)
        if opening is None:
            opening = b'data: %b,"choices":[{"index":%d,"delta":{' % (self._chunk, index)
            self._openings[index] = opening
            return opening + b'"role":"assistant","content":""},"finish_reason":null}]}\n\n' + opening
        return opening

    def delta(self, index: int, events: list[Event], logprobs: Logprobs, report: Mapping[str, Any]) -> bytes:
        parts: list[bytes] = []
        for number, event in enumerate(events):
            fields = self._fields(index, event)
            if fields:
                parts += (self._opening(index), fields.encode("utf-8", "replace"), b'},"finish_reason":null')
                if logprobs and event.kind == "content":
                    parts += (b',"logprobs":', encode({"content": logprobs[number], "refusal": None}))
                parts.append(b"}]}\n\n")
        if report:
            parts = parts or [self._opening(index), b'},"finish_reason":null', b"}]}\n\n"]
            parts[-1] = b"}]," + encode(report)[1:] + b"\n\n"
        return b"".join(parts)

    def _fields(self, index: int, event: Event) -> str:
        if event.kind == "content":
            return f'"content":{quoted(event.text)}'
        if event.kind == "reasoning":
            text = quoted(event.text)
            return f'"reasoning_content":{text},"reasoning":{text}'
        if event.kind == "tool_start" and event.call is not None:
            return self._call_start(index, event.call)
        if event.kind == "tool_args" and event.call is not None:
            return self._call_arguments(index, event.call, event.text)
        if event.kind == "tool_call" and event.call is not None:
            return self._call_end(index, event.call)
        return ""

    def frame(self, index: int, kind: EventKind) -> Frame | None:
        opening = self._openings.get(index)
        if opening is None:
            return None
        end = b'"},"finish_reason":null}]}\n\n'
        if kind == "content":
            return (opening + b'"content":"', end)
        return (opening + b'"reasoning_content":"', b'","reasoning":"', end)

    def written(self, kind: EventKind, text: str) -> None:
        """Nothing to store: a chunk does not depend on earlier ones."""

    def finish(self, index: int, choice: Choice) -> bytes:
        shown: dict[str, Any] = {"index": index, "delta": {}, "finish_reason": self._finish_reason(choice)}
        if choice.counters.ended_inside_thinking:
            shown["ended_inside_thinking"] = True
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [shown], **_timings([choice])}
        opening = b""
        if index not in self._openings:
            first = self._opening(index)
            opening = first[: -len(self._openings[index])]
        shown_extra = x_strata(self._request_id, [choice]) if self._show_extra else None
        return opening + data_event(with_x_strata(chunk, shown_extra))

    def end(self, choices: list[Choice]) -> bytes:
        if not self._include_usage:
            return DONE
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage_of(choices)}
        chunk |= _timings(choices)
        return data_event(chunk) + DONE

    def failure(self, error: ApiError) -> bytes:
        return data_event(error.openai()) + DONE


class FunctionsWriter(ChatWriter):
    """Writes one chat completion for a client that sent ``functions``: one call, in the field ``function_call``."""

    def _finish_reason(self, choice: Choice) -> str:
        reason = super()._finish_reason(choice)
        return "function_call" if reason == "tool_calls" else reason

    def _calls(self, calls: list[ToolCall]) -> dict[str, Any]:
        return {"function_call": _function(calls[0])}

    def _call_start(self, index: int, call: ToolCall) -> str:  # noqa: ARG002
        return f'"function_call":{{"name":{quoted(call.name)},"arguments":""}}'

    def _call_arguments(self, index: int, call: ToolCall, text: str) -> str:  # noqa: ARG002
        return f'"function_call":{{"arguments":{quoted(text)}}}'
