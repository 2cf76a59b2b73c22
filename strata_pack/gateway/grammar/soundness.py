"""Find the place where a client's JSON Schema is not one, such as a type that JSON does not have.

A grammar would allow anything there, and the answer would not have the form that the client wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from strata_pack.gateway.grammar.schemas import TYPES

MAX_CHECKED = 5000
"""Most schemas of one document that are checked."""

OF_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
OF_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
OF_ONE = (
    *("items", "contains", "not", "if", "then", "else"),
    *("additionalItems", "additionalProperties", "propertyNames", "unevaluatedItems", "unevaluatedProperties"),
)

SchemaFault = tuple[str, str]
"""The path of a wrong value in a schema, and what is wrong."""


def fault_of(schema: Any) -> SchemaFault | None:
    """Return the first fault of a JSON Schema, ``None`` if there is none."""
    waiting: list[tuple[str, Any]] = [("", schema)]
    for _ in range(MAX_CHECKED):
        if not waiting:
            break
        path, one = waiting.pop()
        if isinstance(one, bool):
            continue
        if not isinstance(one, Mapping):
            return path, "must be a schema"
        if (fault := _own_fault(path, one)) is not None:
            return fault
        waiting += reversed(list(_inner(path, one)))
    return None


def _own_fault(path: str, schema: Mapping[str, Any]) -> SchemaFault | None:
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if kind is not None and not all(isinstance(one, str) and one in TYPES for one in kinds):
        return f"{path}.type", f"must be one of {', '.join(TYPES)}, or a list of them"
    for name, form, words in (
        *((name, Mapping, "must be an object") for name in OF_NAMES),
        *((name, list, "must be a list") for name in (*OF_LISTS, "enum")),
    ):
        if not isinstance(schema.get(name), form | None):
            return f"{path}.{name}", words
    return None


def _inner(path: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the schemas inside ``schema`` with their paths."""
    for name in OF_NAMES:
        for key, one in (schema.get(name) or {}).items():
            yield f"{path}.{name}.{key}", one
    for name in OF_LISTS:
        for number, one in enumerate(schema.get(name) or ()):
            yield f"{path}.{name}.{number}", one
    for name in OF_ONE:
        inner = schema.get(name)
        if name == "items" and isinstance(inner, list):
            for number, one in enumerate(inner):
                yield f"{path}.{name}.{number}", one
        elif inner is not None:
            yield f"{path}.{name}", inner
