"""Decide which JSON Schemas every llama-server build converts to a grammar.

A server silently ignores a schema that it cannot convert, and the answer is prose. What it converts depends on
its build: its own converter, or llguidance. The rules here accept only what both convert; any
other schema gets the gateway's own grammar (``grammar.json_grammar``).
Sources: llama.cpp, common/json-schema.cpp and json-schema-to-grammar.cpp; llguidance, docs/json_schema.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from typing import Any

from strata_pack.gateway.grammar.schemas import ANNOTATIONS, STEP, Schema, SchemaReader

MAX_PARTS = 5000
"""Most schemas, properties and enum values; longer texts count more."""
MAX_NESTED = 40
MAX_REFERENCES = 200
MAX_OPTIONAL = 100
"""Most optional properties of an object: the converter's work grows with their cube."""
MAX_ITEMS = 500
MAX_LENGTH = 1000
MAX_NUMBER = 10**12
MAX_PATTERN = 200
MAX_REPEATED = 500
"""Most copies of a repeated pattern; a grammar may hold 2,000."""

REFERENCE = re.compile(r"#/(\$defs|definitions)/([A-Za-z0-9_.-]+)")
ALIKE = re.compile(r"[^A-Za-z0-9]+")
"""Characters that the converter does not distinguish in names of definitions."""

FORMATS = ("date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "hostname", "duration")

# Characters that JSON does not escape: a match of a quote or a backslash could end the string.
_CLASS = r"\[(?:[A-Za-z0-9]-[A-Za-z0-9]|[A-Za-z0-9_ .:/@+,#%]|\\[dw])+-?\]"
_ATOM = rf"(?:[A-Za-z0-9 _:/@#%&,;=~!'<>-]|\\[.$^*+?()\[\]{{}}|dw]|{_CLASS})"
_TIMES = r"(?:[*+?]|\{\d{1,3}(?:,\d{0,3})?\})?"
_SEQUENCE = rf"(?:{_ATOM}{_TIMES})+"
_GROUP = re.compile(rf"(?<!\\)\((?:\?:)?{_SEQUENCE}(?:\|{_SEQUENCE})*\)")
_ANCHORED = re.compile(rf"\^{_SEQUENCE}\$")
_BRACES = re.compile(r"(?<!\\)\{(\d+),?(\d*)\}")


def convertible(schema: Any) -> bool:
    """Return whether every llama-server converts ``schema`` to a grammar."""
    return _Checker(schema).check()


class _Checker:
    """Checks the schemas of one document."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = MAX_PARTS * STEP
        self._read = SchemaReader(root, self._afford)
        self._names: dict[str, str] = {}
        self._waiting: list[Any] = [root]

    def check(self) -> bool:
        while self._waiting:
            if not self._schema(self._waiting.pop(), 0):
                return False
        return True

    def _afford(self, cost: int) -> bool:
        self._left -= cost
        return self._left >= 0

    def _affords(self, values: Collection[Any]) -> bool:
        return self._afford(sum(STEP + len(value) if isinstance(value, str) else STEP for value in values))

    def _schema(self, schema: Any, nested: int) -> bool:
        if not isinstance(schema, dict) or nested > MAX_NESTED or not self._afford(STEP):
            return False
        says = schema.keys() - ANNOTATIONS
        if not says:
            return True
        for keyword, only in ALONE.items():
            if keyword in says:
                return says <= only and CHECKS[keyword](self, schema, nested)
        types = schema.get("type")
        listed: list[Any] = types if isinstance(types, list) else [types]
        if not listed or not all(isinstance(one, str) and one in KEYWORDS for one in listed):
            return False
        if len(listed) != len(set(listed)) or not says <= {"type"}.union(*(KEYWORDS[one] for one in listed)):
            return False
        return all(TYPE_CHECKS[one](self, schema, nested) for one in listed if one in TYPE_CHECKS)

    # Schemas without a type

    def _reference(self, schema: Schema, _: int) -> bool:
        name = schema["$ref"]
        if not isinstance(name, str) or not REFERENCE.fullmatch(name):
            return False
        alike = ALIKE.sub("-", name)
        if alike not in self._names:
            if len(self._names) == MAX_REFERENCES or self._read.is_endless(name):
                return False
            self._names[alike] = name
            self._waiting.append(self._read.target(name))
        return self._names[alike] == name

    def _values(self, schema: Schema, _: int) -> bool:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        if not isinstance(values, list) or not values or not self._affords(values):
            return False
        types = schema.get("type", list(INSTANCES))
        listed = types if isinstance(types, list) else [types]
        large = any(isinstance(value, (int, float)) and abs(value) > MAX_NUMBER for value in values)
        return not large and all(any(_is_a(value, one) for one in listed) for value in values)

    def _any_of(self, schema: Schema, nested: int) -> bool:
        members = schema["anyOf"]
        return isinstance(members, list) and bool(members) and self._all(members, nested)

    def _one_of(self, schema: Schema, nested: int) -> bool:
        """Return whether the members' types exclude each other, which the converter needs."""
        members = schema["oneOf"]
        if not isinstance(members, list) or not members or not self._all(members, nested):
            return False
        types = [member.get("type") for member in members]
        named = [{"integer": "number"}.get(one, one) for one in types if isinstance(one, str)]
        return len(set(named)) == len(types)

    def _all_of(self, schema: Schema, nested: int) -> bool:
        """Return whether the members are objects that share no property."""
        members = schema["allOf"]
        if not isinstance(members, list) or not members or schema.get("type", "object") != "object":
            return False
        targets = [self._read.resolve(member) for member in members]
        names: list[str] = []
        for one in targets:
            properties = one.get("properties")
            if one.get("type") != "object" or not isinstance(properties, dict) or "additionalProperties" in one:
                return False
            names += properties
        return len(names) == len(set(names)) and self._all(members, nested)

    def _all(self, schemas: list[Any], nested: int) -> bool:
        return all(self._schema(one, nested + 1) for one in schemas)

    # Types

    def _object(self, schema: Schema, nested: int) -> bool:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        others = schema.get("additionalProperties", False)
        if not isinstance(properties, dict) or not isinstance(required, list) or not self._affords(properties):
            return False
        if not all(isinstance(name, str) and name in properties for name in required):
            return False
        if len(properties) - len(set(required)) > MAX_OPTIONAL or not all(name and name != "*" for name in properties):
            return False
        if others is not False and not all(re.fullmatch(r"\w+", name) for name in properties):
            return False  # names are then in character classes
        return self._all([*properties.values(), *([] if isinstance(others, bool) else [others])], nested)

    def _array(self, schema: Schema, nested: int) -> bool:
        if not _is_range(schema, "minItems", "maxItems", MAX_ITEMS):
            return False
        if "prefixItems" not in schema:
            return self._schema(schema.get("items", {}), nested + 1)
        first = schema["prefixItems"]
        if not isinstance(first, list) or not first or "items" in schema:
            return False
        least, most = schema.get("minItems", 0), schema.get("maxItems", MAX_ITEMS)
        return least <= len(first) <= most and self._all(first, nested)

    def _string(self, schema: Schema, _: int) -> bool:
        lengths = "minLength" in schema or "maxLength" in schema
        if lengths + ("pattern" in schema) + ("format" in schema) > 1:
            return False
        if "pattern" in schema:
            return _is_plain_pattern(schema["pattern"])
        if "format" in schema:
            return schema["format"] in FORMATS
        return _is_range(schema, "minLength", "maxLength", MAX_LENGTH)

    def _number(self, schema: Schema, _: int) -> bool:
        whole = schema["type"] == "integer" or (isinstance(schema["type"], list) and "integer" in schema["type"])
        for one, other in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if one in schema and other in schema:
                return False
        bounds = [schema[name] for name in BOUNDS if name in schema]
        if not all(_is_bound(bound, whole=whole) for bound in bounds):
            return False
        least = schema.get("minimum", schema.get("exclusiveMinimum", -math.inf))
        most = schema.get("maximum", schema.get("exclusiveMaximum", math.inf))
        excluded = ("exclusiveMinimum" in schema) + ("exclusiveMaximum" in schema)
        room: float = most - least
        return room >= excluded if whole else room > 0 or (room == 0 and not excluded)


BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")

KEYWORDS: dict[str, frozenset[str]] = {
    "object": frozenset(("properties", "required", "additionalProperties")),
    "array": frozenset(("items", "prefixItems", "minItems", "maxItems")),
    "string": frozenset(("minLength", "maxLength", "pattern", "format")),
    "integer": frozenset(BOUNDS),
    "number": frozenset(BOUNDS),
    "boolean": frozenset(),
    "null": frozenset(),
}
"""Keywords of each type."""

INSTANCES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}

