"""Defines the result of a measurement as values: breaks of the prefix, steps from turn to turn, runs in each mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict

from strata_pack.chat.prefix.cause import Cause
from strata_pack.chat.prefix.session import Session

ModeName = Literal["kept", "dropped", "stripped"]

WINDOW = 120
"""Characters shown around a break."""


@dataclass(frozen=True)
class Mode:
    """A mode of a session: what the client sends back, and the variables it sets for the template."""

    name: ModeName
    title: str
    variables: Mapping[str, Any]
    strips: bool


MODES: Mapping[ModeName, Mode] = {
    mode.name: mode
    for mode in (
        Mode(
            "kept", "thinking kept: sent back by the client, preserve_thinking on", {"preserve_thinking": True}, False
        ),
        Mode("dropped", "thinking dropped: sent back, preserve_thinking off", {"preserve_thinking": False}, False),
        Mode("stripped", "thinking stripped: the client does not send it back", {}, True),
    )
}


class BreakDict(TypedDict):
    """A ``Break`` as JSON."""

    at: int
    turn: int | None
    cause: str
    why: str
    remedy: str
    before: str
    cached: str
    sent: str


TurnStepDict = TypedDict(
    "TurnStepDict",
    {
        "turn": int,
        "title": str,
        "prompt": int,
        "new": int,
        "again": int,
        "tokens": NotRequired[dict[str, int | None]],
        "break": BreakDict | None,
    },
)
"""A ``TurnStep`` as JSON."""


class RunDict(TypedDict):
    """A ``Run`` as JSON."""

    mode: ModeName
    title: str
    stable: bool
    new: int
    again: int
    again_without_cutting: int
    tokens: NotRequired[dict[str, int | None]]
    steps: list[TurnStepDict]


class PrefixReportDict(TypedDict):
    """A ``PrefixReport`` as JSON."""

    session: str
    messages: int
    template_sha256: str
    honours_preserve_thinking: bool
    unit: Literal["characters"]
    runs: list[RunDict]


@dataclass(frozen=True)
class Break:
    """The first difference between the cache and the next prompt. ``cached`` and ``sent`` are the two texts from
    there on; ``turn`` is the number of the assistant turn that is written differently, None if the break is outside
    all turns."""

    at: int
    before: str
    cached: str
    sent: str
    turn: int | None
    cause: Cause

    @property
    def why(self) -> str:
        """The cause as a sentence on this break."""
        return self.cause.why.format(turn=self.turn)

    def to_dict(self) -> BreakDict:
        """Return the break as JSON, with the surrounding part of both texts."""
        return {
            "at": self.at,
            "turn": self.turn,
            "cause": self.cause.id,
            "why": self.why,
            "remedy": self.cause.remedy,
            "before": self.before[-WINDOW:],
            "cached": self.cached[:WINDOW],
            "sent": self.sent[:WINDOW],
        }


@dataclass(frozen=True)
class TurnStep:
    """The step from one assistant turn to the next prompt. Lengths are in characters, and in tokens with a tokenizer.

    ``cached`` is the length of the cache after the turn, ``following`` that of the next prompt; ``fresh`` is its part
    that no cache could contain, ``again`` its part that was in the cache and must be processed again.
    """

    turn: int
    title: str
    cached: str
    following: str
    fresh: int
    again: int
    broken: Break | None
    prompt_tokens: int | None = None
    fresh_tokens: int | None = None
    again_tokens: int | None = None

    @property
    def prompt(self) -> int:
        """The length of the next prompt."""
        return len(self.following)

    def to_dict(self) -> TurnStepDict:
        tokens = {"prompt": self.prompt_tokens, "new": self.fresh_tokens, "again": self.again_tokens}
        found: TurnStepDict = {
            "turn": self.turn,
            "title": self.title,
            "prompt": self.prompt,
            "new": self.fresh,
            "again": self.again,
            "break": None if self.broken is None else self.broken.to_dict(),
        }
        if self.prompt_tokens is not None:
            found["tokens"] = tokens
        return found


@dataclass(frozen=True)
class Run:
    """A session in one mode."""

    mode: Mode
    steps: tuple[TurnStep, ...]

    @property
    def stable(self) -> bool:
        """Whether every prompt starts with the cached text."""
        return not any(step.broken for step in self.steps)

    @property
    def fresh(self) -> int:
        """New characters that must be processed in any case, after the first prompt."""
        return sum(step.fresh for step in self.steps)

    @property
    def again(self) -> int:
        """Characters that were processed again."""
        return sum(step.again for step in self.steps)

    @property
    def whole(self) -> int:
        """Characters processed again by a server that cannot truncate its cache and drops all of it at a break, as for
        models with recurrent layers."""
        return sum(step.prompt - step.fresh for step in self.steps if step.broken)

    @property
    def fresh_tokens(self) -> int | None:
        return _total(step.fresh_tokens for step in self.steps)

    @property
    def again_tokens(self) -> int | None:
        return _total(step.again_tokens for step in self.steps)

    def to_dict(self) -> RunDict:
        tokens = None if self.fresh_tokens is None else {"new": self.fresh_tokens, "again": self.again_tokens}
        found: RunDict = {
            "mode": self.mode.name,
            "title": self.mode.title,
            "stable": self.stable,
            "new": self.fresh,
            "again": self.again,
            "again_without_cutting": self.whole,
            "steps": [step.to_dict() for step in self.steps],
        }
        if tokens is not None:
            found["tokens"] = tokens
        return found


def _total(values: Iterator[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


@dataclass(frozen=True)
class PrefixReport:
    """The cost of the modes with one template. ``honours_preserve``: the template reads preserve_thinking."""

    session: Session
    template_sha256: str
    honours_preserve: bool
    runs: tuple[Run, ...]

    def run(self, mode: ModeName) -> Run:
        """Return the run in ``mode``."""
        return next(run for run in self.runs if run.mode.name == mode)

    def to_dict(self) -> PrefixReportDict:
        return {
            "session": self.session.name,
            "messages": len(self.session.messages),
            "template_sha256": self.template_sha256,
            "honours_preserve_thinking": self.honours_preserve,
            "unit": "characters",
            "runs": [run.to_dict() for run in self.runs],
        }
