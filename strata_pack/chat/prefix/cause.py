"""Determines the cause of a prefix break from a table of causes with their tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from strata_pack.parsing.dialect import THINK_CLOSE

CauseId = Literal[
    "thinking-not-sent",
    "thinking-dropped-by-query",
    "thinking-dropped",
    "turn-rewritten",
    "generation-prompt",
    "prompt-start",
]


@dataclass(frozen=True)
class Cause:
    """The reason of a prefix break and its remedy; ``{turn}`` in the texts is the number of the turn."""

    id: CauseId
    why: str
    remedy: str


CAUSES: Mapping[CauseId, Cause] = {
    cause.id: cause
    for cause in (
        Cause(
            "thinking-not-sent",
            "the client sent turn {turn} back without its thinking",
            "send reasoning_content back with the turn, exactly as it was received",
        ),
        Cause(
            "thinking-dropped-by-query",
            "a new user message makes the template drop the thinking of earlier turns, from turn {turn} on",
            "pass preserve_thinking: true, if the template reads it",
        ),
        Cause(
            "thinking-dropped",
            "the template does not write the thinking of turn {turn}",
            "pass preserve_thinking: true, if the template reads it; a template that never reads reasoning_content "
            "cannot keep it",
        ),
        Cause(
            "turn-rewritten",
            "the template writes the text or the calls of turn {turn} differently from the model",
            "send the turn back byte for byte; for calls see that argument order and types survive the client",
        ),
        Cause(
            "generation-prompt",
            "the generation prompt of turn {turn} had text that the history lacks",
            "only the template can change this: it must write for an old turn what it wrote to begin it",
        ),
        Cause(
            "prompt-start",
            "the beginning of the prompt changed",
            "keep system text, tools and variables the same over the session, and dates out of them",
        ),
    )
}


@dataclass(frozen=True)
class SessionTurn:
    """An assistant turn of the session. ``message`` is as the client sends it back. The generation prompt is the
    prompt's text from character ``begun`` to ``start``, where the model's output begins. ``query_follows``: a user
    message comes before the next prompt."""

    number: int
    message: Mapping[str, Any]
    begun: int
    start: int
    query_follows: bool


def find_cause(
    cached: str, at: int, turns: Sequence[SessionTurn], thinking: Mapping[int, str]
) -> tuple[Cause, int | None]:
    """Return why the next prompt differs from ``cached`` at character ``at``, and the number of the turn concerned.

    ``turns`` are all turns so far, the newest last; ``thinking`` maps their numbers to the model's thinking.
    """
    newest = turns[-1]
    turn, in_thinking = _place(cached, at, turns, thinking)
    if turn is None:
        return CAUSES["prompt-start"], None
    if turn is newest and newest.begun <= at:
        if at < newest.start and not thinking.get(turn.number):
            return CAUSES["generation-prompt"], turn.number
        if in_thinking and not turn.message.get("reasoning_content"):
            return CAUSES["thinking-not-sent"], turn.number
    if not in_thinking:
        return CAUSES["turn-rewritten"], turn.number
    dropped_now = any(one.query_follows for one in turns if one.number >= turn.number)
    return CAUSES["thinking-dropped-by-query" if dropped_now else "thinking-dropped"], turn.number


def _place(
    cached: str, at: int, turns: Sequence[SessionTurn], thinking: Mapping[int, str]
) -> tuple[SessionTurn | None, bool]:
    """Return the turn whose text in ``cached`` contains ``at`` or follows it, and whether the break is in its thinking,
    which may be an empty block. The turns are in ``cached`` in order."""
    cursor = turns[0].begun
    if at < cursor:
        return None, False
    for turn in turns:
        for text, is_thinking in _texts(turn, thinking.get(turn.number, "")):
            start = cached.find(text, cursor)
            if start < 0:
                continue
            cursor = start + len(text)
            if at < cursor:
                return turn, is_thinking or THINK_CLOSE in cached[at:start]
    return turns[-1], False


def _texts(turn: SessionTurn, thought: str) -> list[tuple[str, bool]]:
    """Return the texts of a turn in the order of the prompt, each with a flag for thinking."""
    content = turn.message.get("content")
    texts = [(thought, True), (content.strip() if isinstance(content, str) else "", False)]
    for call in turn.message.get("tool_calls") or []:
        name = call.get("function", call).get("name")
        texts += [(name, False)] if isinstance(name, str) else []
    return [(text, is_thinking) for text, is_thinking in texts if text]
