"""``POST /v1/messages`` (Anthropic's API): the body, and the turn that it asks for."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from strata_pack.gateway.chat_request import check_choice, template_variables
from strata_pack.gateway.failures import bad_request
from strata_pack.gateway.fields import Body, Budget, Count, Effort, Kept, Name, Probability, StopText, Temperature
from strata_pack.gateway.turn import JsonAnswer, ToolChoice, Turn


class Block(Kept):
    """A content block; which further fields it needs depends on ``type``."""

    type: str


class InputMessage(Body):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class AnthropicTool(Body):
    """A tool of the client's own; server tools (``web_search`` ...) are refused."""

    name: Name
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None


class Choice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Budget | None = None


class OutputFormat(Body):
    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    effort: Effort | None = None
    format: OutputFormat | None = None


class CountRequest(Body):
    """What ``count_tokens`` reads."""

    messages: list[InputMessage] = Field(min_length=1)
    model: str | None = None
    system: str | list[Block] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesRequest(CountRequest):
    """A request of Anthropic's Messages API."""

    max_tokens: Count
    stream: bool | None = None
    stop_sequences: Annotated[list[StopText], Field(max_length=16)] | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=0, le=1 << 30)] | None = None


def count_turn(request: CountRequest) -> Turn:
    """Return the turn whose prompt is to be counted."""
    tools = [_tool(number, tool) for number, tool in enumerate(request.tools or [])]
    choice, name = _choice(request.tool_choice)
    check_choice(choice, name, tools)
    messages = [*_system(request.system)]
    for number, message in enumerate(request.messages):
        messages += _openai_messages(number, message)
    config = request.output_config or OutputConfig()
    thinking = request.thinking
    return Turn(
        messages=messages,
        tools=tools,
        tool_choice=choice,
        tool_name=name,
        parallel_tool_calls=not (request.tool_choice and request.tool_choice.disable_parallel_tool_use),
        answer=None if config.format is None else JsonAnswer(config.format.json_schema),
        variables=template_variables(
            request.chat_template_kwargs, config.effort, False if thinking and thinking.type == "disabled" else None
        ),
        reasoning_budget=thinking.budget_tokens if thinking else None,
        continues=request.messages[-1].role == "assistant",
    )


def messages_turn(request: MessagesRequest) -> Turn:
    """Return the turn that ``request`` asks for; raises ``ApiError`` for what cannot be served."""
    turn = count_turn(request)
    sampling = {
        name: getattr(request, name) for name in ("temperature", "top_p", "top_k") if getattr(request, name) is not None
    }
    return Turn(
        **{
            **vars(turn),
            "sampling": sampling,
            "max_tokens": request.max_tokens,
            "stop": tuple(request.stop_sequences or ()),
            "stream": bool(request.stream),
        }
    )


def _tool(number: int, tool: AnthropicTool) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise bad_request(f"tools.{number}: there is no server tool {tool.type!r} here", f"tools.{number}.type")
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _choice(choice: Choice | None) -> tuple[ToolChoice, str | None]:
    if choice is None or choice.type == "auto":
        return "auto", None
    if choice.type == "none":
        return "none", None
    if choice.type == "tool" and choice.name is None:
        raise bad_request("tool_choice.name: is missing", "tool_choice.name")
    return "required", choice.name if choice.type == "tool" else None


def _system(system: str | list[Block] | None) -> list[dict[str, Any]]:
    if system is None:
        return []
    if isinstance(system, str):
        return [{"role": "system", "content": system}]
    return [{"role": "system", "content": "\n".join(_text("system", block) for block in system)}]


def _text(where: str, block: Block) -> str:
    text = block.given().get("text")
    if block.type != "text" or not isinstance(text, str):
        media = block.type in ("image", "document")
        raise bad_request(
            f"{where}: the model has no projector, so blocks of type {block.type!r} cannot be read"
            if media
            else f"{where}: a block of type {block.type!r} cannot stand here",
            where,
            code="unsupported_media" if media else None,
        )
    return text


def _openai_messages(number: int, message: InputMessage) -> list[dict[str, Any]]:
    """Return one Anthropic message as OpenAI messages: tool results become messages of their own, before the text."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    where = f"messages.{number}.content"
    if message.role == "assistant":
        return [_assistant(where, message.content)]
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    for index, block in enumerate(message.content):
        if block.type == "tool_result":
            results.append(_result(f"{where}.{index}", block))
        else:
            texts.append(_text(f"{where}.{index}", block))
    if texts or not results:
        results.append({"role": message.role, "content": "\n".join(texts)})
    return results


def _assistant(where: str, blocks: list[Block]) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        given = block.given()
        if block.type == "thinking":
            if not isinstance(given.get("thinking"), str):
                raise bad_request(f"{where}.{index}.thinking: is missing", f"{where}.{index}.thinking")
            thoughts.append(given["thinking"])
        elif block.type == "tool_use":
            name, values = given.get("name"), given.get("input", {})
            if not isinstance(name, str) or not isinstance(values, dict):
                raise bad_request(f"{where}.{index}: a tool_use needs a name and an input object", f"{where}.{index}")
            function = {"name": name, "arguments": json.dumps(values, ensure_ascii=False)}
            calls.append({"id": str(given.get("id", "")), "type": "function", "function": function})
        elif block.type != "redacted_thinking":
            texts.append(_text(f"{where}.{index}", block))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _result(where: str, block: Block) -> dict[str, Any]:
    given = block.given()
    content = given.get("content", "")
    if isinstance(content, list):
        parts = [Block.model_validate(part) if isinstance(part, dict) and isinstance(part.get("type"), str) else None
                 for part in content]  # fmt: skip
        if None in parts:
            raise bad_request(f"{where}.content: is no list of blocks", f"{where}.content")
        content = "\n".join(_text(f"{where}.content.{i}", part) for i, part in enumerate(parts) if part is not None)
    if not isinstance(content, str):
        raise bad_request(f"{where}.content: is neither a string nor a list of blocks", f"{where}.content")
    return {"role": "tool", "tool_call_id": str(given.get("tool_use_id", "")), "content": content}
