"""Grammars (GBNF) that force a call, for ``tool_choice`` "required" and named, or force JSON.

A JSON Schema is passed to the server if every build converts it. A grammar applies to the answer, after the
thinking. It fixes the form of the call, the names of functions and parameters and the kinds of values; JSON Schema
beyond that (patterns, bounds, ...) is left to the client.
Source of the notation: llama.cpp, grammars/README.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from strata_pack.gateway.failures import bad_request
from strata_pack.gateway.grammar.convertible import convertible
from strata_pack.gateway.grammar.schemas import STEP, TYPES, Schema, SchemaReader, alternatives_of, choices, reference
from strata_pack.parsing import DIALECTS, Dialect

QWEN = DIALECTS["qwen"]
MAX_DEPTH = 12
MAX_COST = 2_000_000
"""Cost limit for one grammar's schemas, about in characters; beyond it the rest is less strict."""
MAX_GRAMMAR = 4_000_000
"""Most characters of a grammar; parameters are no longer named after half of them."""
MAX_PROPERTIES = 200
"""Most properties of an object inside an argument; a sampler checks all optional ones at once."""

JSON_RULES = {
    "value": 'object | array | string | number | "true" | "false" | "null"',
    "object": '"{" ws (string ":" ws value ws ("," ws string ":" ws value ws)*)? "}"',
    "array": '"[" ws (value ws ("," ws value ws)*)? "]"',
    "string": '"\\"" char* "\\""',
    "char": '[^"\\\\\\x00-\\x1f] | "\\\\" (["\\\\/bfnrt] | "u" hex hex hex hex)',
    "hex": "[0-9a-fA-F]",
    "number": 'integer ("." [0-9]+)? ([eE] [-+]? [0-9]+)?',
    "integer": '"-"? ("0" | [1-9] [0-9]*)',
    # A model that may write unlimited white space may never stop.
    "ws": '(" " | "\\n" [ \\t]{0,20})?',
}
TEXT_RULES = {
    # Any text without "</p", the start of "</parameter>": one rule per state of the automaton that looks for it.
    "text": '([^<] text | "<" text-lt)?',
    "text-lt": '([^</] text | "<" text-lt | "/" text-end)?',
    "text-end": '([^<{letter}] text | "<" text-lt)?',
    "key": "[a-zA-Z_] [a-zA-Z0-9_.-]*",
}
"""Rules of a parameter's text; ``{letter}`` is the first one of the tag that closes it."""

ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', **{chr(code): f"\\x{code:02x}" for code in range(32)}})

SIMPLE = {
    "integer": "integer",
    "number": "number",
    "boolean": '("true" | "false")',
    "null": '"null"',
    "string": "string",
}


def call_grammar(
    tools: Sequence[Schema], form: Literal["xml", "json"], *, parallel: bool = True, dialect: Dialect = QWEN
) -> str:
    """Return the grammar of one or (``parallel``) more calls of ``tools`` (OpenAI tool objects) in ``form``.

    ``dialect``: the model's tags.

    Raises ``ApiError`` 400 for more tools than a grammar can name.
    """
    writer = _Writer(dialect)
    function = _json_function if form == "json" else _xml_function
    names = [writer.rule(function(writer, tool["function"])) for tool in tools]
    # A dialect without a function tag has the name right after the call's opener, and one end tag for both.
    open_line = literal(dialect.call_open + ("\n" if form == "json" or dialect.function_open else ""))
    end_line = literal(f"\n{dialect.call_close}") if form == "json" or dialect.wrapped else ""
    call = writer.rule(f"{open_line} ({' | '.join(names)}) {end_line}".rstrip())
    grammar = writer.text(f'{call} ("\\n" {call})*' if parallel else call)
    if len(grammar) > MAX_GRAMMAR:
        raise bad_request(f"tools: {len(tools)} are too many for a tool_choice that requires a call", "tools")
    return grammar


def answer_constraint(schema: Schema) -> dict[str, Any]:
    """Return the fields of ``/completion`` that make an answer JSON of ``schema``."""
    return {"json_schema": schema} if convertible(schema) else {"grammar": json_grammar(schema)}


