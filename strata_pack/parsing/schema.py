"""Reduces the JSON Schemas of the request's tools to the types that each argument may have.

Only keywords that determine a type are read: ``type``, ``anyOf``, ``oneOf``, ``allOf``, ``enum``, ``const``,
``nullable`` and ``$ref`` inside the tool's own schema. Validation is left to the client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal
from urllib.parse import unquote

TypeName = Literal["null", "boolean", "integer", "number", "array", "object", "string"]

SPECIFIC_FIRST: tuple[TypeName, ...] = ("null", "boolean", "integer", "number", "array", "object", "string")
"""The order in which the types of a union are tried: a string fits every text, so it comes last."""

MAX_DEPTH = 32
"""Largest nesting depth of schemas; a deeper one is treated as untyped."""

MAX_LOOKS = 5000
"""Largest number of schemas and values read for one argument: with ``$ref``, a few hundred bytes can expand to
billions."""


@dataclass(frozen=True, slots=True)
class ArgumentType:
    """The types that one argument may have, most specific first; none means that the schema does not restrict the type.

    ``members`` are the values of an ``enum`` or ``const``, else None.
    """

    types: tuple[TypeName, ...] = ()
    members: tuple[Any, ...] | None = None

    @property
    def is_text(self) -> bool:
        """Whether the text itself is the value (so it can be streamed while it is generated)."""
        return self.types == ("string",) and self.members is None

    @property
    def may_be_text(self) -> bool:
        """Whether the text itself may be the value, unless it spells a value of another type."""
        return self.members is None and (not self.types or "string" in self.types)


UNTYPED = ArgumentType()
TEXT = ArgumentType(("string",))


@dataclass(slots=True)
class _Found:
    types: frozenset[str] | None = None
    members: tuple[Any, ...] | None = None


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for python, name in ((int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, python):
            return name
    return "object"


def _both(left: _Found, right: _Found) -> _Found:
    """Return the type that satisfies both ``left`` and ``right``."""
    if left.types is None or right.types is None:
        types = left.types if right.types is None else right.types
    else:
        types = left.types & right.types
        if "integer" in left.types | right.types and "number" in left.types | right.types:
            types |= {"integer"}  # an integer is a number
        types = types or left.types
    return _Found(types, left.members if left.members is not None else right.members)


def _either(found: Sequence[_Found]) -> _Found:
    """Return the type that satisfies at least one of ``found``."""
    types: frozenset[str] | None = frozenset()
    members: tuple[Any, ...] | None = ()
    for each in found:
        types = None if types is None or each.types is None else types | each.types
        members = None if members is None or each.members is None else members + each.members
    return _Found(types, members)


def _pointer(root: Mapping[str, Any], ref: str) -> Any:
    """Return the target of the local JSON pointer (RFC 6901) ``ref``, None if there is none."""
    if ref != "#" and not ref.startswith("#/"):
        return None
    node: Any = root
    for raw in ref.split("/")[1:]:
        key = unquote(raw).replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = node.get(key)
        elif isinstance(node, list) and key.isascii() and key.isdigit() and len(key) < 9 and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node


def _resolve(
    schema: Any, root: Mapping[str, Any], refs: frozenset[str], depth: int, looks: Iterator[int]
) -> _Found:  # fmt: skip
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH or next(looks, None) is None:
        return _Found()
    found = _Found()
    kind = schema.get("type")
    if isinstance(kind, (str, list)):
        names = frozenset(n for n in ([kind] if isinstance(kind, str) else kind) if n in SPECIFIC_FIRST)
        found.types = names or None
    ref = schema.get("$ref")
    if isinstance(ref, str) and ref not in refs:
        found = _both(found, _resolve(_pointer(root, ref), root, refs | {ref}, depth + 1, looks))
    values = (
        schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else None
    )
    if values:
        deque(islice(looks, len(values)), maxlen=0)
        found = _both(found, _Found(frozenset(map(_type_of, values)), tuple(values)))
    parts = schema.get("allOf")
    if isinstance(parts, list):
        for part in parts:
            found = _both(found, _resolve(part, root, refs, depth + 1, looks))
    for word in ("anyOf", "oneOf"):
        choices = schema.get(word)
        if isinstance(choices, list) and choices:
            found = _both(found, _either([_resolve(choice, root, refs, depth + 1, looks) for choice in choices]))
    if schema.get("nullable") is True and found.types is not None:  # OpenAPI 3.0's spelling of a union with null
        found.types |= {"null"}
    return found


class FunctionSchema:
    """One declared function: the names of its arguments and the type of each (resolved at the first access)."""

    __slots__ = ("_parameters", "_properties", "_types", "required")

    def __init__(self, parameters: Any) -> None:
        self._parameters: Mapping[str, Any] = parameters if isinstance(parameters, Mapping) else {}
        properties = self._parameters.get("properties")
        self._properties: Mapping[str, Any] | None = properties if isinstance(properties, Mapping) else None
        self._types: dict[str, ArgumentType] = {}
        required = self._parameters.get("required")
        self.required = tuple(
            name
            for name in (required if isinstance(required, (list, tuple)) else ())
            if isinstance(name, str) and name in (self._properties or ())
        )
        """The declared arguments that are required."""

    @property
    def argument_names(self) -> Collection[str] | None:
        """The names of the declared arguments, None if the schema has no list of them."""
        return self._properties

    def type_of(self, argument: str) -> ArgumentType:
        """Return the type of ``argument``; ``UNTYPED`` if the schema does not declare it."""
        known = self._types.get(argument)
        if known is None:
            found = _resolve(
                (self._properties or {}).get(argument), self._parameters, frozenset(), 0, iter(range(MAX_LOOKS))
            )
            types = tuple(name for name in SPECIFIC_FIRST if name in (found.types or ()))
            known = self._types[argument] = ArgumentType(types, found.members)
        return known


UNDECLARED = FunctionSchema(None)


def read_tools(tools: Iterable[Any]) -> dict[str, FunctionSchema]:
    """Return the declared functions by name, from OpenAI tool objects or bare function objects.

    Other objects are skipped: an invalid request must not break the parsing of the reply.
    """
    declared: dict[str, FunctionSchema] = {}
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping):
            continue
        name = function.get("name")
        if isinstance(name, str) and name.strip():  # a blank name would be found before every tag
            declared[name] = FunctionSchema(function.get("parameters"))
    return declared
