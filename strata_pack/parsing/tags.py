"""Recognises a dialect's tags, well formed or misspelt, in a growing text.

A tag is one ``<`` and then other characters, so the beginning of a text that cannot become a tag is text as a whole.
Misspelt tags are recognised (by ``likeness``) only where a tag is expected or alone on a line, and opening tags only
for declared names.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache, lru_cache

from strata_pack.parsing.dialect import QWEN, Dialect, read_dialect
from strata_pack.parsing.likeness import is_like, may_become_like
from strata_pack.parsing.opening_tag import OpeningTag
from strata_pack.parsing.tokens import MAX_NAME, Tag, Token, clean_name, spellings

WHITESPACE = re.compile(r"[ \t\r\n]*")
"""The white space allowed between tags."""

INVISIBLE = re.compile(r"[ \t\r\n\f\v\u00a0\u200b\u3000\ufeff]*")
"""White space and other invisible characters, which models write between ``<tool_call>`` and the call."""

LONGEST_TAG = 32
"""Maximum characters of a tag without a name."""

_WORD = re.compile(r"(<?)[ \t]{0,2}([/\\]{0,2})[ \t]{0,2}([A-Za-z_][\w:.-]{0,60})?")
_TAIL = re.compile(r"([^<>\r\n]{0,40})(>|(?=[\r\n<])|\Z)")
_NAME = re.compile(
    r"(?:[ \t]{0,4}[=:][ \t]{0,4}|[ \t]{1,4})(name[ \t]{0,4}[=:]?[ \t]{0,4})?"
    r"([^<>\r\n]{0,256}?)[ \t]{0,4}(>|(?=[\r\n])|\Z)"
)
_ATTRIBUTE = re.compile(r"<parameter[ \t]{1,8}name=([^<>\r\n]{1,256})(>|\Z)")
_ATTRIBUTE_BEGINNING = re.compile(r"<parameter[ \t]{1,8}(?:n(?:a(?:m(?:e=?)?)?)?)?\Z")
_SURPLUS = re.compile(r">(?:(?=[\r\n])|\Z)")


def prefixes(tags: Collection[str]) -> frozenset[str]:
    """Return every proper prefix of each of ``tags``; cached, because every reply needs the same."""
    return _prefixes(tuple(tags))


@lru_cache(256)
def _prefixes(tags: tuple[str, ...]) -> frozenset[str]:
    return frozenset(tag[:length] for tag in tags for length in range(1, len(tag)))


def held_from(text: str, pos: int, beginnings: frozenset[str]) -> int:
    """Return the start (from ``pos`` on) of an incomplete tag at the end of ``text``; its length if there is none."""
    at = text.rfind("<", max(pos, len(text) - LONGEST_TAG))
    return at if at >= 0 and text[at:] in beginnings else len(text)


@cache
def one_of(tags: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern that matches any of ``tags``."""
    return re.compile("|".join(map(re.escape, tags)))


def _word(tag: str) -> str:
    found = re.match(r"</?([\w:.-]+)", tag)
    return found[1].lower() if found else ""


