"""Validates against the part of JSON Schema (draft 2020-12) that the manifest's schema uses; reports the first fault.

A full validator would add five packages to the base installation for this one document. A keyword that is not
implemented here is an error, so that no rule is silently ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Problem = tuple[tuple[str | int, ...], str]
"""The location (keys and indices from the top) and the problem."""

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
_LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool], str]] = {
    "minimum": ("number", lambda value, bound: value >= bound, "is below {}"),
    "maximum": ("number", lambda value, bound: value <= bound, "is above {}"),
    "exclusiveMinimum": ("number", lambda value, bound: value > bound, "is not above {}"),
    "minLength": ("string", lambda value, bound: len(value) >= bound, "is shorter than {} characters"),
    "maxLength": ("string", lambda value, bound: len(value) <= bound, "is longer than {} characters"),
    "minItems": ("array", lambda value, bound: len(value) >= bound, "has fewer than {} items"),
    "pattern": ("string", lambda value, bound: _matches(bound, value), "does not match {}"),
}


def _matches(pattern: str, value: str) -> bool:
    """Return whether ``pattern`` matches in ``value``; ``$`` matches only at the end of the text, as in ECMAScript."""
    return re.search(re.sub(r"\$$", r"\\Z", pattern), value) is not None


_SILENT = {"$schema", "$id", "$defs", "title", "description", "format", "examples", "default"}


def problems(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> Iterator[Problem]:
    """Yield the problems of ``value`` (decoded JSON); ``root`` contains the ``$defs`` (default: ``schema``)."""
    root = schema if root is None else root
    for keyword, rule in schema.items():
        if keyword in _LIMITS:
            kind, within, text = _LIMITS[keyword]
            if _TYPES[kind](value) and not within(value, rule):
                yield (), f"{_shown(value)} {text.format(rule)}"
        elif keyword not in _SILENT:
            yield from _RULES[keyword](value, rule, schema, root)


def _type(value: Any, rule: Any, _schema: Any, _root: Any) -> Iterator[Problem]:
    names = [rule] if isinstance(rule, str) else rule
    if not any(_TYPES[name](value) for name in names):
        yield (), f"{_shown(value)} is not of type {' or '.join(names)}"


def _const(value: Any, rule: Any, _schema: Any, _root: Any) -> Iterator[Problem]:
    if value != rule or type(value) is not type(rule):
        yield (), f"{_shown(value)} is not {_shown(rule)}"


def _enum(value: Any, rule: Any, _schema: Any, _root: Any) -> Iterator[Problem]:
    if value not in rule:
        yield (), f"{_shown(value)} is not one of {', '.join(map(_shown, rule))}"


def _required(value: Any, rule: Any, _schema: Any, _root: Any) -> Iterator[Problem]:
    if isinstance(value, dict):
        yield from (((), f"{name!r} is missing") for name in rule if name not in value)


def _properties(value: Any, rule: Any, _schema: Any, root: Any) -> Iterator[Problem]:
    if isinstance(value, dict):
        for name, inner in rule.items():
            if name in value:
                yield from _below(name, problems(value[name], inner, root))


def _additional(value: Any, rule: Any, schema: Any, root: Any) -> Iterator[Problem]:
    if isinstance(value, dict):
        for name in value.keys() - schema.get("properties", {}).keys():
            if rule is False:
                yield (), f"{name!r} is not known"
            elif rule is not True:
                yield from _below(name, problems(value[name], rule, root))


def _items(value: Any, rule: Any, _schema: Any, root: Any) -> Iterator[Problem]:
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _below(number, problems(item, rule, root))


def _any_of(value: Any, rule: Any, _schema: Any, root: Any) -> Iterator[Problem]:
    """Report the closest alternative: the one whose first problem is deepest in the document."""
    found = [list(problems(value, alternative, root)) for alternative in rule]
    if all(found):
        yield max((each[0] for each in found), key=lambda problem: len(problem[0]))


def _ref(value: Any, rule: Any, _schema: Any, root: Any) -> Iterator[Problem]:
    yield from problems(value, root["$defs"][rule.removeprefix("#/$defs/")], root)


_RULES: dict[str, Callable[[Any, Any, Any, Any], Iterator[Problem]]] = {
    "type": _type,
    "const": _const,
    "enum": _enum,
    "required": _required,
    "properties": _properties,
    "additionalProperties": _additional,
    "items": _items,
    "anyOf": _any_of,
    "$ref": _ref,
}

KEYWORDS = frozenset({*_LIMITS, *_SILENT, *_RULES})
"""The keywords that a schema may use."""


def _below(part: str | int, found: Iterator[Problem]) -> Iterator[Problem]:
    yield from (((part, *place), text) for place, text in found)


def _shown(value: Any) -> str:
    return repr(value)[:80]
