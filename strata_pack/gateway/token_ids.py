"""Decide by llama-server's token ids which pieces of generated text are special tokens.

A model can spell ``<tool_call>`` with ordinary tokens, for example in a text about calls; a real call starts with the
special token of that name. An event of a stream carries the text of one token or of several (the server holds text
back that may be a stop string or half a character), and only the id of the last one. So an id is used only if the
event's text is exactly that token's text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strata_pack.gateway.failures import ApiError
from strata_pack.gateway.upstream import Upstream
from strata_pack.parsing import Dialect

MAX_PIECES = 20_000
"""Most token texts in the cache."""


class TokenPieces:
    """The texts of a vocabulary's tokens, requested from the server (``/detokenize``) when first needed.

    If one of the dialect's tags is not one token of the vocabulary, real tags are spelled with ordinary tokens: then
    ids are not used. Neither are they if the server does not send them.
    """

    def __init__(self, upstream: Upstream, dialect: Dialect, *, reliable: bool) -> None:
        self._upstream = upstream
        self._tags = dialect.tags
        self._texts: dict[int, str] = {}
        self.reliable = reliable
        """Whether ids are used."""

    async def learn(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Request the unknown texts of the tokens of ``events``."""
        tokens = [token for event in events if (token := id_of(event)) is not None and token not in self._texts]
        for token in dict.fromkeys(tokens):
            try:
                answer = await self._upstream.json("POST", "/detokenize", {"tokens": [token]})
            except ApiError:
                self.reliable = False
                return
            if len(self._texts) >= MAX_PIECES:
                self._texts.clear()
            self._texts[token] = str(answer.get("content", ""))

    def special(self, event: Mapping[str, Any]) -> bool | None:
        """Return whether the event's text is one special token (false: ordinary tokens); ``None`` if unknown.

        The result is for ``OutputParser.feed``.
        """
        token = id_of(event) if self.reliable else None
        text = event["content"]
        return None if token is None or self._texts.get(token) != text else text in self._tags

    def begins_tag(self, text: str) -> bool:
        """Return whether ``text`` ends with the beginning of a tag."""
        ends = (text.endswith(tag[:size]) for tag in self._tags for size in range(1, len(tag)))
        return "<" in text and any(ends)


def id_of(event: Mapping[str, Any]) -> int | None:
    """Return the id of the last token of an event, ``None`` if it has none."""
    tokens = event.get("tokens")
    return tokens[-1] if isinstance(tokens, list) and tokens and isinstance(tokens[-1], int) else None


def tags_are_tokens(dialect: Dialect, tokenize: Callable[[str], Sequence[int]]) -> bool:
    """Return whether each of the dialect's tags is one token; ``tokenize`` returns ids, with special tokens parsed."""
    return all(len(tokenize(tag)) == 1 for tag in dialect.tags)
