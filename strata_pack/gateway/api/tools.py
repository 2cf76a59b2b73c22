"""Convert tools of all three APIs to functions, and the model's calls back.

A *namespace* (how Codex declares the tools of an MCP server) is flattened: its functions get one name each, and a call
of one is returned with name and namespace separately. A *custom* tool, whose argument is one free text, is a function
with one string. Hosted tools (a web search, an interpreter) are left out: the model is not shown them, and the request
is served without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strata_pack.gateway.failures import bad_request
from strata_pack.gateway.turn import CUSTOM_INPUT, Origin, ToolChoice

SEPARATOR = "__"
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
MAX_FORMAT = 20_000
"""Most characters of a custom tool's grammar that the model is shown."""


def flat_name(namespace: str | None, name: str) -> str:
    """Return the flattened name of a function in a namespace."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith(SEPARATOR) else f"{namespace}{SEPARATOR}{name}"


def function_tool(name: str, description: Any, parameters: Any, **more: Any) -> dict[str, Any]:
    """Return an OpenAI tool object."""
    function: dict[str, Any] = {"name": name}
    if isinstance(description, str):
        function["description"] = description
    function["parameters"] = parameters or NO_PARAMETERS
    return {"type": "function", "function": {**function, **more}}


def check_choice(
    choice: ToolChoice, name: str | None, tools: list[dict[str, Any]], field: str = "tool_choice"
) -> None:  # fmt: skip
    """Raise ``ApiError`` 400 for a choice, from ``field``, that the tools cannot meet."""
    if choice == "required" and not tools:
        raise bad_request(f"{field}: requires a call, but there are no tools", field)
    if name is not None and name not in [tool["function"]["name"] for tool in tools]:
        raise bad_request(f"{field}: there is no tool named {name!r}", field)


class ToolList:
    """Collects the tools of one request.

    ``tools`` are OpenAI tool objects; ``origins`` record tools that the client declared in another form; ``left_out``
    lists what the model is not shown; ``absent`` are the names of such tools.
    """

    def __init__(self) -> None:
        self.tools: list[dict[str, Any]] = []
        self.origins: dict[str, Origin] = {}
        self.left_out: list[str] = []
        self.absent: set[str] = set()

    def add(self, tool: dict[str, Any], origin: Origin | None = None) -> None:
        """Add a function; ``origin`` if its calls are returned in another form."""
        self.tools.append(tool)
        if origin is not None:
            self.origins[tool["function"]["name"]] = origin

    def leave_out(self, kind: str, name: Any = None) -> None:
        """Record a tool of ``kind`` that cannot be served."""
        self.left_out.append(f"tool {kind}")
        if isinstance(name, str):
            self.absent.add(name)

    def settled(
        self, choice: ToolChoice, name: str | None, tools: list[dict[str, Any]]
    ) -> tuple[ToolChoice, str | None]:
        """Return a choice among ``tools`` as far as it can be met: a demand for a tool that was left out is dropped.

        Raises ``ApiError`` 400 for a tool that was not in the request.
        """
        if choice == "required" and (name in self.absent or (name is None and not tools and self.left_out)):
            return "auto", None
        check_choice(choice, name, tools)
        return choice, name

    def settled_kind(self, kind: str) -> ToolChoice:
        """Return the choice for a ``tool_choice`` of a ``kind`` other than function."""
        if not self.left_out:
            raise bad_request(f"tool_choice.type: there is no tool of type {kind[:64]!r}", "tool_choice.type")
        return "auto"

    def add_custom(self, where: str, given: Mapping[str, Any], namespace: str | None = None) -> None:
        """Add a custom tool; ``given`` is in the form of the Responses API (Chat API: the value of ``custom``)."""
        name = _name(where, given)
        flat = flat_name(namespace, name)
        text: dict[str, Any] = {"type": "string", "description": f"The whole input of {name}, as plain text."}
        if form := _format_of(given.get("format")):
            text["description"] += f" It follows this grammar:\n{form}"
        parameters = {"type": "object", "properties": {CUSTOM_INPUT: text}, "required": [CUSTOM_INPUT]}
        self.add(function_tool(flat, given.get("description"), parameters), Origin(name, namespace, custom=True))

    def add_namespace(self, where: str, given: Mapping[str, Any]) -> None:
        """Add the tools of a namespace; each in the form of the Responses or of the Chat API."""
        namespace = _name(where, given)
        tools = given.get("tools")
        if not isinstance(tools, list):
            raise bad_request(f"{where}.tools: must be a list", f"{where}.tools")
        before = len(self.tools)
        for number, tool in enumerate(tools):
            place = f"{where}.tools.{number}"
            if not isinstance(tool, dict):
                raise bad_request(f"{place}: must be an object", place)
            kind = tool.get("type", "function")
            inner = tool.get(kind) if isinstance(kind, str) and isinstance(tool.get(kind), dict) else tool
            assert isinstance(inner, dict)
            if kind == "function":
                name = _name(place, inner)
                parameters = inner.get("parameters", inner.get("input_schema"))
                if not isinstance(parameters, dict | None):
                    raise bad_request(f"{place}.parameters: must be an object", f"{place}.parameters")
                self.add(
                    function_tool(flat_name(namespace, name), inner.get("description"), parameters),
                    Origin(name, namespace),
                )
            elif kind == "custom":
                self.add_custom(place, inner, namespace)
            else:
                self.leave_out(str(kind))
        about = given.get("description")
        if isinstance(about, str) and about and len(self.tools) > before:
            # Templates have no groups, so the first function gets the group's description.
            function = self.tools[before]["function"]
            own = function.get("description", "")
            function["description"] = f"{own}\n\n{namespace}: {about}" if own else f"{namespace}: {about}"


def _name(where: str, given: Mapping[str, Any]) -> str:
    name = given.get("name")
    if not isinstance(name, str) or not name:
        raise bad_request(f"{where}.name: must be a string that is not empty", f"{where}.name")
    return name


def _format_of(given: Any) -> str:
    """Return the grammar of a custom tool's input, "" if any text is allowed."""
    if not isinstance(given, dict):
        return ""
    inner = given.get("grammar") if isinstance(given.get("grammar"), dict) else given
    definition = inner.get("definition") if isinstance(inner, dict) else None
    return definition[:MAX_FORMAT] if isinstance(definition, str) else ""
