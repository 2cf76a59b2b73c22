"""``POST /v1/messages`` (Anthropic's API): the body, and the turn that it asks for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from types import NoneType
from typing import Annotated, Any, Literal

from pydantic import Field

from strata_pack.gateway.api.chat.request import template_variables
from strata_pack.gateway.api.chat.tools import check_choice
from strata_pack.gateway.api.fields import (
    Body,
    Budget,
    Count,
    Effort,
    Name,
    Probability,
    StopText,
    Temperature,
    text_field,
)
from strata_pack.gateway.api.messages.blocks import TEXT_ONLY, Block, block_text, content_text, located
from strata_pack.gateway.failures import ApiError, bad_request
from strata_pack.gateway.turn import JsonAnswer, ToolChoice, Turn

INPUT_BLOCKS = {"user": ("text", "document", "search_result"), "system": TEXT_ONLY}
"""What a message may hold as text, by its role."""

RESULT_BLOCKS = (*INPUT_BLOCKS["user"], "tool_reference")
ERROR_MARK = "Error"


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
    messages = [*_system(request.system), *_openai_messages(request.messages)]
    continues = request.messages[-1].role == "assistant"
    if continues and (calls := messages[-1].get("tool_calls")):
        raise _unanswered(len(request.messages) - 1, [call["id"] for call in calls])
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
        effort_field="output_config.effort",
        reasoning_budget=thinking.budget_tokens if thinking else None,
        continues=continues,
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
    return [] if system is None else [{"role": "system", "content": content_text("system", system)}]


def _openai_messages(messages: Sequence[InputMessage]) -> list[dict[str, Any]]:
    """Return Anthropic's messages as OpenAI's; consecutive ones of one role are one turn, as in Anthropic's API."""
    turns: list[dict[str, Any]] = []
    for role, group in groupby(enumerate(messages), key=lambda numbered: numbered[1].role):
        contents = [(f"messages.{number}.content", message.content) for number, message in group]
        turns += [_assistant(contents)] if role == "assistant" else _input(role, contents)
    return turns


Contents = list[tuple[str, str | list[Block]]]
"""The contents of the messages of one turn, with their paths."""


def _input(role: str, contents: Contents) -> list[dict[str, Any]]:
    """Return a user's or system's turn: tool results become messages of their own, before the text."""
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    for where, block in [one for content in contents for one in located(*content)]:
        if block.type == "tool_result" and role == "user":
            results.append(_result(where, block.given()))
        else:
            texts.append(block_text(where, block, INPUT_BLOCKS[role]))
    if texts or not results:
        results.append({"role": role, "content": "\n".join(texts)})
    return results


def _assistant(contents: Contents) -> dict[str, Any]:
    """Return an assistant's turn. The blocks of a message are one text; a new message is a new paragraph."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for content in contents:
        text: list[str] = []
        thought: list[str] = []
        for where, block in located(*content):
            if block.type == "thinking":
                thought.append(text_field(where, block.given(), "thinking"))
            elif block.type == "tool_use":
                calls.append(_call(where, block.given()))
            elif block.type != "redacted_thinking":
                text.append(block_text(where, block))
        texts.append("".join(text))
        thoughts.append("".join(thought))
    message: dict[str, Any] = {"role": "assistant", "content": _paragraphs(texts)}
    if any(thoughts):
        message["reasoning_content"] = _paragraphs(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _paragraphs(texts: list[str]) -> str:
    return "\n\n".join(filter(None, texts))


def _call(where: str, given: dict[str, Any]) -> dict[str, Any]:
    name, values = text_field(where, given, "name"), given.get("input", {})
    if not isinstance(values, dict):
        raise bad_request(f"{where}.input: must be an object", f"{where}.input")
    function = {"name": name, "arguments": json.dumps(values, ensure_ascii=False)}
    return {"id": str(given.get("id", "")), "type": "function", "function": function}


def _unanswered(number: int, ids: list[str]) -> ApiError:
    """Return the 400 for a last turn that has calls: what could go on there is their results alone."""
    return bad_request(
        f"messages.{number}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(ids)}. Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
        f"messages.{number}.content",
    )


def _result(where: str, given: dict[str, Any]) -> dict[str, Any]:
    text = content_text(f"{where}.content", given.get("content", ""), RESULT_BLOCKS)
    failed = given.get("is_error")
    if not isinstance(failed, bool | NoneType):
        raise bad_request(f"{where}.is_error: must be a boolean", f"{where}.is_error")
    # Templates know no flag for it: unless the text says so itself, the model would take the message for the result.
    if failed and not text.lstrip().lower().startswith(ERROR_MARK.lower()):
        text = f"{ERROR_MARK}: {text}" if text else ERROR_MARK
    return {"role": "tool", "tool_call_id": str(given.get("tool_use_id", "")), "content": text}
