"""Read JSON Schemas for grammars: follow references, merge ``allOf``, list allowed types and properties.

If a schema uses other keywords, refers to itself endlessly, or exceeds the cost limit,
the result is less strict: a grammar may allow a value that the schema forbids, never the reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MAX_PARTS = 64
"""Most schemas merged into one; beyond that the result allows everything."""
MAX_MEMBERS = 50
MAX_ENUM = 500
MAX_NESTED = 12
"""Depth of nested alternatives that are read."""
MAX_INDEX_DIGITS = 9

STEP = 50
"""Cost of reading one schema, in the unit of ``afford``."""

TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")

ANNOTATIONS = frozenset(
    (
        *("title", "description", "default", "example", "examples", "deprecated", "readOnly", "writeOnly", "$comment"),
        *("$schema", "$id", "$anchor", "$defs", "definitions"),
    )
)
"""Keywords that do not constrain the value."""

Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Shape:
    """An object's properties by name. ``open``: others are allowed and no name is known."""

    properties: dict[str, Any]
    required: frozenset[str]
    open: bool


class SchemaReader:
    """Reads the schemas of one document, ``root``.

    Work is bounded by ``afford``: it receives the cost of each step, in properties and the like, and returns whether it
    may be spent. The target of a reference is merged once.
    """

    def __init__(self, root: Any, afford: Callable[[int], bool]) -> None:
        self._root = root
        self._afford = afford
        self._merged: dict[str, Schema] = {}

    def resolve(self, wanted: Any) -> Schema:
        """Return ``wanted`` with ``$ref`` followed and ``allOf`` merged, ``{}`` if it allows everything."""
        if not isinstance(wanted, dict):
            return {}
        if "$ref" not in wanted and "allOf" not in wanted:
            return wanted
        name = reference(wanted)
        if name is None:
            return self._merge(wanted)
        if name not in self._merged:
            self._merged[name] = self._merge(wanted)
        return self._merged[name]

    def target(self, name: str) -> Any:
        """Return the target of a JSON pointer (RFC 6901), ``None`` if there is none."""
        target: Any = self._root
        for step in name.removeprefix("#").split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            target = target[key] if isinstance(target, dict) and key in target else _item(target, key)
        return target if name.startswith("#") else None

    def shape(self, wanted: Any) -> Shape:
        """Return the shape of the object that ``wanted`` describes.

        Alternatives give one shape with all their properties.
        """
        base = self.resolve(wanted)
        alternatives = [self.resolve(member) for member in members_of(base)]
        if not self._afford(sum(len(_properties(one)) + len(_required(one)) for one in (base, *alternatives))):
            return Shape({}, frozenset(), open=True)
        found: dict[str, list[Any]] = {}
        for one in alternatives:
            for name, schema in _properties(one).items():
                found.setdefault(name, []).append(schema)
        joined = {name: schemas[0] if len(schemas) == 1 else {"anyOf": schemas} for name, schemas in found.items()}
        properties = {**joined, **_properties(base)}
        required = _names(base)
        if alternatives:
            required |= frozenset.intersection(*map(_names, alternatives))
        unread = bool(alternatives) or "patternProperties" in base or (bool(wanted) and not base)
        others = base.get("additionalProperties", False) is not False
        return Shape(properties, required, open=not properties and (unread or others))

    def kinds(self, wanted: Schema, nested: int = 0) -> list[str]:
        """Return the JSON types that the resolved ``wanted`` allows, empty if it does not restrict them."""
        kind = wanted.get("type")
        if isinstance(kind, str):
            return [kind]
        if isinstance(kind, list):
            return [one for one in TYPES if one in kind] if self._afford(len(kind)) else []
        if _properties(wanted):
            return ["object"]
        allowed: list[str] = []
        for member in members_of(wanted):
            affordable = nested < MAX_NESTED and self._afford(STEP)
            more = self.kinds(self.resolve(member), nested + 1) if affordable else []
            if not more:
                return []
            allowed += more
        return list(dict.fromkeys(allowed))

    def is_endless(self, name: str) -> bool:
        """Return whether the reference ``name`` leads only to itself again, as ``{"$ref":
        "#"}``."""
        waiting = [self.target(name)]
        seen: set[str] = set()
        while waiting:
            if not self._afford(STEP):
                return True
            wanted = waiting.pop()
            other = reference(wanted)
            if other == name:
                return True
            if other is None:
                waiting += alternatives_of(self.resolve(wanted))
            elif other not in seen:
                seen.add(other)
                waiting.append(self.target(other))
        return False

    def _merge(self, wanted: Schema) -> Schema:
        merged: dict[str, Any] = {}
        properties: dict[str, Any] = {}
        required: list[Any] = []
        waiting: list[Any] = [wanted]
        for _ in range(MAX_PARTS):
            if not waiting:
                break
            part = waiting.pop()
            if not isinstance(part, dict):
                return {}
            members = part["allOf"] if isinstance(part.get("allOf"), list) else []
            cost = len(part) + len(_properties(part)) + len(_required(part)) + len(members)
            if len(members) > MAX_PARTS or not self._afford(STEP + cost):
                return {}
            for name, value in part.items():
                merged.setdefault(name, value)
            for name, value in _properties(part).items():
                properties.setdefault(name, value)
            required += _required(part)
            waiting += reversed(members)
            if isinstance(part.get("$ref"), str):
                waiting.append(self.target(part["$ref"]))
        if waiting:
            return {}
        others = {name: value for name, value in merged.items() if name not in ("$ref", "allOf")}
        return {**others, **({"properties": properties} if properties else {}), "required": required}


def reference(wanted: Any) -> str | None:
    """Return the ``$ref`` of a schema without other keywords."""
    found = wanted.get("$ref") if isinstance(wanted, dict) else None
    if not isinstance(found, str):
        return None
    return found if all(name == "$ref" or name in ANNOTATIONS for name in wanted) else None


def members_of(wanted: Schema) -> list[Any]:
    """Return the members of a schema's ``anyOf`` or ``oneOf``, empty if it has none."""
    members = wanted.get("anyOf") or wanted.get("oneOf")
    return members[:MAX_MEMBERS] if isinstance(members, list) else []


def alternatives_of(wanted: Schema) -> list[Any]:
    """Return the members of a schema without own properties, empty if it has properties."""
    return [] if _properties(wanted) else members_of(wanted)


def choices(wanted: Schema) -> list[Any]:
    """Return the values of ``const`` or ``enum``, empty if there is neither or there are too many."""
    values = [wanted["const"]] if "const" in wanted else wanted.get("enum")
    return values if isinstance(values, list) and len(values) <= MAX_ENUM else []


def _item(target: Any, index: str) -> Any:
    if not isinstance(target, list) or not (index.isascii() and index.isdecimal() and len(index) <= MAX_INDEX_DIGITS):
        return None
    return target[int(index)] if int(index) < len(target) else None


def _properties(schema: Schema) -> dict[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _required(schema: Schema) -> list[Any]:
    found = schema.get("required")
    return found if isinstance(found, list) else []


def _names(schema: Schema) -> frozenset[str]:
    return frozenset(name for name in _required(schema) if isinstance(name, str))
