"""Reads the Python lists and dicts that models write into arguments, without evaluating anything.

``ast.literal_eval`` warns on stray backslashes, may exhaust the C stack on nested brackets and accepts types that JSON
lacks; this reader accepts exactly what JSON can represent.
"""

from __future__ import annotations

import re
from typing import Any

MAX_DEPTH = 200
"""Largest nesting depth of lists and dicts; deeper text is not read as a literal."""

_TOKEN = re.compile(
    r"""[ \t\r\n]*(?:
      (?P<string>'''(?:[^\\]|\\[\s\S])*?''' | \"\"\"(?:[^\\]|\\[\s\S])*?\"\"\"
                | '(?:[^'\\\n]|\\[\s\S])*' | "(?:[^"\\\n]|\\[\s\S])*")
    | (?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<name>[A-Za-z]+)
    | (?P<mark>[][(){},:])
    )""",
    re.VERBOSE,
)
_NAMES = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_ESCAPE = re.compile(r"\\(?:(\r?\n)|([0-7]{1,3})|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([\s\S]))")
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_CLOSERS = {"[": "]", "(": ")"}


def _unescape(match: re.Match[str]) -> str:
    line_end, octal, *hexes, simple = match.groups()
    if line_end is not None:
        return ""
    if octal is not None:
        return chr(int(octal, 8))
    for digits in hexes:
        if digits is not None:
            return chr(int(digits, 16))
    if simple in "\\'\"":
        return str(simple)
    return _SIMPLE.get(simple, "\\" + simple)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._pos = 0
        self._kind = self._token = ""
        self._next()

    def _next(self) -> None:
        match = _TOKEN.match(self._text, self._pos)
        if match is None:
            self._kind, self._token = "", self._text[self._pos :].strip(" \t\r\n")
            self._pos = len(self._text)
        else:
            self._kind = match.lastgroup or ""
            self._token = match[self._kind]
            self._pos = match.end()

    def _take(self, mark: str) -> bool:
        if self._kind == "mark" and self._token == mark:
            self._next()
            return True
        return False

    def read(self) -> Any:
        value = self._value(0)
        if self._kind or self._token:
            raise ValueError("text after the literal")
        return value

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        kind, token = self._kind, self._token
        if kind == "mark":
            if token in _CLOSERS:
                self._next()
                return self._items(_CLOSERS[token], depth)
            if self._take("{"):
                return self._pairs(depth)
        elif kind == "string":
            return self._string()
        elif kind == "number":
            self._next()
            return float(token) if set(token) & set(".eE") else int(token)
        elif kind == "name" and token in _NAMES:
            self._next()
            return _NAMES[token]
        raise ValueError("not a literal")

    def _string(self) -> str:
        parts = []
        while self._kind == "string":  # adjacent strings are concatenated, as in Python
            width = 3 if self._token[:3] in ("'''", '"""') and len(self._token) >= 6 else 1
            parts.append(_ESCAPE.sub(_unescape, self._token[width:-width]))
            self._next()
        return "".join(parts)

    def _items(self, closer: str, depth: int) -> list[Any]:
        items: list[Any] = []
        while not self._take(closer):
            items.append(self._value(depth + 1))
            if not self._take(","):
                if not self._take(closer):
                    raise ValueError("a comma is missing")
                break
        return items

    def _pairs(self, depth: int) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        while not self._take("}"):
            if self._kind != "string":
                raise ValueError("a key that JSON cannot hold")
            key = self._string()
            if not self._take(":"):
                raise ValueError("a colon is missing")
            pairs[key] = self._value(depth + 1)
            if not self._take(","):
                if not self._take("}"):
                    raise ValueError("a comma is missing")
                break
        return pairs


def read_literal(text: str) -> Any:
    """Return the list, dict, string, number, bool or None that ``text`` spells in Python; tuples become lists.

    Raises ``ValueError`` for anything else, also for values that JSON lacks (sets, bytes, keys that are not strings).
    """
    try:
        return _Reader(text).read()
    except OverflowError as error:
        raise ValueError("a character or number out of range") from error
