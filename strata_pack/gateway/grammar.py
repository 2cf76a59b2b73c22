"""Grammars (GBNF) that leave a model no choice but a call: for ``tool_choice`` "required" and named.

The grammar holds for the answer, after the thinking. It fixes the form of the call, the names of functions and
parameters and the kinds of values; JSON Schema beyond that (patterns, bounds, ...) is left to the client.
Source of the notation: llama.cpp, grammars/README.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

MAX_DEPTH = 12
MAX_VALUES = 2000
"""Schemas looked at for one grammar; a schema that refers to itself in many places has no end."""
MAX_ENUM = 500
MAX_PROPERTIES = 200
"""Properties of an object inside an argument; the grammar grows with the square of the optional ones."""

JSON_RULES = {
    "value": 'object | array | string | number | "true" | "false" | "null"',
    "object": '"{" ws (string ":" ws value ws ("," ws string ":" ws value ws)*)? "}"',
    "array": '"[" ws (value ws ("," ws value ws)*)? "]"',
    "string": '"\\"" char* "\\""',
    "char": '[^"\\\\\\x00-\\x1f] | "\\\\" (["\\\\/bfnrt] | "u" hex hex hex hex)',
    "hex": "[0-9a-fA-F]",
    "number": 'integer ("." [0-9]+)? ([eE] [-+]? [0-9]+)?',
    "integer": '"-"? ("0" | [1-9] [0-9]*)',
    "ws": "[ \\n\\t]*",
}
TEXT_RULES = {
    # Any text without "</p", the start of "</parameter>": one rule per state of the automaton that looks for it.
    "text": '([^<] text | "<" text-lt)?',
    "text-lt": '([^</] text | "<" text-lt | "/" text-end)?',
    "text-end": '([^<p] text | "<" text-lt)?',
    "key": "[a-zA-Z_] [a-zA-Z0-9_.-]*",
}

SIMPLE = {
    "integer": "integer",
    "number": "number",
    "boolean": '("true" | "false")',
    "null": '"null"',
    "string": "string",
}


def call_grammar(
    tools: Sequence[Mapping[str, Any]], form: Literal["xml", "json"], *, parallel: bool = True
) -> str:  # fmt: skip
    """Return the grammar of one or (``parallel``) more calls of ``tools`` (OpenAI tool objects) in ``form``."""
    writer = _Writer()
    names = [writer.rule(_function(writer, tool["function"], form)) for tool in tools]
    call = writer.rule(f'"<tool_call>\\n" ({" | ".join(names)}) "\\n</tool_call>"')
    root = f'{call} ("\\n" {call})*' if parallel else call
    return writer.text(root)


def _function(writer: _Writer, function: Mapping[str, Any], form: Literal["xml", "json"]) -> str:
    schema = function.get("parameters") or {}
    if form == "json":
        head = literal(f'{{"name": {_dump(function["name"])}, "arguments": ')
        return f'{head} {_value(writer, {"type": "object", **schema}, schema, 0)} "}}"'
    parts = [literal(f"<function={function['name']}>\n")]
    properties = _properties(schema)
    required = _required(schema)
    for name, wanted in properties.items():
        value = _xml_value(writer, wanted, schema)
        parameter = f'{literal(f"<parameter={name}>" + chr(10))} {value} "\\n</parameter>\\n"'
        parts.append(parameter if name in required else f"({parameter})?")
    if not properties and schema.get("additionalProperties", False) is not False:
        parts.append('("<parameter=" key ">\\n" text "\\n</parameter>\\n")*')
    parts.append('"</function>"')
    return " ".join(parts)


def _xml_value(writer: _Writer, wanted: Any, root: Mapping[str, Any]) -> str:
    """Return the expression of a parameter's text: strings bare, all else as JSON."""
    wanted = _resolve(wanted, root)
    if _is_choice(wanted):
        values = _choices(wanted)
        return _either(literal(value if isinstance(value, str) else _dump(value)) for value in values)
    kinds = _kinds(wanted, root)
    if not kinds or "string" in kinds:
        return "text"
    return _value(writer, wanted, root, 0)