class Tags:
    """The compiled tags of one dialect; ``tags_of`` creates one object for each dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        fixed = {
            dialect.think_close: Token.THINK_END,
            dialect.call_open: Token.CALL,
            dialect.call_close: Token.CALL_END,
            dialect.parameter_close: Token.PARAMETER_END,
            dialect.function_close: Token.FUNCTION_END,  # last: a tag that ends both is taken for the function's
        }
        self._fixed = fixed
        self._fixed_tag = re.compile("|".join(map(re.escape, sorted(fixed, key=len, reverse=True))))
        openers = [opener for opener in (dialect.function_open, dialect.parameter_open) if opener]
        self.beginnings = {tag: prefixes([tag]) for tag in (*fixed, dialect.think_open, *openers)}
        self.open_in_call = prefixes([*fixed, *openers])
        opener = re.escape(dialect.call_open)
        self.openers = re.compile(rf"(?:{opener}[ \t\r\n]*)+(?={opener})")
        """A run of openers before another opener: none of them begins a call. One match covers the whole run."""
        self.lines_of_openers = re.compile(rf"(?:{opener}[ \t\r\n]*\n)+(?={opener})")
        self.adjacent_openers = re.compile(rf"(?:{opener})+")
        self._parameter_word = _word(dialect.parameter_close)
        self._function_word = _word(dialect.function_close) if dialect.wrapped else ""
        self._like = {
            word: token
            for word, token in (
                (self._parameter_word, Token.PARAMETER_END_LIKE),
                (self._function_word, Token.FUNCTION_END_LIKE),
                (_word(dialect.call_close), Token.CALL_END_LIKE),
            )
            if word
        }
        self._namespaces = {word.split(":")[0] for word in self._like if ":" in word}
        self._takes_attribute = not dialect.parameter_open.rstrip(' "').endswith("name=")
        self._likes_openers = "<" not in dialect.parameter_opened
        words = {*self._like, *map(_word, (*fixed, *openers))}
        first = "".join(sorted({letter for word in words for letter in word[:2] + word[:2].upper()}))
        self.in_call = re.compile(rf"<(?=[ \t]{{0,2}}[/\\]{{0,2}}[ \t]{{0,2}}(?:[{re.escape(first)}]|\Z))")
        """A ``<`` that may begin a tag of a call."""
        ends = "|".join(re.escape(tag) for tag in fixed if tag != dialect.think_close)
        named = "|".join(re.escape(tag) + r"[^<>\r\n]{1,256}>" for tag in openers)
        self.structural = re.compile(f"{ends}|{named}")
        """A tag of the call's grammar, well formed."""
        self._function = OpeningTag(dialect.function_open, dialect.function_opened, Token.FUNCTION)
        self._parameter = OpeningTag(
            dialect.parameter_open, dialect.parameter_opened, Token.PARAMETER, dialect.type_attribute
        )
        ends_header = "|".join(map(re.escape, (dialect.parameter_open, dialect.function_close)))
        self._header = re.compile(rf"([^<>\s{{}}]{{1,{MAX_NAME}}})(?=[ \t\r\n]{{0,64}}(?:{ends_header}))")
        self._header_open = re.compile(rf"[^<>\s{{}}]{{1,{MAX_NAME}}}[ \t\r\n]{{0,64}}(<[^<>]*)?\Z")
        self._header_ends = prefixes([dialect.parameter_open, dialect.function_close])

    def read_header(self, text: str, pos: int) -> Tag:
        """Return the function's name at ``text[pos]``, for a dialect that writes it without a tag."""
        found = self._header.match(text, pos)
        if found is not None:
            return Tag(Token.FUNCTION, found.end(), found[1])
        undecided = self._header_open.match(text, pos)
        if undecided is not None and (undecided[1] is None or undecided[1] in self._header_ends):
            return Tag(Token.OPEN, pos)
        return Tag(Token.TEXT, pos)

    def read(self, text: str, pos: int, names: Collection[str]) -> Tag:
        """Return the well-formed tag at ``text[pos]``; ``names`` are the declared parameters."""
        fixed = self._fixed_tag.match(text, pos)
        if fixed is not None:
            return Tag(self._fixed[fixed[0]], fixed.end())
        if len(text) - pos < LONGEST_TAG and text[pos:] in self.open_in_call:
            return Tag(Token.OPEN, pos)
        for opener in (self._parameter, self._function):
            if opener.begin and text.startswith(opener.begin, pos):
                return opener.read(text, pos, names)
        if self._takes_attribute:
            match = _ATTRIBUTE.match(text, pos)
            if match is not None:
                if not match[2]:
                    return Tag(Token.OPEN, pos)
                name = clean_name(match[1].rstrip("/"))
                return Tag(Token.PARAMETER_ATTRIBUTE, match.end(), name) if name else Tag(Token.TEXT, pos)
            if _ATTRIBUTE_BEGINNING.match(text, pos):
                return Tag(Token.OPEN, pos)
        return Tag(Token.TEXT, pos)

    def read_like(self, text: str, pos: int, names: Collection[str], functions: Collection[str], *, due: bool) -> Tag:
        """Return the misspelt tag at ``text[pos]``. ``due``: a tag is expected here, so it may even lack its ``<``;
        otherwise only tags of parameters that are alone on their line are recognised."""
        nothing = Tag(Token.TEXT, pos)
        found = _WORD.match(text, pos)
        if found is None or not (found[1] or due):
            return nothing
        bracket, slash, word = found.groups()
        end = found.end()
        if not word:
            return Tag(Token.OPEN, pos) if end == len(text) and (bracket or slash) else nothing
        if ":" in word and word.split(":")[0].lower() not in self._namespaces:
            word = word.split(":")[0]
            end = found.start(3) + len(word)
        if end == len(text):
            undecided = any(may_become_like(word, like) or is_like(word, like) for like in self._words(due))
            return Tag(Token.OPEN, pos) if undecided and len(word) < 60 else nothing
        like = next((like for like in self._words(due) if is_like(word, like)), None)
        if like is None:
            return nothing
        if not slash and self._likes_openers:
            opener = self._opener_like(text, pos, end, like, bool(bracket), names, functions, due=due)
            if opener.token is not Token.TEXT:
                return opener
        return self._closer_like(text, pos, end, like, bracket=bool(bracket), slash=bool(slash), due=due)

    def _words(self, due: bool) -> Collection[str]:
        return self._like if due else (self._parameter_word,)

    def _opener_like(
        self,
        text: str,
        pos: int,
        at: int,
        like: str,
        bracket: bool,
        names: Collection[str],
        functions: Collection[str],
        *,
        due: bool,
    ) -> Tag:
        found = _NAME.match(text, at)
        declared = names if like == self._parameter_word else functions if like == self._function_word else ()
        if found is None or not declared or (found[1] and not due):
            return Tag(Token.TEXT, pos)
        if not found[3] and found.end() == len(text):
            return Tag(Token.OPEN, pos)
        name = next((name for name in spellings(found[2]) if name in declared), None)
        if name is None or not (bracket or found[3]):
            return Tag(Token.TEXT, pos)
        token = Token.PARAMETER_LIKE if like == self._parameter_word else Token.FUNCTION_LIKE
        return Tag(token, found.end(), name)

    def _closer_like(self, text: str, pos: int, at: int, like: str, *, bracket: bool, slash: bool, due: bool) -> Tag:
        found = _TAIL.match(text, at)
        if found is None or not (slash or (bracket and not found[1].strip(" \t/"))):
            return Tag(Token.TEXT, pos)
        if not found[2] and found.end() == len(text):
            return Tag(Token.OPEN, pos)
        token = self._like[like]
        whole = found[2] or (bracket and slash)
        if not whole or (due and not slash and token is Token.PARAMETER_END_LIKE):
            return Tag(Token.TEXT, pos)
        return Tag(token, found.end())

    def surplus(self, text: str, pos: int) -> Tag:
        """Return whether a second ``>`` of an opening tag is at ``text[pos]``."""
        found = _SURPLUS.match(text, pos)
        if found is None:
            return Tag(Token.TEXT, pos)
        return Tag(Token.OPEN if found.end() == len(text) else Token.SURPLUS, found.end())

    def holds_line(self, text: str) -> bool:
        """Return whether ``text`` contains a well-formed tag of the call's grammar alone on a line."""
        if "<" not in text:
            return False
        for found in self.structural.finditer(text):
            before = text[max(0, found.start() - 64) : found.start()].rstrip(" \t")
            if before[-1:] in ("", "\n", "\r") and _BLANK_TO_LINE_END.match(text, found.end()):
                return True
        return False

    def ends_in_half_tag(self, text: str) -> bool:
        """Return whether ``text`` ends with a possible closing tag of a parameter: one that lacks its ``<``, or on
        the last line any closing tag without its opening tag in the text."""
        end = text[-80:]
        found = _HALF_TAG.search(end)
        if found is not None and is_like(found[1], self._parameter_word):
            return True
        lone = _LONE_CLOSER.search(end)
        return lone is not None and f"<{lone[1]}" not in text

    def looks_structural(self, text: str) -> bool:
        """Return whether ``text`` contains anything like a tag of the call's grammar: anywhere with its ``<``,
        without it alone on a line."""
        for found in _TAG_LIKE.finditer(text):
            if any(is_like(found[1], like) for like in self._like):
                return True
        return any(any(is_like(found[1], like) for like in self._like) for found in _LINE_LIKE.finditer(text))


