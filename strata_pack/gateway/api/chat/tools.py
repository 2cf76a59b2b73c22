"""The tools of ``/v1/chat/completions``, and which of them a turn may or must call.

``functions`` and ``function_call`` are the older names of ``tools`` and ``tool_choice``; who uses them reads one call a
reply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from strata_pack.gateway.api.fields import Body, Kept, Name, ToolFunction
from strata_pack.gateway.failures import bad_request
from strata_pack.gateway.turn import ToolChoice


class Tool(Kept):
    type: Literal["function"]
    function: ToolFunction


class NamedFunction(Body):
    name: Name


class AllowedTool(Body):
    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Body):
    mode: Literal["auto", "required"]
    tools: list[AllowedTool]


class ChosenTools(Body):
    """A choice of one function, or of those that may be called; ``type`` says which field it needs."""

    type: Literal["function", "allowed_tools"]
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


class ToolFields(Body):
    """The fields of a request that are about tools."""

    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | ChosenTools | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[ToolFunction], Field(max_length=4096)] | None = None
    function_call: Literal["auto", "none"] | NamedFunction | None = None


@dataclass(frozen=True)
class Calls:
    """What a turn may call: ``tools`` OpenAI tool objects; ``name`` the function that it must call."""

    tools: list[dict[str, Any]]
    choice: ToolChoice
    name: str | None
    parallel: bool


def wanted_calls(request: ToolFields) -> Calls:
    """Return what ``request`` allows and demands; raises a 400 for what its tools cannot meet."""
    if request.functions is not None:
        return _legacy(request, request.functions)
    if request.function_call is not None:
        raise bad_request("function_call: there are no functions", "function_call")
    tools = [tool.given() for tool in request.tools or []]
    parallel = request.parallel_tool_calls is not False
    wanted = request.tool_choice
    if not isinstance(wanted, ChosenTools):
        calls = Calls(tools, wanted or "auto", None, parallel)
    elif wanted.type == "allowed_tools":
        choice, tools = _allowed(wanted.allowed_tools, tools)
        calls = Calls(tools, choice, None, parallel)
    elif wanted.function is None:
        raise bad_request("tool_choice.function: is missing", "tool_choice.function")
    else:
        calls = Calls(tools, "required", wanted.function.name, parallel)
    check_choice(calls.choice, calls.name, calls.tools)
    return calls


def check_choice(
    choice: ToolChoice, name: str | None, tools: list[dict[str, Any]], field: str = "tool_choice"
) -> None:  # fmt: skip
    """Raise a 400 for a choice, made in ``field``, that the tools cannot meet."""
    if choice == "required" and not tools:
        raise bad_request(f"{field}: demands a call, but there are no tools", field)
    if name is not None and name not in [tool["function"]["name"] for tool in tools]:
        raise bad_request(f"{field}: no tool is called {name!r}", field)


def _legacy(request: ToolFields, functions: list[ToolFunction]) -> Calls:
    for field in ("tools", "tool_choice"):
        if getattr(request, field) is not None:
            raise bad_request(f"functions: cannot stand beside {field}; use tools and tool_choice alone", "functions")
    tools = [{"type": "function", "function": function.given()} for function in functions]
    if isinstance(request.function_call, NamedFunction):
        name = request.function_call.name
        check_choice("required", name, tools, "function_call")
        return Calls(tools, "required", name, parallel=False)
    return Calls(tools, request.function_call or "auto", None, parallel=False)


def _allowed(
    allowed: AllowedTools | None, tools: list[dict[str, Any]]
) -> tuple[ToolChoice, list[dict[str, Any]]]:  # fmt: skip
    """Return the mode of ``allowed`` and those of ``tools`` that it names."""
    if allowed is None:
        raise bad_request("tool_choice.allowed_tools: is missing", "tool_choice.allowed_tools")
    known = {tool["function"]["name"] for tool in tools}
    names = [tool.function.name for tool in allowed.tools]
    for number, name in enumerate(names):
        if name not in known:
            where = f"tool_choice.allowed_tools.tools.{number}.function.name"
            raise bad_request(f"{where}: no tool is called {name!r}", where)
    wanted = set(names)
    return allowed.mode, [tool for tool in tools if tool["function"]["name"] in wanted]
