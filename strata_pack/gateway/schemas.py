"""What a grammar asks of a JSON Schema: references followed, ``allOf`` merged, the types and properties allowed.

Where a schema says more than is read here, or refers to itself without end, the answer is the looser one: a grammar may
allow a value that the schema forbids, never the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MAX_PARTS = 64
"""Schemas that are merged into one; beyond that it allows all."""
MAX_MEMBERS = 50
MAX_ENUM = 500

Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Shape:
    """An object's properties by name. ``open``: it may have others, and none is known."""

    properties: dict[str, Any]
    required: frozenset[str]
    open: bool


def resolve(wanted: Any, root: Schema) -> Schema:
    """Return ``wanted`` with ``$ref`` followed from ``root`` and ``allOf`` merged, ``{}`` if that allows all."""
    if not isinstance(wanted, dict):
        return {}
    if "$ref" not in wanted and "allOf" not in wanted:
        return wanted
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
        merged = {**part, **merged}
        properties = {**_properties(part), **properties}
        required += _required(part)
        members = part.get("allOf")
        waiting += reversed(members) if isinstance(members, list) else ()
        if isinstance(part.get("$ref"), str):
            waiting.append(_target(part["$ref"], root))
    if waiting:
        return {}
    others = {name: value for name, value in merged.items() if name not in ("$ref", "allOf")}
    return {**others, **({"properties": properties} if properties else {}), "required": required}


def shape(wanted: Any, root: Schema) -> Shape:
    """Return the shape of the object that ``wanted`` describes; alternatives are one shape with all they may have."""
    base = resolve(wanted, root)
    alternatives = [resolve(member, root) for member in members_of(base)]
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


def members_of(wanted: Schema) -> list[Any]:
    """Return the alternatives of a schema that is one of several, none if it is not."""
    members = wanted.get("anyOf") or wanted.get("oneOf")
    return members[:MAX_MEMBERS] if isinstance(members, list) else []


def choices(wanted: Schema) -> list[Any]:
    """Return the values of ``const`` or ``enum``, none if there is neither or there are too many."""
    values = [wanted["const"]] if "const" in wanted else wanted.get("enum")
    return values if isinstance(values, list) and len(values) <= MAX_ENUM else []


def kinds(wanted: Schema, root: Schema, afford: Callable[[], bool]) -> list[str]:
    """Return the JSON types that ``wanted`` allows, none if it does not say.

    ``afford`` is asked before each alternative that is looked at.
    """
    kind = wanted.get("type")
    if isinstance(kind, str):
        return [kind]
    if isinstance(kind, list):
        return [one for one in kind if isinstance(one, str)]
    if _properties(wanted):
        return ["object"]
    allowed: list[str] = []
    for member in members_of(wanted):
        more = kinds(resolve(member, root), root, afford) if afford() else []
        if not more:
            return []
        allowed += more
    return allowed


def _target(reference: str, root: Schema) -> Any:
    """Return what a JSON pointer (RFC 6901) leads to, ``None`` if that is nothing."""
    target: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and name.isdecimal() and int(name) < len(target):
            target = target[int(name)]
        else:
            target = target.get(name) if isinstance(target, dict) else None
    return target


def _properties(schema: Schema) -> dict[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _required(schema: Schema) -> list[Any]:
    found = schema.get("required")
    return found if isinstance(found, list) else []


def _names(schema: Schema) -> frozenset[str]:
    return frozenset(name for name in _required(schema) if isinstance(name, str))
