"""Converts the text of an argument to a JSON value of a type that its schema allows; never raises.

A text that fits no type of its schema remains a string.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NoReturn

from strata_pack.parsing.events import json_text
from strata_pack.parsing.literals import MAX_DEPTH, read_literal
from strata_pack.parsing.schema import SPECIFIC_FIRST, ArgumentType, TypeName

WHITESPACE = " \t\r\n"

MAX_DIGITS = 4000
"""Maximum digits of an integer: Python refuses to print much longer ones, so a longer text remains a string."""

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")
_BRACKET = re.compile(r'"(?:[^"\\]|\\[\s\S])*"|[][{}]')


class _NoFitError(ValueError):
    """The text does not spell a value of the wanted type."""


def _refuse(_constant: str) -> NoReturn:
    raise _NoFitError


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _NoFitError
    return value


def _digits(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise _NoFitError
    return int(text)


def _too_deep(text: str) -> bool:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    depth = 0
    for mark in _BRACKET.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(mark[0], 0)
        if depth > MAX_DEPTH:
            return True
    return False


def read_json(text: str, *, constants_as_text: bool = False) -> Any:
    """Return the JSON value that ``text`` spells; raw control characters inside strings are kept.

    ``ValueError`` if it is not JSON, contains NaN, an infinity or a number out of range, or is nested more than 200
    deep. With ``constants_as_text`` NaN and the infinities become the strings that spell them.
    """
    if _too_deep(text):
        raise _NoFitError
    constant: Callable[[str], Any] = str if constants_as_text else _refuse
    return json.loads(text, strict=False, parse_constant=constant, parse_float=_finite, parse_int=_digits)


def _integer(text: str) -> int:
    if _INTEGER.fullmatch(text):
        return _digits(text)
    if not _NUMBER.fullmatch(text):
        raise _NoFitError
    value = Decimal(text)
    if abs(value.adjusted()) > MAX_DIGITS or len(text) > MAX_DIGITS:
        raise _NoFitError
    whole, part = value.as_integer_ratio()
    if part != 1:
        raise _NoFitError
    return whole


def _number(text: str) -> int | float:
    if _INTEGER.fullmatch(text):
        return _digits(text)
    if not _NUMBER.fullmatch(text):
        raise _NoFitError
    return _finite(text)


def _word(words: dict[str, Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if text not in words:
            raise _NoFitError
        return words[text]

    return read


def _collection(wanted: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            value = read_json(text)
        except ValueError:
            # Through JSON and back, so that an escaped surrogate pair becomes one character, as in JSON text.
            value = read_json(json_text(read_literal(text)))
        if not isinstance(value, wanted):
            raise _NoFitError
        return value

    return read


_READERS: dict[TypeName, Callable[[str], Any]] = {
    "null": _word({"null": None, "None": None}),
    "boolean": _word({"true": True, "True": True, "false": False, "False": False}),
    "integer": _integer,
    "number": _number,
    "array": _collection(list),
    "object": _collection(dict),
}


def _untyped(text: str) -> Any:
    try:
        value = read_json(text)
    except ValueError:
        return text
    return text if isinstance(value, str) else value


def _is_member(value: Any, members: tuple[Any, ...]) -> bool:
    return any(value == member and isinstance(value, bool) == isinstance(member, bool) for member in members)


def read_value(text: str, wanted: ArgumentType) -> tuple[Any, bool]:
    """Return the value of an argument's ``text`` and whether it fits its type (else it is ``text`` itself).

    A text that does not fit and is a JSON string is read again as the content of that string.
    """
    if wanted.is_text:
        return text, True
    value, fits, accepted = _read_once(text, wanted)
    if not accepted:
        inside = _string_inside(text)
        if inside is not None:
            decoded, _, accepted = _read_once(inside, wanted)
            if accepted:
                return decoded, True
    return value, fits


def _string_inside(text: str) -> str | None:
    bare = text.strip(WHITESPACE)
    if len(bare) < 2 or bare[0] != '"' or bare[-1] != '"':
        return None
    try:
        inside = read_json(bare)
    except ValueError:
        return None
    return inside if isinstance(inside, str) else None


def _read_once(text: str, wanted: ArgumentType) -> tuple[Any, bool, bool]:
    """Return the value of ``text``, whether it has the type, and whether the schema accepts it."""
    bare = text.strip(WHITESPACE)
    if not wanted.types:
        value = _untyped(bare)
        return (text if value is bare else value), True, True
    fits: list[Any] = []
    for name in wanted.types:
        if name == "string":
            fits.append(text)
            continue
        try:
            fits.append(_READERS[name](bare))
        except (ValueError, RecursionError):
            continue
        if wanted.members is None:
            break
    for value in fits:
        if wanted.members is None or _is_member(value, wanted.members):
            return value, True, True
    return (fits[0], True, False) if fits else (text, False, False)


_BEGINNINGS: dict[TypeName, re.Pattern[str]] = {
    "null": re.compile(r"n(?:u(?:l(?:l\s*)?)?)?\Z|N(?:o(?:n(?:e\s*)?)?)?\Z"),
    "boolean": re.compile(r"[tT](?:r(?:u(?:e\s*)?)?)?\Z|[fF](?:a(?:l(?:s(?:e\s*)?)?)?)?\Z"),
    "integer": re.compile(r"[+-]?[0-9.]*(?:[eE][+-]?[0-9]*)?\s*\Z"),
    "number": re.compile(r"[+-]?[0-9.]*(?:[eE][+-]?[0-9]*)?\s*\Z"),
    "array": re.compile(r"[\[(]"),
    "object": re.compile(r"\{"),
}
"""Possible first characters of a value, by type. A list or an object is recognised by its last character."""


def only_text(beginning: str, wanted: ArgumentType) -> bool | None:
    """Return True if a value that begins with ``beginning`` is a string whatever follows, False if only its end decides
    that, None if more of it is needed."""
    bare = beginning.lstrip(WHITESPACE)
    if not bare:
        return None
    possible = [name for name in wanted.types or SPECIFIC_FIRST if name != "string" and _BEGINNINGS[name].match(bare)]
    if not possible:
        return True
    return False if {"array", "object"} & set(possible) else None