def json_grammar(schema: Any) -> str:
    """Return the grammar of JSON of the shape that ``schema`` describes."""
    writer = _Writer()
    document = _Document(writer, schema)
    root = document.value(schema)
    document.finish()
    return writer.text(root)


def _json_function(writer: _Writer, function: Schema) -> str:
    schema = function.get("parameters") or {}
    document = _Document(writer, schema)
    arguments = document.object(schema)
    document.finish()
    head = literal(f'{{"name": {_dump(function["name"])}, "arguments": ')
    return f'{head} {arguments} "}}"'


def _xml_function(writer: _Writer, function: Schema) -> str:
    schema = function.get("parameters") or {}
    document = _Document(writer, schema)
    parameters = document.parameters(schema)
    document.finish()
    dialect = writer.dialect
    head = literal(_line(dialect.function_open + function["name"] + dialect.function_opened))
    return " ".join(filter(None, (head, parameters, literal(dialect.function_close))))


def _line(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"


class _Document:
    """Writes rules for the schemas of one document, ``root``.

    The target of a reference is a separate rule, which may be recursive; ``finish`` writes those rules.
    """

    def __init__(self, writer: _Writer, root: Any) -> None:
        self._writer = writer
        self._read = SchemaReader(root, writer.afford)
        self._referred: dict[str, str] = {}
        self._waiting: list[str] = []
        self._texts: dict[str, str] = {}

    def finish(self) -> None:
        """Write the rules of referenced schemas."""
        while self._waiting:
            name = self._waiting.pop()
            self._writer.define(self._referred[name], self.value(self._read.target(name)))

    def parameters(self, wanted: Any) -> str:
        """Return the expression of the parameters of a call in the XML form, in declared order."""
        found = self._read.shape(wanted)
        parts: list[str] = []
        for name, one in found.properties.items():
            parameter = self._writer.parameter(name, self.text(one))
            parts.append(parameter if name in found.required else f"({parameter})?")
        any_parameters = f"({self._writer.parameter(None, 'text')})*"
        if found.open:
            parts.append(any_parameters)
        expression = " ".join(parts)
        return expression if self._writer.fits(expression) else any_parameters

    def text(self, wanted: Any) -> str:
        """Return the expression of a parameter's text: strings without quotes, other values as JSON."""
        name = reference(wanted)
        if name is None:
            return self._text(wanted)
        if name not in self._texts:
            self._texts[name] = self._text(wanted)
        return self._texts[name]

    def _text(self, wanted: Any) -> str:
        resolved = self._read.resolve(wanted)
        if values := choices(resolved):
            return self._one_of((value if isinstance(value, str) else _dump(value) for value in values), "text")
        allowed = self._read.kinds(resolved)
        return "text" if not allowed or "string" in allowed else self.value(wanted)

    def value(self, wanted: Any, depth: int = 0) -> str:
        """Return the expression of a JSON value."""
        if depth > MAX_DEPTH or not self._writer.afford(STEP):
            return "value"
        if (name := reference(wanted)) is not None:
            return self._rule_of(name)
        wanted = self._read.resolve(wanted)
        if values := choices(wanted):
            return self._one_of(map(_dump, values), "value")
        if members := alternatives_of(wanted):
            return _either(self.value(member, depth + 1) for member in members)
        kinds = self._read.kinds(wanted)
        expressions = [self._of_kind(kind, wanted, depth) for kind in kinds if kind in TYPES]
        return _either(expressions) if expressions else "value"

    def _of_kind(self, kind: str, wanted: Schema, depth: int) -> str:
        if kind == "object":
            return self.object(wanted, depth)
        return self._array(wanted, depth) if kind == "array" else SIMPLE[kind]

    def _array(self, wanted: Schema, depth: int) -> str:
        if "prefixItems" in wanted:
            return "array"
        item = self.value(wanted.get("items", {}), depth + 1)
        return self._writer.rule(f'"[" ws ({item} ws ("," ws {item} ws)*)? "]"')

    def object(self, wanted: Any, depth: int = 0) -> str:
        """Return the rule of an object: its properties in declared order, the required ones first.

        The optional ones are a chain of rules, each of which may omit its property: one group per possible
        first property would need a quadratic number.
        """
        found = self._read.shape(wanted)
        if not found.properties or len(found.properties) > MAX_PROPERTIES:
            return "object"
        pair: dict[str, str] = {}
        for name, one in found.properties.items():
            if not self._writer.afford(STEP + len(name)):
                return "object"
            pair[name] = self._writer.rule(f'{literal(_dump(name))} ":" ws {self.value(one, depth + 1)} ws')
        required = ' "," ws '.join(pair[name] for name in pair if name in found.required)
        first = more = ""
        for one in reversed([pair[name] for name in pair if name not in found.required]):
            first = self._writer.rule(f"{one} {more} | {first}") if first else one
            more = self._writer.rule(f'("," ws {one})? {more}')
        inner = f"{required} {more}" if required else f"{first}?"
        return self._writer.rule(f'"{{" ws {inner} "}}"')

    def _rule_of(self, name: str) -> str:
        """Return the rule of the target of reference ``name``."""
        if name not in self._referred:
            endless = self._read.is_endless(name)
            self._referred[name] = "value" if endless else self._writer.reserve()
            if not endless:
                self._waiting.append(name)
        return self._referred[name]

    def _one_of(self, texts: Iterable[str], otherwise: str) -> str:
        found = list(texts)
        affordable = self._writer.afford(sum(map(len, found)))
        return self._writer.rule(_either(map(literal, found))) if affordable else otherwise


def _either(expressions: Iterable[str]) -> str:
    return f"({' | '.join(expressions)})"


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def literal(text: str) -> str:
    """Return ``text`` as a terminal."""
    return f'"{text.translate(ESCAPES)}"'


class _Writer:
    """Collects rules; equal ones are written once."""

    def __init__(self, dialect: Dialect = QWEN) -> None:
        self.dialect = dialect
        self._names: dict[str, str] = {}
        self._defined: dict[str, str] = {}
        self._left = MAX_COST
        self._size = 0

    def parameter(self, name: str | None, value: str) -> str:
        """Return the expression of a parameter in the XML form, with any name if ``name`` is ``None``; ``value`` is
        an expression."""
        dialect = self.dialect
        line = "\n" if dialect.value_on_lines else ""
        opener, opened = dialect.parameter_open, dialect.parameter_opened + line
        head = f"{literal(opener)} key {literal(opened)}" if name is None else literal(f"{opener}{name}{opened}")
        close = literal(f"{line}{dialect.parameter_close}\n")
        return f"{head} {value} {close}"

    def afford(self, cost: int) -> bool:
        """Spend ``cost``; return whether the budget allowed it."""
        self._left -= cost
        return self._left >= 0

    def fits(self, expression: str) -> bool:
        """Return whether the grammar has room for ``expression``."""
        return self._size + len(expression) <= MAX_GRAMMAR // 2

    def rule(self, body: str) -> str:
        """Return the name of the rule ``body``."""
        if body not in self._names:
            self._left -= len(body)
            self._size += len(body)
        return self._names.setdefault(body, f"r{len(self._names)}")

    def reserve(self) -> str:
        """Return the name of a rule that ``define`` will write."""
        name = f"s{len(self._defined)}"
        self._defined[name] = "value"
        return name

    def define(self, name: str, body: str) -> None:
        """Write a reserved rule."""
        self._left -= len(body)
        self._size += len(body)
        self._defined[name] = body

    def text(self, root: str) -> str:
        rules = {
            "root": root,
            **{name: body for body, name in self._names.items()},
            **self._defined,
            **JSON_RULES,
            **self._text_rules(),
        }
        return "".join(f"{name} ::= {body}\n" for name, body in rules.items())

    def _text_rules(self) -> dict[str, str]:
        letter = self.dialect.parameter_close[2]
        return {name: body.replace("{letter}", letter) for name, body in TEXT_RULES.items()}