_BLANK_TO_LINE_END = re.compile(r"[ \t\r]*(?:\n|\Z)")
_HALF_TAG = re.compile(r"[/\\]([A-Za-z_]\w{2,60})(?:&gt;|\W{0,4})\s*\Z")
_LONE_CLOSER = re.compile(r"(?:\A|\n)[ \t]*<[ \t]*[/\\][ \t]*([\w:.-]{1,40})[^<>\n]{0,20}>?\s*\Z")
_TAG_LIKE = re.compile(r"<[ \t]{0,2}[/\\]{0,2}[ \t]{0,2}([A-Za-z_][\w:.-]{2,60})")
_LINE_LIKE = re.compile(r"^[ \t]*[/\\]?[ \t]*([A-Za-z_][\w:.-]{2,60})[^<>\r\n]{0,256}>[^\w\r\n]{0,8}\r?$", re.MULTILINE)


@cache
def tags_of(dialect: Dialect) -> Tags:
    """Return the compiled tags of ``dialect``."""
    return Tags(dialect)


def holds_call_tag(text: str, dialect: Dialect | str = QWEN) -> bool:
    """Return whether ``text``, an argument of a call, contains a tag of a call alone on a line: it may have
    swallowed another parameter or another call."""
    return tags_of(read_dialect(dialect)).holds_line(text)
