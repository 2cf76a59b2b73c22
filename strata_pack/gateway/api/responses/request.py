"""``POST /v1/responses``: the body and its conversion to a ``Turn``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from strata_pack.gateway.api.chat.request import llama_seed
from strata_pack.gateway.api.constraints import ConstraintFields, wanted_answer
from strata_pack.gateway.api.fields import Body, Kept, Name, Probability, Seed, Temperature, TokenLimit, read_part
from strata_pack.gateway.api.responses.input import Item, Read, Recall, conversation
from strata_pack.gateway.api.thinking import Reasoning, ThinkingFields, wanted_thinking
from strata_pack.gateway.api.tools import ToolList, flat_name, function_tool
from strata_pack.gateway.failures import bad_request
from strata_pack.gateway.turn import AnswerForm, JsonAnswer, ToolChoice, Turn

ENCRYPTED = "reasoning.encrypted_content"

NOT_KEPT: Mapping[str, str] = {
    "conversation": "conversations are not stored; send previous_response_id, or the whole conversation as input",
    "prompt": "prompts are not stored; send instructions and input",
    "background": "background responses are not supported; leave background out",
}
"""Fields that need permanent storage -> the error message with an alternative."""


class ResponseTool(Kept):
    """A tool; its field types depend on ``type``. Fields of a tool that is left out are not checked."""

    type: str
    name: Any = None
    parameters: Any = None
    description: Any = None


class FunctionTool(Body):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedTool(Body):
    type: str
    name: Name | None = None
    namespace: str | None = None


class ResponseToolChoice(Body):
    """A ``tool_choice`` that names tools: ``name`` with a function, ``mode`` and ``tools`` with "allowed_tools"."""

    type: Annotated[str, Field(max_length=64)]
    name: Name | None = None
    namespace: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[NamedTool], Field(min_length=1)] | None = None


class TextFormat(Kept):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class TextConfig(Body):
    format: TextFormat | None = None
    verbosity: str | None = None


class ResponsesRequest(ConstraintFields, ThinkingFields):
    """A request of OpenAI's Responses API."""

    input: str | Annotated[list[Item], Field(min_length=1)]
    model: str | None = None
    instructions: str | None = None
    stream: bool | None = None
    store: bool | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    include: list[str] | None = None
    max_output_tokens: TokenLimit = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    seed: Seed | None = None
    metadata: dict[str, str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    background: bool | None = None


@dataclass(frozen=True)
class ResponsesTurn(Turn):
    """A turn, and further settings of its response.

    ``echoed``: request fields that the response repeats; ``carries_thinking``: reasoning items have
    ``encrypted_content``; ``store``: the client allows storing the response.
    """

    echoed: dict[str, Any] = field(default_factory=dict)
    carries_thinking: bool = False
    store: bool = True


def responses_turn(request: ResponsesRequest, recall: Recall) -> ResponsesTurn:
    """Return the turn of ``request``. Raises ``ApiError`` for a field that cannot be served.

    ``recall`` gives access to this client's stored responses.
    """
    for unknown, remedy in NOT_KEPT.items():
        if getattr(request, unknown):
            raise bad_request(f"{unknown}: {remedy}", unknown)
    listed = _listed(request.tools or [])
    choice, name, tools = _choice(request.tool_choice, listed)
    choice, name = listed.settled(choice, name, tools)
    read = _conversation(request, recall)
    system = [{"role": "system", "content": request.instructions}] if request.instructions else []
    thinking = wanted_thinking(request)
    fields = {"temperature": request.temperature, "top_p": request.top_p}
    return ResponsesTurn(
        messages=[*system, *read.messages],
        tools=tools,
        tool_choice=choice,
        tool_name=name,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        answer=wanted_answer(request, _answer(request.text.format if request.text else None)),
        variables=thinking.variables,
        effort_field=thinking.effort_field,
        sampling={name: value for name, value in fields.items() if value is not None},
        seed=llama_seed(request.seed),
        max_tokens=request.max_output_tokens,
        reasoning_budget=thinking.budget,
        stream=bool(request.stream),
        shows_reasoning=thinking.shown,
        origins=listed.origins,
        left_out=(*listed.left_out, *read.left_out),
        echoed=_echoed(request),
        carries_thinking=ENCRYPTED in (request.include or ()),
        store=request.store is not False,
    )


def _conversation(request: ResponsesRequest, recall: Recall) -> Read:
    """Return the messages of the conversation, including those up to ``previous_response_id``."""
    items = [Item(role="user", content=request.input)] if isinstance(request.input, str) else request.input
    if not request.previous_response_id:
        return conversation(items, recall)
    before = recall.conversation(request.previous_response_id)
    return conversation([*(Item.model_validate(one) for one in before), *items], recall, recalled=len(before))


def _echoed(request: ResponsesRequest) -> dict[str, Any]:
    """Return the request fields that a response repeats, with the API's defaults."""
    reasoning, text = request.reasoning or Reasoning(), request.text or TextConfig()
    shown = {"format": _written(text.format) or {"type": "text"}}
    if text.verbosity is not None:
        shown["verbosity"] = text.verbosity
    return {
        "instructions": request.instructions,
        "metadata": request.metadata or {},
        "previous_response_id": request.previous_response_id,
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
    """Return a part of the request as JSON, without fields that the client did not send."""
    return value.model_dump(by_alias=True, exclude_unset=True) if isinstance(value, Body) else value


def _listed(tools: list[ResponseTool]) -> ToolList:
    listed = ToolList()
    for number, tool in enumerate(tools):
        where, given = f"tools.{number}", tool.given()
        if tool.type == "function":
            if tool.name is None:
                raise bad_request(f"{where}.name: is missing", f"{where}.name")
            function = read_part(FunctionTool, where, given)
            listed.add(function_tool(function.name, function.description, function.parameters))
        elif tool.type == "custom":
            listed.add_custom(where, given)
        elif tool.type == "namespace":
            listed.add_namespace(where, given)
        else:
            listed.leave_out(tool.type, tool.name)
    return listed


def _choice(
    wanted: ToolChoice | ResponseToolChoice | None, listed: ToolList
) -> tuple[ToolChoice, str | None, list[dict[str, Any]]]:
    """Return the choice, the function that it names, and the allowed tools."""
    tools = listed.tools
    if not isinstance(wanted, ResponseToolChoice):
        return wanted or "auto", None, tools
    if wanted.type not in ("function", "custom", "allowed_tools"):
        return listed.settled_kind(wanted.type), None, tools
    if wanted.type != "allowed_tools":
        if wanted.name is None:
            raise bad_request("tool_choice.name: is missing", "tool_choice.name")
        return "required", flat_name(wanted.namespace, wanted.name), tools
    for name in ("mode", "tools"):
        if getattr(wanted, name) is None:
            raise bad_request(f"tool_choice.{name}: is missing", f"tool_choice.{name}")
    known = {tool["function"]["name"] for tool in tools}
    allowed: set[str] = set()
    for number, tool in enumerate(wanted.tools or ()):
        if tool.type not in ("function", "custom"):
            continue  # a tool that was left out
        where = f"tool_choice.tools.{number}.name"
        if tool.name is None:
            raise bad_request(f"{where}: is missing", where)
        name = flat_name(tool.namespace, tool.name)
        if name not in known:
            raise bad_request(f"{where}: there is no tool named {name!r}", where)
        allowed.add(name)
    return wanted.mode or "auto", None, [tool for tool in tools if tool["function"]["name"] in allowed]


def _answer(wanted: TextFormat | None) -> tuple[str, AnswerForm] | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return "text.format", JsonAnswer({"type": "object"} if wanted.json_schema is None else wanted.json_schema)
    if wanted.json_schema is None:
        raise bad_request("text.format.schema: is missing", "text.format.schema")
    return "text.format", JsonAnswer(wanted.json_schema)
