"""``POST /v1/responses`` (non-stored): the body, and the turn that it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from strata_pack.gateway.api.chat.request import llama_seed, template_variables
from strata_pack.gateway.api.chat.tools import check_choice
from strata_pack.gateway.api.fields import Body, Budget, Count, Effort, Kept, Name, Probability, Seed, Temperature
from strata_pack.gateway.api.responses.input import Item, conversation
from strata_pack.gateway.failures import bad_request
from strata_pack.gateway.turn import JsonAnswer, ToolChoice, Turn

ENCRYPTED = "reasoning.encrypted_content"

NOT_STORED: Mapping[str, str] = {
    "previous_response_id": "responses are not stored here; send the whole conversation as input",
    "conversation": "conversations are not stored here; send the whole conversation as input",
    "prompt": "prompts are not stored here; send instructions and input",
    "background": "responses are not stored here; ask again without background",
}
"""Fields that point to what only a server that stores could know -> what to do instead."""


class ResponseTool(Body):
    type: str
    name: Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedTool(Body):
    type: Literal["function"]
    name: Name


class ResponseToolChoice(Body):
    """A ``tool_choice`` that names tools: ``name`` with "function", ``mode`` and ``tools`` with "allowed_tools"."""

    type: Literal["function", "allowed_tools"]
    name: Name | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[NamedTool], Field(min_length=1)] | None = None


class Reasoning(Body):
    effort: Effort | None = None
    summary: str | None = None


class TextFormat(Kept):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class TextConfig(Body):
    format: TextFormat | None = None
    verbosity: str | None = None


class ResponsesRequest(Body):
    """A request of OpenAI's Responses API. Nothing is stored, so fields that refer to something stored are refused."""

    input: str | Annotated[list[Item], Field(min_length=1)]
    model: str | None = None
    instructions: str | None = None
    stream: bool | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    include: list[str] | None = None
    max_output_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    seed: Seed | None = None
    metadata: dict[str, str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    background: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    reasoning_budget: Budget | None = None


@dataclass(frozen=True)
class ResponsesTurn(Turn):
    """A turn, and what its response needs besides.

    ``told``: the fields that a response repeats of its request; ``carries_thinking``: reasoning items have
    ``encrypted_content``.
    """

    told: dict[str, Any] = field(default_factory=dict)
    carries_thinking: bool = False


def responses_turn(request: ResponsesRequest) -> ResponsesTurn:
    """Return the turn that ``request`` asks for; raises ``ApiError`` for what cannot be served."""
    for unknown, remedy in NOT_STORED.items():
        if getattr(request, unknown):
            raise bad_request(f"{unknown}: {remedy}", unknown)
    tools = [_tool(number, tool) for number, tool in enumerate(request.tools or [])]
    choice, name, tools = _choice(request.tool_choice, tools)
    check_choice(choice, name, tools)
    messages = [{"role": "system", "content": request.instructions}] if request.instructions else []
    if isinstance(request.input, str):
        messages.append({"role": "user", "content": request.input})
    else:
        messages += conversation(request.input)
    effort = request.reasoning.effort if request.reasoning else None
    fields = {"temperature": request.temperature, "top_p": request.top_p}
    return ResponsesTurn(
        messages=messages,
        tools=tools,
        tool_choice=choice,
        tool_name=name,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        answer=_answer(request.text.format if request.text else None),
        variables=template_variables(request.chat_template_kwargs, effort, request.enable_thinking),
        effort_field="reasoning.effort" if effort else "chat_template_kwargs.reasoning_effort",
        sampling={name: value for name, value in fields.items() if value is not None},
        seed=llama_seed(request.seed),
        max_tokens=request.max_output_tokens,
        reasoning_budget=request.reasoning_budget,
        stream=bool(request.stream),
        told=_told(request),
        carries_thinking=ENCRYPTED in (request.include or ()),
    )


def _told(request: ResponsesRequest) -> dict[str, Any]:
    """Return the fields that a response repeats, as the client wrote them, with the API's defaults."""
    reasoning, text = request.reasoning or Reasoning(), request.text or TextConfig()
    shown = {"format": _written(text.format) or {"type": "text"}}
    if text.verbosity is not None:
        shown["verbosity"] = text.verbosity
    return {
        "instructions": request.instructions,
        "metadata": request.metadata or {},
        "max_output_tokens": request.max_output_tokens,
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
        "temperature": request.temperature,
        "top_p": request.top_p,
        "text": shown,
        "tool_choice": _written(request.tool_choice) or "auto",
        "tools": [{"parameters": None, "strict": False, **_written(tool)} for tool in request.tools or []],
        "truncation": request.truncation or "disabled",
    }


def _written(value: Any) -> Any:
    """Return a part of the request as JSON has it, without what the client did not send."""
    return value.model_dump(by_alias=True, exclude_unset=True) if isinstance(value, Body) else value


def _tool(number: int, tool: ResponseTool) -> dict[str, Any]:
    if tool.type != "function" or tool.name is None:
        raise bad_request(
            f"tools.{number}: only functions with a name can be served, not {tool.type!r}", f"tools.{number}"
        )
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _choice(
    wanted: ToolChoice | ResponseToolChoice | None, tools: list[dict[str, Any]]
) -> tuple[ToolChoice, str | None, list[dict[str, Any]]]:
    """Return the choice, the function that it names, and the tools that it allows."""
    if not isinstance(wanted, ResponseToolChoice):
        return wanted or "auto", None, tools
    if wanted.type == "function":
        if wanted.name is None:
            raise bad_request("tool_choice.name: is missing", "tool_choice.name")
        return "required", wanted.name, tools
    for name in ("mode", "tools"):
        if getattr(wanted, name) is None:
            raise bad_request(f"tool_choice.{name}: is missing", f"tool_choice.{name}")
    known = {tool["function"]["name"] for tool in tools}
    allowed = {tool.name: number for number, tool in enumerate(wanted.tools or ())}
    for name, number in allowed.items():
        if name not in known:
            where = f"tool_choice.tools.{number}.name"
            raise bad_request(f"{where}: no tool is called {name!r}", where)
    return wanted.mode or "auto", None, [tool for tool in tools if tool["function"]["name"] in allowed]


def _answer(wanted: TextFormat | None) -> JsonAnswer | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return JsonAnswer({"type": "object"})
    if wanted.json_schema is None:
        raise bad_request("text.format.schema: is missing", "text.format.schema")
    return JsonAnswer(wanted.json_schema)
