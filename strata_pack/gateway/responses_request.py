"""``POST /v1/responses`` (non-stored): the body, and the turn that it asks for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from strata_pack.gateway.chat_request import check_choice, llama_seed, refuse_media, template_variables
from strata_pack.gateway.failures import bad_request
from strata_pack.gateway.fields import Body, Budget, Count, Effort, Kept, Name, Probability, Seed, Temperature
from strata_pack.gateway.turn import JsonAnswer, ToolChoice, Turn


class Item(Kept):
    """An input item; which further fields it needs depends on ``type`` (``message`` when it is not given)."""

    type: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[dict[str, Any]] | None = None


class ResponseTool(Body):
    type: str
    name: Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedTool(Body):
    type: Literal["function"]
    name: Name


class Reasoning(Body):
    effort: Effort | None = None
    summary: str | None = None


class TextFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class TextConfig(Body):
    format: TextFormat | None = None


class ResponsesRequest(Body):
    """A request of OpenAI's Responses API. Nothing is stored, so ``previous_response_id`` is refused."""

    input: str | Annotated[list[Item], Field(min_length=1)]
    model: str | None = None
    instructions: str | None = None
    stream: bool | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    max_output_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    seed: Seed | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    reasoning_budget: Budget | None = None


def responses_turn(request: ResponsesRequest) -> Turn:
    """Return the turn that ``request`` asks for; raises ``ApiError`` for what cannot be served."""
    if request.previous_response_id:
        raise bad_request(
            "previous_response_id: responses are not stored here; send the whole conversation as input",
            "previous_response_id",
        )
    if request.background:
        raise bad_request("background: responses are not stored here", "background")
    tools = [_tool(number, tool) for number, tool in enumerate(request.tools or [])]
    wanted = request.tool_choice
    choice: ToolChoice = "required" if isinstance(wanted, NamedTool) else wanted or "auto"
    name = wanted.name if isinstance(wanted, NamedTool) else None
    check_choice(choice, name, tools)
    messages = [{"role": "system", "content": request.instructions}] if request.instructions else []
    if isinstance(request.input, str):
        messages.append({"role": "user", "content": request.input})
    else:
        messages += _messages(request.input)
    refuse_media(messages)
    fields = {"temperature": request.temperature, "top_p": request.top_p}
    return Turn(
        messages=messages,
        tools=tools,
        tool_choice=choice,
        tool_name=name,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        answer=_answer(request.text.format if request.text else None),
        variables=template_variables(
            request.chat_template_kwargs, request.reasoning.effort if request.reasoning else None,
            request.enable_thinking,
        ),
        sampling={name: value for name, value in fields.items() if value is not None},
        seed=llama_seed(request.seed),
        max_tokens=request.max_output_tokens,
        reasoning_budget=request.reasoning_budget,
        stream=bool(request.stream),
    )  # fmt: skip


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


def _answer(wanted: TextFormat | None) -> JsonAnswer | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return JsonAnswer({"type": "object"})
    if wanted.json_schema is None:
        raise bad_request("text.format.schema: is missing", "text.format.schema")
    return JsonAnswer(wanted.json_schema)


def _messages(items: list[Item]) -> list[dict[str, Any]]:
    """Return the items as messages; reasoning, text and calls of one assistant turn become one message."""
    messages: list[dict[str, Any]] = []

    def assistant() -> dict[str, Any]:
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        return messages[-1]

    for number, item in enumerate(items):
        where, given = f"input.{number}", item.given()
        kind = item.type or "message"
        if kind == "message":
            if item.role is None:
                raise bad_request(f"{where}.role: is missing", f"{where}.role")
            content = _content(where, item.content)
            if item.role == "assistant" and isinstance(content, str):
                turn = assistant()
                if turn.get("tool_calls"):
                    messages.append({"role": "assistant", "content": content})
                else:
                    turn["content"] += content
            else:
                messages.append({"role": item.role, "content": content})
        elif kind == "reasoning":
            if messages and messages[-1]["role"] == "assistant":
                messages.append({"role": "assistant", "content": ""})
            assistant()["reasoning_content"] = _reasoning(given)
        elif kind == "function_call":
            name, arguments = given.get("name"), given.get("arguments", "")
            if not isinstance(name, str) or not isinstance(arguments, str):
                raise bad_request(f"{where}: a function_call needs a name and arguments as text", where)
            call = {
                "id": str(given.get("call_id", "")),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            assistant().setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            output = given.get("output", "")
            text = output if isinstance(output, str) else _content(f"{where}.output", output)
            messages.append({"role": "tool", "tool_call_id": str(given.get("call_id", "")), "content": text})
        else:
            raise bad_request(f"{where}: an item of type {kind!r} cannot be read here", f"{where}.type")
    return messages


def _content(where: str, content: Any) -> str | list[dict[str, Any]]:
    """Return text parts joined, and a list with any other part as it is (it will be refused by name)."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise bad_request(f"{where}.content: is neither a string nor a list of parts", f"{where}.content")
    texts = [part.get("text", part.get("refusal")) for part in content]
    if all(isinstance(text, str) for text in texts):
        return "".join(texts)
    return content


def _reasoning(given: dict[str, Any]) -> str:
    """Return the text of a reasoning item: its content, else its summary."""
    for key in ("content", "summary"):
        parts = given.get(key)
        if isinstance(parts, list) and parts:
            return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
    return ""
