"""``POST /v1/chat/completions``: the body, and the turn that it asks for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from strata_pack.gateway.api.chat.messages import Message, check_continued, check_messages
from strata_pack.gateway.api.chat.tools import ToolFields, wanted_calls
from strata_pack.gateway.api.fields import (
    Body,
    Budget,
    Count,
    Effort,
    JsonSchema,
    Penalty,
    Probability,
    Seed,
    StopText,
    Temperature,
)
from strata_pack.gateway.failures import bad_request
from strata_pack.gateway.turn import JsonAnswer, Turn


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StreamOptions(Body):
    include_usage: bool | None = None


class ChatRequest(ToolFields):
    """A chat completion request: OpenAI's fields, and those that llama.cpp's and vLLM's users know."""

    messages: list[Message] = Field(min_length=1)
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] | None = None
    seed: Seed | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=-1, le=1 << 30)] | None = None
    min_p: Probability | None = None
    typical_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    reasoning_effort: Effort | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_budget: Budget | None = None
    thinking_budget: Budget | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that has the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repeat_penalty": "repeat_penalty",
    "repetition_penalty": "repeat_penalty",
}
"""Fields that go to llama-server's ``/completion`` as they are, under its name."""

RESERVED = ("messages", "tools", "add_generation_prompt", "continue_final_message")
"""Template variables that ``chat_template_kwargs`` may not set: they have fields of their own."""


def template_variables(
    kwargs: dict[str, Any] | None, effort: str | None, enable_thinking: bool | None
) -> dict[str, Any]:
    """Return the template's variables; effort "none" means no thinking, as in OpenAI's API.

    Any other effort goes to the template as it is; ``prompt.py`` looks for the nearest that the template knows.
    """
    for name in kwargs or {}:
        if name in RESERVED:
            raise bad_request(f"chat_template_kwargs.{name}: has a field of its own", f"chat_template_kwargs.{name}")
    variables = dict(kwargs or {})
    if effort == "none":
        variables["enable_thinking"] = False
    elif effort is not None:
        variables["reasoning_effort"] = effort
    if enable_thinking is not None:
        variables["enable_thinking"] = enable_thinking
    return variables


def llama_seed(seed: int | None) -> int | None:
    """Return the seed as llama-server has it: 32 bits, all ones for random."""
    return None if seed is None else seed % (1 << 32)


def chat_turn(request: ChatRequest, max_choices: int) -> Turn:
    """Return the turn that ``request`` asks for; raises ``ApiError`` for what cannot be served."""
    messages = [message.given() for message in request.messages]
    check_messages(messages)
    calls = wanted_calls(request)
    choices = request.n or 1
    if choices > max_choices:
        raise bad_request(f"n: at most {max_choices} choices", "n")
    continues = bool(request.continue_final_message)
    if continues:
        if request.add_generation_prompt:
            raise bad_request(
                "continue_final_message: cannot stand beside add_generation_prompt", "continue_final_message"
            )
        check_continued(messages[-1])
    return Turn(
        messages=messages,
        tools=calls.tools,
        tools_unknown=request.tools == [],
        tool_choice=calls.choice,
        tool_name=calls.name,
        parallel_tool_calls=calls.parallel,
        answer=_answer(request.response_format),
        variables=template_variables(request.chat_template_kwargs, request.reasoning_effort, request.enable_thinking),
        effort_field="reasoning_effort" if request.reasoning_effort else "chat_template_kwargs.reasoning_effort",
        sampling=_sampling(request),
        seed=llama_seed(request.seed),
        max_tokens=request.max_completion_tokens or request.max_tokens,
        stop=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ()),
        choices=choices,
        top_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        reasoning_budget=request.thinking_budget if request.reasoning_budget is None else request.reasoning_budget,
        continues=continues,
        stream=bool(request.stream),
    )


def _answer(wanted: ResponseFormat | None) -> JsonAnswer | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return JsonAnswer({"type": "object"})
    if wanted.json_schema is None or wanted.json_schema.json_schema is None:
        raise bad_request("response_format.json_schema.schema: is missing", "response_format.json_schema.schema")
    return JsonAnswer(wanted.json_schema.json_schema)


def _sampling(request: ChatRequest) -> dict[str, Any]:
    fields = {theirs: getattr(request, ours) for ours, theirs in SAMPLING.items() if getattr(request, ours) is not None}
    if request.top_k is not None:
        fields["top_k"] = max(request.top_k, 0)
    if request.logit_bias:
        try:
            fields["logit_bias"] = [[int(token), bias] for token, bias in request.logit_bias.items()]
        except ValueError:
            raise bad_request("logit_bias: keys are token ids", "logit_bias") from None
    return fields
