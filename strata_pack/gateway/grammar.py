"""Grammars (GBNF) that leave a model no choice but a call: for ``tool_choice`` "required" and named.

The grammar holds for the answer, after the thinking. It fixes the form of the call, the names of functions and
parameters and the kinds of values; JSON Schema beyond that (patterns, bounds, ...) is left to the client.
Source of the notation: llama.cpp, grammars/README.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from strata_pack.gateway.schemas import Schema, choices, kinds, members_of, resolve, shape

MAX_DEPTH = 12
MAX_VALUES = 2000
"""Schemas looked at for one grammar; a schema that refers to itself in many places has no end."""
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

ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', **{chr(code): f"\\x{code:02x}" for code in range(32)}})

SIMPLE = {
    "integer": "integer",
    "number": "number",
    "boolean": '("true" | "false")',
    "null": '"null"',
    "string": "string",
}


def call_grammar(
    tools: Sequence[Schema], form: Literal["xml", "json"], *, parallel: bool = True
) -> str:  # fmt: skip
    """Return the grammar of one or (``parallel``) more calls of ``tools`` (OpenAI tool objects) in ``form``."""
    writer = _Writer()
    names = [writer.rule(_function(writer, tool["function"], form)) for tool in tools]
    call = writer.rule(f'"<tool_call>\\n" ({" | ".join(names)}) "\\n</tool_call>"')
    root = f'{call} ("\\n" {call})*' if parallel else call
    return writer.text(root)


def _function(writer: _Writer, function: Schema, form: Literal["xml", "json"]) -> str:
    schema = function.get("parameters") or {}
    if form == "json":
        head = literal(f'{{"name": {_dump(function["name"])}, "arguments": ')
        return f'{head} {_object(writer, schema, schema, 0)} "}}"'
    parts = [literal(f"<function={function['name']}>\n")]
    wanted = shape(schema, schema)
    for name, one in wanted.properties.items():
        value = _xml_value(writer, one, schema)
        parameter = f'{literal(f"<parameter={name}>" + chr(10))} {value} "\\n</parameter>\\n"'
        parts.append(parameter if name in wanted.required else f"({parameter})?")
    if wanted.open:
        parts.append('("<parameter=" key ">\\n" text "\\n</parameter>\\n")*')
    parts.append('"</function>"')
    return " ".join(parts)


def _xml_value(writer: _Writer, wanted: Any, root: Schema) -> str:
    """Return the expression of a parameter's text: strings bare, all else as JSON."""
    wanted = resolve(wanted, root)
    if values := choices(wanted):
        return _either(literal(value if isinstance(value, str) else _dump(value)) for value in values)
    allowed = kinds(wanted, root, writer.afford)
    if not allowed or "string" in allowed:
        return "text"
    return _value(writer, wanted, root, 0)


def _value(writer: _Writer, wanted: Any, root: Schema, depth: int) -> str:
    """Return the expression of a JSON value."""
    wanted = resolve(wanted, root)
    if depth > MAX_DEPTH or not writer.afford():
        return "value"
    if values := choices(wanted):
        return _either(literal(_dump(value)) for value in values)
    members = members_of(wanted)
    if members and not wanted.get("properties"):
        return _either(_value(writer, member, root, depth + 1) for member in members)
    expressions: list[str] = []
    for kind in kinds(wanted, root, writer.afford):
        if kind == "array":
            item = _value(writer, wanted.get("items", {}), root, depth + 1)
            expressions.append(writer.rule(f'"[" ws ({item} ws ("," ws {item} ws)*)? "]"'))
        elif kind == "object":
            expressions.append(_object(writer, wanted, root, depth))
        elif kind in SIMPLE:
            expressions.append(SIMPLE[kind])
    return _either(expressions) if expressions else "value"


def _object(writer: _Writer, wanted: Any, root: Schema, depth: int) -> str:
    """Return the rule of an object: its properties in declared order, the required ones first."""
    found = shape(wanted, root)
    if not found.properties or len(found.properties) > MAX_PROPERTIES:
        return "object"
    pair = {
        name: writer.rule(f'{literal(_dump(name))} ":" ws {_value(writer, one, root, depth + 1)} ws')
        for name, one in found.properties.items()
    }
    required = [name for name in pair if name in found.required]
    optional = [name for name in pair if name not in found.required]
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


def _either(expressions: Iterable[str]) -> str:
    return f"({' | '.join(expressions)})"


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def literal(text: str) -> str:
    """Return ``text`` as a terminal."""
    return f'"{text.translate(ESCAPES)}"'


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
