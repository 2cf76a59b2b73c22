"""``POST /v1/messages`` (Anthropic's API): the body and its conversion to a ``Turn``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from types import NoneType
from typing import Any, Literal

from pydantic import Field

from strata_pack.gateway.api.constraints import ConstraintFields, wanted_answer
from strata_pack.gateway.api.fields import (
    Body,
    Budget,
    Count,
    Effort,
    Name,
    Probability,
    StopList,
    Temperature,
    TopK,
    text_field,
)
from strata_pack.gateway.api.messages.blocks import (
    TEXT_ONLY,
    Block,
    Pieces,
    block_pieces,
    content_pieces,
    located,
    readable,
)
from strata_pack.gateway.api.messages.tools import AnthropicTool, listed_tools
from strata_pack.gateway.api.serialized import pieces_of
from strata_pack.gateway.api.thinking import template_variables
from strata_pack.gateway.api.tools import flat_name
from strata_pack.gateway.failures import ApiError, bad_request
from strata_pack.gateway.media import is_media, joined, placeholder
from strata_pack.gateway.turn import AnswerForm, JsonAnswer, ToolChoice, Turn

INPUT_BLOCKS = {"user": ("text", "document", "search_result"), "system": TEXT_ONLY}
"""Block types allowed in a message by its role."""

RESULT_BLOCKS = (*INPUT_BLOCKS["user"], "tool_reference")
ERROR_MARK = "Error"
SERVER_CALLS = ("server_tool_use", "mcp_tool_use")
RESULT = "_tool_result"
"""Ending of the types of hosted tools' results."""


