"""Reads the opening tag of a function or a parameter: its beginning, a name, its end, in all spellings that count."""

from __future__ import annotations

import re
from collections.abc import Collection

from strata_pack.parsing.tokens import MAX_NAME, Tag, Token, clean_name, spellings


class OpeningTag:
    """The opening tag of a function or a parameter: its beginning, a name, its end."""

    def __init__(self, begin: str, opened: str, token: Token, type_attribute: str = "") -> None:
        self.begin = begin
        self._token = token
        quote = opened[0] if opened[0] in "\"'" else ""
        self._name = re.compile(rf"[^<>\r\n{quote}]{{0,{MAX_NAME}}}")
        attribute = rf"""(?:[ \t]+{re.escape(type_attribute)}=["']?(true|false)["']?)?""" if type_attribute else "()"
        at = len(opened) - len(opened.lstrip("\"'")) if type_attribute else 0
        end = re.sub(r"(\\\n|\n)+", r"[ \\t\\r\\n]{0,64}", re.escape(opened[at:]))
        self._opened = re.compile(re.escape(opened[:at]) + attribute + end)
        self._long = len(opened) + (len(type_attribute) + 16 if type_attribute else 0) + 64 * ("\n" in opened)
        self._flat = opened.replace("\n", "")
        self._type_attribute = type_attribute
        self._is_bracket = opened == ">"

    def read(self, text: str, pos: int, names: Collection[str]) -> Tag:
        """Return the tag at ``text[pos]``, where this tag's beginning was found."""
        start = pos + len(self.begin)
        found = self._name.match(text, start)
        end = found.end() if found else start
        raw = text[start:end]
        if end == len(text) and len(raw) < MAX_NAME:
            return Tag(Token.OPEN, pos)
        name = self._clean(raw, names)
        opened = self._opened.match(text, end)
        if opened is not None:
            if not name:
                return Tag(Token.TEXT, pos)
            return self._inline(raw, start, name, names) or Tag(self._token, opened.end(), name, _truth(opened[1]))
        if self._may_open(text[end : end + self._long + 1]):
            return Tag(Token.OPEN, pos)
        if not name:
            return Tag(Token.TEXT, pos)
        line_ends = text[end : end + 1] in ("\r", "\n")
        if line_ends and self._token is Token.FUNCTION:
            return Tag(Token.FUNCTION_UNCLOSED, end, name)
        if line_ends and name in names:
            return Tag(Token.PARAMETER_LIKE, end, name)
        return self._inline(raw, start, "", names) or Tag(Token.TEXT, pos)

    def _clean(self, raw: str, names: Collection[str]) -> str:
        if self._token is Token.PARAMETER:
            bare = clean_name(raw.rstrip(" /")) or clean_name(raw)
            return next((name for name in spellings(raw) if name in names), bare)
        return clean_name(raw.rstrip("/ ")) or clean_name(raw)

    def _inline(self, raw: str, start: int, name: str, names: Collection[str]) -> Tag | None:
        """``<parameter=path=a.py``: a declared name with its value directly after it."""
        if "=" not in raw or name in names or self._token is Token.FUNCTION or not self._is_bracket:
            return None
        before = raw.index("=")
        declared = clean_name(raw[:before])
        if declared not in names:
            return None
        return Tag(Token.PARAMETER_INLINE, start + before + 1, declared) if not name else Tag(Token.TEXT, start)

    def _may_open(self, text: str) -> bool:
        if self._type_attribute:
            return not re.search(r"[<>\r\n]", text) and len(text) <= self._long
        flat = re.sub(r"[ \t\r\n]+", "", text)
        return len(text) <= self._long and len(flat) < len(self._flat) and self._flat.startswith(flat)


def _truth(word: str | None) -> bool | None:
    return None if not word else word == "true"
