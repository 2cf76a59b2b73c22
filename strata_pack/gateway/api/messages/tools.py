"""The tools of Anthropic's Messages API as functions, with the parameters of Anthropic's client-side tools.

Of the tools that Anthropic defines, the client runs some (a shell, an editor, a memory) and declares them by type and
name only: they are functions with known parameters. Tools that run on Anthropic's servers are left out.
Source: Anthropic's documentation of the bash, text editor and memory tools.
"""

from __future__ import annotations

import re
from typing import Any

from strata_pack.gateway.api.fields import Kept, Name
from strata_pack.gateway.api.tools import ToolList, function_tool
from strata_pack.gateway.failures import bad_request

DATED = re.compile(r"(?P<kind>[a-z_]+?)_(?P<date>\d{8})")


class AnthropicTool(Kept):
    """A tool; one without a type, of type "custom", or with a schema is a function of the client."""

    name: Name | None = None
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None


def _object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def _text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, **more}


def _whole(description: str) -> dict[str, Any]:
    return {"type": "integer", "description": description}


RANGE = {
    "type": "array",
    "items": {"type": "integer"},
    "description": "First and last line to view, from 1; -1 for the end of the file.",
}
EDITING = {
    "path": _text("Absolute path of the file or directory."),
    "file_text": _text("The content of the file, for create."),
    "old_str": _text("The text to replace, which occurs once, for str_replace."),
    "new_str": _text("The text to put in its place, for str_replace."),
    "insert_line": _whole("The line after which to insert; 0 for the beginning of the file."),
    "view_range": RANGE,
}
INSERTED = _text("The text to insert, for insert.")


def _editor(*commands: str, insert_text: bool) -> dict[str, Any]:
    properties = dict(EDITING)
    if insert_text:
        properties["insert_text"] = INSERTED
    else:
        properties["new_str"] = _text("The text to put in its place, for str_replace; the one to insert, for insert.")
    return _object(("command", "path"), command=_text("What to do.", enum=list(commands)), **properties)


VIEWING = ("view", "create", "str_replace", "insert")
EDITOR = "View, create and edit text files."
CLIENT_TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "bash": (
        "Run a command in a bash shell that keeps its state between calls.",
        _object((), command=_text("The command to run."), restart={"type": "boolean", "description": "Start anew."}),
    ),
    "text_editor": (EDITOR, _editor(*VIEWING, insert_text=True)),
    "text_editor_20241022": (EDITOR, _editor(*VIEWING, "undo_edit", insert_text=False)),
    "text_editor_20250124": (EDITOR, _editor(*VIEWING, "undo_edit", insert_text=False)),
    "text_editor_20250429": (EDITOR, _editor(*VIEWING, insert_text=False)),
    "memory": (
        "Keep notes in files below /memories that outlast the conversation.",
        _object(
            ("command",),
            command=_text("What to do.", enum=[*VIEWING, "delete", "rename"]),
            **EDITING,
            insert_text=INSERTED,
            old_path=_text("The path to rename, for rename."),
            new_path=_text("The new path, for rename."),
        ),
    ),
}
"""Tool types that the client runs (dated ones where versions differ) -> description and parameters."""

DEFAULT_NAMES = {"text_editor": "str_replace_based_edit_tool"}


def listed_tools(tools: list[AnthropicTool]) -> ToolList:
    """Return the functions of ``tools``. Raises ``ApiError`` 400 for one without a name."""
    listed = ToolList()
    for number, tool in enumerate(tools):
        where = f"tools.{number}"
        dated = DATED.fullmatch(tool.type or "")
        kind = dated["kind"] if dated else tool.type
        known = CLIENT_TOOLS.get(tool.type or "") or CLIENT_TOOLS.get(kind or "")
        if kind in (None, "custom", "function") or tool.input_schema is not None:
            if tool.name is None:
                raise bad_request(f"{where}.name: is missing", f"{where}.name")
            listed.add(function_tool(tool.name, tool.description, tool.input_schema))
        elif known is not None:
            description, parameters = known
            name = tool.name or DEFAULT_NAMES.get(kind, kind)
            listed.add(function_tool(name, tool.description or description, parameters))
        elif kind == "namespace":
            listed.add_namespace(where, tool.given())
        else:
            listed.leave_out(kind, tool.name)
    return listed
