"""Log probabilities of content tokens, matched to emitted text by position.

The server sends one entry per token; the parser may hold text back, drop tags, or emit it as another kind. Entries are
kept until the parser emits text, and are matched to it by position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any


class ContentLogprobs:
    """Converts entries of generated tokens to OpenAI's ``logprobs.content`` entries."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._waiting: deque[tuple[str, Mapping[str, Any]]] = deque()

    def add(self, text: str, entries: list[Mapping[str, Any]]) -> None:
        """Store the entries of the tokens of ``text``."""
        for index, entry in enumerate(entries):
            # Text that the server held back (part of a character or of a stop string) belongs to the last token.
            self._waiting.append((text if index == len(entries) - 1 else "", entry))

    def take(self, emitted: str, *, content: bool) -> list[dict[str, Any]]:
        """Return the entries of ``emitted`` and drop all before it; empty if it is not content."""
        if not emitted:
            return []
        whole = "".join(text for text, _ in self._waiting)
        start = whole.rfind(emitted)
        if start < 0:
            return []
        end, position = start + len(emitted), 0
        found: list[dict[str, Any]] = []
        while self._waiting and position < end:
            text, entry = self._waiting[0]
            if position + len(text) > end:
                self._waiting[0] = (text[end - position :], entry)
            else:
                self._waiting.popleft()
            if content and position + len(text) > start:
                found.append(self._entry(entry))
            position += len(text)
        return found

    def _entry(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        shown = _token(entry)
        shown["top_logprobs"] = [_token(one) for one in entry.get("top_logprobs", [])[: self._top]]
        return shown


def _token(entry: Mapping[str, Any]) -> dict[str, Any]:
    logprob = entry.get("logprob")
    # A probability of zero is null in llama-server's JSON; OpenAI writes -9999.
    return {
        "token": str(entry.get("token", "")),
        "logprob": float(logprob) if isinstance(logprob, (int, float)) else -9999.0,
        "bytes": entry.get("bytes"),
    }