def _value(writer: _Writer, wanted: Any, root: Mapping[str, Any], depth: int) -> str:
    """Return the expression of a JSON value."""
    wanted = _resolve(wanted, root)
    if depth > MAX_DEPTH or not writer.afford():
        return "value"
    if _is_choice(wanted):
        return _either(literal(_dump(value)) for value in _choices(wanted))
    members = wanted.get("anyOf") or wanted.get("oneOf")
    if isinstance(members, list):
        return _either(_value(writer, member, root, depth + 1) for member in members)
    expressions: list[str] = []
    for kind in _kinds(wanted, root):
        if kind == "array":
            item = _value(writer, wanted.get("items", {}), root, depth + 1)
            expressions.append(writer.rule(f'"[" ws ({item} ws ("," ws {item} ws)*)? "]"'))
        elif kind == "object":
            expressions.append(_object(writer, wanted, root, depth))
        elif kind in SIMPLE:
            expressions.append(SIMPLE[kind])
    return _either(expressions) if expressions else "value"


def _object(writer: _Writer, wanted: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> str:
    """Return the rule of an object: its properties in declared order, the required ones first."""
    properties = _properties(wanted)
    if not properties or len(properties) > MAX_PROPERTIES:
        return "object"
    pair = {
        name: writer.rule(f'{literal(_dump(name))} ":" ws {_value(writer, one, root, depth + 1)} ws')
        for name, one in properties.items()
    }
    required = [name for name in pair if name in _required(wanted)]
    optional = [name for name in pair if name not in required]
    tail = "".join(f' ("," ws {pair[name]})?' for name in optional)
    if required:
        inner = ' "," ws '.join(pair[name] for name in required) + tail
    else:
        starts = (
            pair[name] + "".join(f' ("," ws {pair[later]})?' for later in optional[index + 1 :])
            for index, name in enumerate(optional)
        )
        inner = f"({_either(starts)})?"
    return writer.rule(f'"{{" ws {inner} "}}"')


def _properties(schema: Mapping[str, Any]) -> dict[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _required(schema: Mapping[str, Any]) -> list[Any]:
    found = schema.get("required")
    return found if isinstance(found, list) else []


def _is_choice(wanted: Mapping[str, Any]) -> bool:
    return 0 < len(_choices(wanted)) <= MAX_ENUM


def _choices(wanted: Mapping[str, Any]) -> list[Any]:
    """Return the values of ``const`` or ``enum``, none if there is neither."""
    values = [wanted["const"]] if "const" in wanted else wanted.get("enum")
    return values if isinstance(values, list) else []


def _kinds(wanted: Mapping[str, Any], root: Mapping[str, Any]) -> list[str]:
    """Return the JSON types that ``wanted`` allows, none if it does not say."""
    kind = wanted.get("type")
    if isinstance(kind, str):
        return [kind]
    if isinstance(kind, list):
        return [one for one in kind if isinstance(one, str)]
    members = wanted.get("anyOf") or wanted.get("oneOf")
    if isinstance(members, list):
        return [one for member in members[:50] for one in _kinds(_resolve(member, root), {})]
    return ["object"] if _properties(wanted) else []


def _resolve(wanted: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow ``$ref`` into ``$defs``; anything else that is no schema allows all."""
    for _ in range(8):
        if not isinstance(wanted, dict):
            return {}
        reference = wanted.get("$ref")
        if not isinstance(reference, str):
            return wanted
        target: Any = root
        for step in reference.removeprefix("#/").split("/"):
            target = target.get(step) if isinstance(target, dict) else None
        wanted = target
    return {}


def _either(expressions: Iterable[str]) -> str:
    return f"({' | '.join(expressions)})"


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def literal(text: str) -> str:
    """Return ``text`` as a terminal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(char if char >= " " else f"\\x{ord(char):02x}" for char in escaped) + '"'


class _Writer:
    """Collects rules; equal ones are written once."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._values = 0

    def afford(self) -> bool:
        """Whether one more schema may be looked at."""
        self._values += 1
        return self._values <= MAX_VALUES

    def rule(self, body: str) -> str:
        return self._names.setdefault(body, f"r{len(self._names)}")

    def text(self, root: str) -> str:
        rules = {
            "root": root,
            **{name: body for body, name in self._names.items()},
            **JSON_RULES,
            **TEXT_RULES,
        }
        return "".join(f"{name} ::= {body}\n" for name, body in rules.items())