SchemaCheck = Callable[[_Checker, Schema, int], bool]

TYPE_CHECKS: dict[str, SchemaCheck] = {
    "object": _Checker._object,
    "array": _Checker._array,
    "string": _Checker._string,
    "integer": _Checker._number,
    "number": _Checker._number,
}

ALONE: dict[str, frozenset[str]] = {
    "$ref": frozenset(("$ref",)),
    "anyOf": frozenset(("anyOf",)),
    "oneOf": frozenset(("oneOf",)),
    "allOf": frozenset(("allOf", "type")),
    "const": frozenset(("const", "enum", "type")),
    "enum": frozenset(("enum", "type")),
}
"""Maps a keyword that makes llama.cpp ignore others to the keywords allowed next to it."""

CHECKS: dict[str, SchemaCheck] = {
    "$ref": _Checker._reference,
    "anyOf": _Checker._any_of,
    "oneOf": _Checker._one_of,
    "allOf": _Checker._all_of,
    "const": _Checker._values,
    "enum": _Checker._values,
}


def _is_a(value: Any, kind: Any) -> bool:
    if not isinstance(kind, str) or kind not in INSTANCES:
        return False
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, INSTANCES[kind])


def _is_count(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _is_range(schema: Schema, least: str, most: str, limit: int) -> bool:
    """Return whether two counts are valid and the range between them is not empty."""
    if not all(_is_count(schema[name], limit) for name in (least, most) if name in schema):
        return False
    first: int = schema.get(least, 0)
    last: int = schema.get(most, limit)
    return first <= last


def _is_bound(value: Any, *, whole: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > MAX_NUMBER:
        return False
    return not whole or value == int(value)


def _is_plain_pattern(pattern: Any) -> bool:
    """Return whether a pattern is anchored and plain: characters, classes, groups and repetitions."""
    if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN:
        return False
    copies = 1 + len(re.findall(r"[*+?{(]", pattern))
    for least, most in _BRACES.findall(pattern):
        if most and int(most) < int(least):
            return False
        copies *= max(int(most or 0), int(least), 1)
    if copies > MAX_REPEATED:
        return False
    while (simpler := _GROUP.sub("a", pattern)) != pattern:
        pattern = simpler
    return _ANCHORED.fullmatch(pattern) is not None
