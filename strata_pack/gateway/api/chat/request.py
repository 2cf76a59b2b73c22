"""``POST /v1/chat/completions``: the body and its conversion to a ``Turn``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from strata_pack.gateway.api.chat.messages import ChatMessage, check_continued, readable_messages
from strata_pack.gateway.api.chat.tools import ToolFields, wanted_calls
from strata_pack.gateway.api.constraints import ConstraintFields, wanted_answer
from strata_pack.gateway.api.fields import (
    Body,
    Penalty,
    Predict,
    Probability,
    Seed,
    StopText,
    StopTexts,
    Temperature,
    TokenLimit,
    TopK,
)
from strata_pack.gateway.api.thinking import ThinkingFields, wanted_thinking
from strata_pack.gateway.failures import bad_request
from strata_pack.gateway.turn import Turn

NEVER = -100.0
"""Bias of a token for which llama.cpp's list of pairs has ``false``."""


def _pairs(value: Any) -> Any:
    """Return llama.cpp's list of (token id, bias) pairs as OpenAI's object."""
    if not isinstance(value, list):
        return value
    try:
        return {str(int(token)): NEVER if bias is False else bias for token, bias in value}
    except (TypeError, ValueError):
        raise bad_request("logit_bias: must hold pairs of a token id and a bias", "logit_bias") from None


LogitBias = Annotated[
    Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)] | None,
    BeforeValidator(_pairs, json_schema_input_type=dict[str, float] | list[tuple[int, float | bool]] | None),
]


Whole = Annotated[int, Field(ge=-1, le=1 << 30)]


class StreamOptions(Body):
    include_usage: bool | None = None


class LlamaSampling(Body):
    """Sampling parameters that only llama.cpp has; they are passed to llama-server unchanged."""

    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    repeat_last_n: Whole | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: Whole | None = None
    dry_penalty_last_n: Whole | None = None
    dry_sequence_breakers: Annotated[list[StopText], Field(min_length=1, max_length=64)] | None = None
    mirostat: Annotated[int, Field(ge=0, le=2)] | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    min_keep: Whole | None = None
    ignore_eos: bool | None = None


class ChatRequest(ToolFields, ConstraintFields, ThinkingFields, LlamaSampling):
    """A chat completion request: OpenAI's fields, and further ones of llama.cpp and vLLM."""

    messages: list[ChatMessage] = Field(min_length=1)
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    max_tokens: TokenLimit = None
    max_completion_tokens: TokenLimit = None
    n_predict: Predict = None
    stop: StopTexts = None
    seed: Seed | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_k: TopK | None = None
    min_p: Probability | None = None
    typical_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    logit_bias: LogitBias = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)


SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repeat_penalty": "repeat_penalty",
    "repetition_penalty": "repeat_penalty",
    **{name: name for name in LlamaSampling.model_fields},
}
"""Fields passed unchanged to llama-server's ``/completion`` -> its name of the field."""


def llama_seed(seed: int | None) -> int | None:
    """Return the seed for llama-server: 32 bits, all ones for random."""
    return None if seed is None else seed % (1 << 32)


def chat_turn(request: ChatRequest, max_choices: int) -> Turn:
    """Return the turn of ``request``. Raises ``ApiError`` for a field that cannot be served."""
    messages = readable_messages([message.given() for message in request.messages])
    calls = wanted_calls(request)
    thinking = wanted_thinking(request)
    choices = request.n or 1
    if choices > max_choices:
        raise bad_request(f"n: at most {max_choices} choices", "n")
    continues = bool(request.continue_final_message)
    if continues:
        if request.add_generation_prompt:
            raise bad_request(
                "continue_final_message: cannot be combined with add_generation_prompt", "continue_final_message"
            )
        check_continued(messages[-1])
    return Turn(
        messages=messages,
        tools=calls.tools,
        tools_unknown=request.tools == [],
        tool_choice=calls.choice,
        tool_name=calls.name,
        parallel_tool_calls=calls.parallel,
        answer=wanted_answer(request),
        variables=thinking.variables,
        effort_field=thinking.effort_field,
        sampling=_sampling(request),
        seed=llama_seed(request.seed),
        max_tokens=_token_limit(request),
        stop=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ()),
        choices=choices,
        top_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        reasoning_budget=thinking.budget,
        continues=continues,
        stream=bool(request.stream),
        shows_reasoning=thinking.shown,
        timings_per_token=bool(request.stream and request.timings_per_token),
        return_progress=bool(request.stream and request.return_progress),
        origins=calls.origins,
        left_out=calls.left_out,
    )


def _token_limit(request: ChatRequest) -> int | None:
    limits = (request.max_completion_tokens, request.max_tokens, request.n_predict)
    return next((limit for limit in limits if limit is not None), None)


def _sampling(request: ChatRequest) -> dict[str, Any]:
    given = request.model_fields_set
    fields = {
        theirs: value
        for ours, theirs in SAMPLING.items()
        if ours in given and (value := getattr(request, ours)) is not None
    }
    if request.logit_bias:
        try:
            fields["logit_bias"] = [[int(token), bias] for token, bias in request.logit_bias.items()]
        except ValueError:
            raise bad_request("logit_bias: keys are token ids", "logit_bias") from None
    return fields
