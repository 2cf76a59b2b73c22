"""The tools and ``tool_choice`` of ``/v1/chat/completions``.

``functions`` and ``function_call`` are the older names of ``tools`` and ``tool_choice``; such clients read one call per
reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from strata_pack.gateway.api.fields import Body, Kept, Name, ToolFunction
from strata_pack.gateway.api.tools import ToolList, check_choice, flat_name
from strata_pack.gateway.failures import bad_request
from strata_pack.gateway.turn import Origin, ToolChoice


class Tool(Kept):
    """A tool; only "function", "custom" and "namespace" can be served."""

    type: str = "function"
    function: ToolFunction | None = None


class NamedFunction(Body):
    name: Name
    namespace: str | None = None


class AllowedTool(Body):
    type: str
    function: NamedFunction | None = None
    custom: NamedFunction | None = None


class AllowedTools(Body):
    mode: Literal["auto", "required"]
    tools: list[AllowedTool]


class ChosenTools(Body):
    """A ``tool_choice`` object: one tool, or a list of allowed ones; ``type`` decides which field it needs."""

    type: Annotated[str, Field(max_length=64)]
    function: NamedFunction | None = None
    custom: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


class ToolFields(Body):
    """The tool fields of a request."""

    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | ChosenTools | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[ToolFunction], Field(max_length=4096)] | None = None
    function_call: Literal["auto", "none"] | NamedFunction | None = None


@dataclass(frozen=True)
class Calls:
    """The tools of a turn: ``tools`` are OpenAI tool objects; ``name`` is the function that it must call.

    ``origins`` and ``left_out`` as in ``Turn``.
    """

    tools: list[dict[str, Any]]
    choice: ToolChoice
    name: str | None
    parallel: bool
    origins: Mapping[str, Origin] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def wanted_calls(request: ToolFields) -> Calls:
    """Return the tools and the choice of ``request``. Raises ``ApiError`` 400 for a choice that its tools cannot
    meet."""
    if request.functions is not None:
        return _legacy(request, request.functions)
    if request.function_call is not None:
        raise bad_request("function_call: there are no functions", "function_call")
    listed = _listed(request.tools or [])
    tools = listed.tools
    choice: ToolChoice = "auto"
    name: str | None = None
    wanted = request.tool_choice
    if not isinstance(wanted, ChosenTools):
        choice = wanted or "auto"
    elif wanted.type == "allowed_tools":
        choice, tools = _allowed(wanted.allowed_tools, tools)
    elif wanted.type not in ("function", "custom"):
        choice = listed.settled_kind(wanted.type)
    else:
        chosen = getattr(wanted, wanted.type)
        if chosen is None:
            raise bad_request(f"tool_choice.{wanted.type}: is missing", f"tool_choice.{wanted.type}")
        choice, name = "required", flat_name(chosen.namespace, chosen.name)
    choice, name = listed.settled(choice, name, tools)
    parallel = request.parallel_tool_calls is not False
    return Calls(tools, choice, name, parallel, listed.origins, tuple(listed.left_out))


def _listed(tools: list[Tool]) -> ToolList:
    listed = ToolList()
    for number, tool in enumerate(tools):
        where, given = f"tools.{number}", tool.given()
        if tool.type == "function":
            if tool.function is None:
                raise bad_request(f"{where}.function: is missing", f"{where}.function")
            listed.add(given)
        elif tool.type == "custom":
            inner = given.get("custom")
            listed.add_custom(where, inner if isinstance(inner, dict) else given)
        elif tool.type == "namespace":
            inner = given.get("namespace")
            listed.add_namespace(where, inner if isinstance(inner, dict) else given)
        else:
            listed.leave_out(tool.type, given.get("name"))
    return listed


def _legacy(request: ToolFields, functions: list[ToolFunction]) -> Calls:
    for newer in ("tools", "tool_choice"):
        if getattr(request, newer) is not None:
            raise bad_request(f"functions: cannot be combined with {newer}; use tools, tool_choice", "functions")
    tools = [{"type": "function", "function": function.given()} for function in functions]
    if isinstance(request.function_call, NamedFunction):
        name = request.function_call.name
        check_choice("required", name, tools, "function_call")
        return Calls(tools, "required", name, parallel=False)
    return Calls(tools, request.function_call or "auto", None, parallel=False)


def _allowed(
    allowed: AllowedTools | None, tools: list[dict[str, Any]]
) -> tuple[ToolChoice, list[dict[str, Any]]]:  # fmt: skip
    """Return the mode of ``allowed`` and the tools that it lists."""
    if allowed is None:
        raise bad_request("tool_choice.allowed_tools: is missing", "tool_choice.allowed_tools")
    known = {tool["function"]["name"] for tool in tools}
    wanted: set[str] = set()
    for number, tool in enumerate(allowed.tools):
        if tool.type not in ("function", "custom"):
            continue  # a tool that was left out
        where = f"tool_choice.allowed_tools.tools.{number}.{tool.type}"
        named = tool.function if tool.type == "function" else tool.custom
        if named is None:
            raise bad_request(f"{where}: is missing", where)
        name = flat_name(named.namespace, named.name)
        if name not in known:
            raise bad_request(f"{where}.name: there is no tool named {name!r}", f"{where}.name")
        wanted.add(name)
    return allowed.mode, [tool for tool in tools if tool["function"]["name"] in wanted]