class InputMessage(Body):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ToolChoiceObject(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Budget = None


class OutputFormat(Body):
    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    effort: Effort | None = None
    format: OutputFormat | None = None


class CountRequest(ConstraintFields):
    """A request of ``count_tokens``."""

    messages: list[InputMessage] = Field(min_length=1)
    model: str | None = None
    system: str | list[Block] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: ToolChoiceObject | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    enable_thinking: bool | None = None
    think: bool | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesRequest(CountRequest):
    """A request of Anthropic's Messages API."""

    max_tokens: Count
    stream: bool | None = None
    stop_sequences: StopList = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_k: TopK | None = None


def count_turn(request: CountRequest) -> Turn:
    """Return the turn of a ``count_tokens`` request."""
    listed = listed_tools(request.tools or [])
    choice, name = listed.settled(*_choice(request.tool_choice), listed.tools)
    left_out = [*listed.left_out]
    messages = [*_system(request.system), *_openai_messages(request.messages, left_out)]
    continues = request.messages[-1].role == "assistant"
    if continues and (calls := messages[-1].get("tool_calls")):
        raise _unanswered(len(request.messages) - 1, [call["id"] for call in calls])
    config = request.output_config or OutputConfig()
    thinking = request.thinking
    off = (thinking and thinking.type == "disabled") or False in (request.enable_thinking, request.think)
    return Turn(
        messages=messages,
        tools=listed.tools,
        tool_choice=choice,
        tool_name=name,
        parallel_tool_calls=not (request.tool_choice and request.tool_choice.disable_parallel_tool_use),
        answer=wanted_answer(request, _answer(config.format, request.output_format)),
        variables=template_variables(request.chat_template_kwargs, config.effort, False if off else None),
        effort_field="output_config.effort",
        reasoning_budget=thinking.budget_tokens if thinking else None,
        continues=continues,
        shows_reasoning=request.include_reasoning is not False,
        origins=listed.origins,
        left_out=tuple(left_out),
    )


def messages_turn(request: MessagesRequest) -> Turn:
    """Return the turn of ``request``. Raises ``ApiError`` for a field that cannot be served."""
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


def _answer(wanted: OutputFormat | None, older: OutputFormat | None) -> tuple[str, AnswerForm] | None:
    if wanted is not None:
        return "output_config.format", JsonAnswer(wanted.json_schema)
    return None if older is None else ("output_format", JsonAnswer(older.json_schema))


def _choice(choice: ToolChoiceObject | None) -> tuple[ToolChoice, str | None]:
    if choice is None or choice.type == "auto":
        return "auto", None
    if choice.type == "none":
        return "none", None
    if choice.type == "tool" and choice.name is None:
        raise bad_request("tool_choice.name: is missing", "tool_choice.name")
    return "required", choice.name if choice.type == "tool" else None


def _system(system: str | list[Block] | None) -> list[dict[str, Any]]:
    return [] if system is None else [{"role": "system", "content": joined(content_pieces("system", system), "\n")}]


def _openai_messages(messages: Sequence[InputMessage], left_out: list[str]) -> list[dict[str, Any]]:
    """Return Anthropic's messages as OpenAI's; consecutive messages of one role are one turn, as in Anthropic's API.

    Skipped blocks are added to ``left_out``.
    """
    turns: list[dict[str, Any]] = []
    for role, group in groupby(enumerate(messages), key=lambda numbered: numbered[1].role):
        contents = [(f"messages.{number}.content", message.content) for number, message in group]
        turns += _assistant(contents, left_out) if role == "assistant" else _input(role, contents)
    return turns


Contents = list[tuple[str, str | list[Block]]]
"""The contents of the messages of one turn, with their paths."""


def _input(role: str, contents: Contents) -> list[dict[str, Any]]:
    """Return a user's or system's turn: tool results become separate messages, before the text."""
    results: list[dict[str, Any]] = []
    pieces: Pieces = []
    for where, block in [one for content in contents for one in located(*content)]:
        if block.type == "tool_result" and role == "user":
            results.append(_result(where, block.given()))
        elif block.type.endswith(RESULT) and role == "user":
            results.append(_server_result(block.given()))
        elif block.type == "compaction" and role == "user":
            pieces.append(text_field(where, block.given(), "content", default=""))
        else:
            pieces += block_pieces(where, block, INPUT_BLOCKS[role])
    if pieces or not results:
        results.append({"role": role, "content": joined(pieces, "\n")})
    return results


class _Turn:
    """Collects an assistant's turn: texts, thinking and calls, until a hosted tool's result."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.text: list[str] = []
        self.thought: list[str] = []

    def end_message(self) -> None:
        """Mark the end of a message: its blocks are one text, and the next message starts a new paragraph."""
        self.texts.append("".join(self.text))
        self.thoughts.append("".join(self.thought))
        self.text, self.thought = [], []

    def whole(self) -> dict[str, Any]:
        self.end_message()
        message: dict[str, Any] = {"role": "assistant", "content": _paragraphs(self.texts)}
        if any(self.thoughts):
            message["reasoning_content"] = _paragraphs(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


def _assistant(contents: Contents, left_out: list[str]) -> list[dict[str, Any]]:
    """Return an assistant's turn: one message, or several if it has results of hosted tools."""
    messages: list[dict[str, Any]] = []
    turn = _Turn()
    for content in contents:
        for where, block in located(*content):
            given = block.given()
            if block.type == "thinking":
                turn.thought.append(text_field(where, given, "thinking"))
            elif block.type == "tool_use" or block.type in SERVER_CALLS:
                turn.calls.append(_call(where, given))
            elif block.type.endswith(RESULT):
                if turn.calls or turn.text:
                    messages.append(turn.whole())
                    turn = _Turn()
                messages.append(_server_result(given))
            elif block.type in ASSISTANT_TEXTS:
                turn.text.append(text_field(where, given, ASSISTANT_TEXTS[block.type]))
            elif block.type == "image":
                turn.text.append(placeholder("image"))
            elif block.type != "redacted_thinking":
                left_out.append(f"block {block.type}")
        turn.end_message()
    last = turn.whole()
    if not messages or last.keys() & {"tool_calls", "reasoning_content"} or last["content"]:
        messages.append(last)
    return messages


ASSISTANT_TEXTS = {"text": "text", "connector_text": "connector_text", "compaction": "content"}
"""Block types with text of the assistant -> the key of the text."""


def _paragraphs(texts: list[str]) -> str:
    return "\n\n".join(filter(None, texts))


def _call(where: str, given: dict[str, Any]) -> dict[str, Any]:
    name, values = text_field(where, given, "name"), given.get("input", {})
    if not isinstance(values, dict):
        raise bad_request(f"{where}.input: must be an object", f"{where}.input")
    namespace = given.get("namespace", given.get("server_name"))
    flat = flat_name(namespace if isinstance(namespace, str) else None, name)
    function = {"name": flat, "arguments": json.dumps(values, ensure_ascii=False)}
    return {"id": str(given.get("id", "")), "type": "function", "function": function}


def _server_result(given: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a hosted tool."""
    return {
        "role": "tool",
        "tool_call_id": str(given.get("tool_use_id", "")),
        "content": readable(given.get("content", "")),
    }


def _unanswered(number: int, ids: list[str]) -> ApiError:
    """Return the 400 for a last turn with calls, which only their results may follow."""
    return bad_request(
        f"messages.{number}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(ids)}. Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
        f"messages.{number}.content",
    )


def _result(where: str, given: dict[str, Any]) -> dict[str, Any]:
    content = given.get("content", "")
    pieces = [] if content is None else _result_pieces(f"{where}.content", content)
    failed = given.get("is_error")
    if not isinstance(failed, bool | NoneType):
        raise bad_request(f"{where}.is_error: must be a boolean", f"{where}.is_error")
    # Templates have no error flag, so the text must say that the call failed.
    first = pieces[0] if pieces and isinstance(pieces[0], str) else ""
    if failed and not first.lstrip().lower().startswith(ERROR_MARK.lower()):
        if not pieces or is_media(pieces[0]):
            pieces.insert(0, ERROR_MARK)
        else:
            pieces[0] = f"{ERROR_MARK}: {first}" if first else ERROR_MARK
    return {"role": "tool", "tool_call_id": str(given.get("tool_use_id", "")), "content": joined(pieces, "\n")}


def _result_pieces(where: str, content: Any) -> Pieces:
    """Return a tool result's texts and media; unknown block types are not an error, because the user cannot change
    them."""
    if isinstance(content, str) and (decoded := pieces_of(where, content)) is not None:
        return decoded
    pieces: Pieces = []
    for place, block in located(where, content):
        known = block.type in RESULT_BLOCKS or block.type == "image"
        pieces += block_pieces(place, block, RESULT_BLOCKS) if known else [placeholder(block.type[:64])]
    return pieces
