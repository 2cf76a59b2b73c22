"""Renders the template under search and keeps what all its renderings looked for."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from strata_pack.chat.render.budget import RenderLimits
from strata_pack.chat.render.failures import TemplateError
from strata_pack.chat.triggers.judge import Split, TemplateWords, shown, split_prompt
from strata_pack.chat.triggers.literals import numbers
from strata_pack.chat.triggers.recording import LARGEST_NUMBER, RecordedTemplate, Seen
from strata_pack.chat.triggers.shapes import BASE, FORMS, ConversationShape, candidates

TriggerKind = Literal["appears", "vanishes", "changes", "refused", "count", "date", "unreached", "cut", "command"]

WARNINGS = frozenset({"unreached", "cut", "command"})
"""What may well be meant so, or a mistake: a text that nothing reached, a text cut at a tag of any role's, and a tag of
a set of them that each stand for an instruction in the user's own turn."""

FEW_NUMBERS = 24

PROBE = RenderLimits(steps=30_000, text_chars=4 << 20, made_chars=64 << 20)
"""What one rendering may cost: a template that goes through every character of a long text is not worth more."""

SETTINGS: tuple[Mapping[str, Any], ...] = (
    {},
    {"enable_thinking": True},
    {"enable_thinking": False},
    {"thinking": True},
    {"thinking": False},
    {"preserve_thinking": False},
    {"reasoning_effort": "low"},
    {"reasoning_effort": "high"},
    {"add_generation_prompt": False},
)
"""The variables that users set: what they switch, a text may switch, too."""

AS_PYTHON = re.compile(r"\{'[a-z_]+': ['\[{]")
"""An object printed as Python writes it, whose quotes depend on the text in it."""

_SAID: Mapping[TriggerKind, str] = {
    "appears": "makes a text appear",
    "vanishes": "makes a text vanish",
    "changes": "changes the text",
    "refused": "makes the template refuse the conversation",
    "count": "makes a text appear",
    "date": "changes the prompt",
    "unreached": "makes a text appear",
    "cut": "makes a text vanish",
    "command": "stands for another text",
}


@dataclass(frozen=True)
class Trigger:
    """What a template does on a trigger. ``trigger`` is what must be in the conversation and where; ``text`` is what
    appears, vanishes or is changed; ``line`` that of the condition, ``None`` where it is not known."""

    kind: TriggerKind
    trigger: str
    text: str
    line: int | None

    @property
    def is_error(self) -> bool:
        """Whether a template that does so must not be used unseen; else it is a warning."""
        return self.kind not in WARNINGS

    def sentence(self) -> str:
        """Return what to say about it."""
        return f"{self.trigger} {_SAID[self.kind]}: {shown(self.text)!r}"


@dataclass(frozen=True)
class Rendered:
    """What one rendering gave: ``prompt``, or why there is none, and what it looked for."""

    prompt: str | None
    error: TemplateError | None
    seen: Seen


@dataclass(frozen=True)
class RenderedShape:
    """A shape that the template renders, its prompt taken apart, and what it looked for on the way."""

    shape: ConversationShape
    split: Split
    seen: Seen


@dataclass(frozen=True)
class SearchLimits:
    """What the search of one template may cost: rendered conversations, and seconds of this thread's processor time."""

    renders: int = 6_000
    seconds: float = 10.0


class Workbench:
    """``stages`` are the shapes that the template renders, ``vocabulary`` is what it writes in them; ``cut_short`` says
    whether something was left out because the limits were spent."""

    def __init__(self, source: str, limits: SearchLimits) -> None:
        self.source = source
        self.template = RecordedTemplate(source, PROBE)
        self.cut_short = False
        self._limits = limits
        self._share = 1.0
        self._started = time.thread_time()
        self.everything = Seen()
        self.renders = 0
        self.stages = [stage for name in FORMS if (stage := self._stage(name)) is not None]
        self._settings: dict[tuple[str, int], Split | None] = {}
        splits = [self.with_setting(stage, number) for stage in self.stages for number in range(len(SETTINGS))]
        self.vocabulary = TemplateWords.of(split for split in splits if split is not None)

    def allow(self, share: float) -> None:
        """Let the search go on until ``share`` (0 to 1) of its limits is spent."""
        self._share = share

    def spent(self) -> bool:
        """Return whether what is allowed is spent; ``cut_short`` says from then on that something was not tried."""
        seconds = time.thread_time() - self._started
        rendered, lasted = self.renders / self._limits.renders, seconds / self._limits.seconds
        if max(rendered, lasted) < self._share:
            return False
        self.cut_short = True
        return True

    @property
    def numbers(self) -> list[int]:
        """The numbers that sizes are compared with: those that stand in the template, and those met, if they are few
        (a template that computes with characters meets many)."""
        met = self.everything.numbers if len(self.everything.numbers) <= FEW_NUMBERS else ()
        return sorted({number for number in (*numbers(self.template.tree), *met) if number <= LARGEST_NUMBER})

    def render(
        self,
        inputs: Mapping[str, Any],
        *,
        forced: Mapping[int, bool] | None = None,
        now: datetime | str | None = None,
    ) -> Rendered:
        """Render and keep what was looked for."""
        self.renders += 1
        prompt, error = None, None
        try:
            prompt, _ = self.template.render(inputs, forced=forced, now=now)
        except TemplateError as failed:
            error = failed
        seen = self.template.last_seen
        if forced is None:
            self._keep(seen)
        return Rendered(prompt, error, seen)

    def _keep(self, seen: Seen) -> None:
        everything = self.everything
        everything.reached |= seen.reached
        everything.asked_the_time |= seen.asked_the_time
        everything.turned_round |= seen.turned_round
        for number, line in seen.numbers.items():
            everything.numbers.setdefault(number, line)
        for place, line in seen.cuts.items():
            everything.cuts.setdefault(place, line)
        for mine, new in ((everything.separators, seen.separators), (everything.texts, seen.texts)):
            for text, line in new.items():
                mine.setdefault(text, line)

    def with_setting(self, stage: RenderedShape, number: int) -> Split | None:
        """Return the prompt of ``stage`` with a setting of the variables, taken apart; ``None`` if there is none."""
        key = (stage.shape.name, number)
        if key not in self._settings:
            prompt = self.render(stage.shape.inputs(BASE, SETTINGS[number])).prompt
            self._settings[key] = None if prompt is None else split_prompt(prompt)
        return self._settings[key]

    def _stage(self, name: str) -> RenderedShape | None:
        for shape in candidates(name):
            rendered = self.render(shape.inputs(BASE))
            if rendered.prompt is not None and not AS_PYTHON.search(rendered.prompt):
                return RenderedShape(shape, split_prompt(rendered.prompt), rendered.seen)
        return None

    def stage(self, names: Sequence[str]) -> RenderedShape | None:
        """Return the first stage that is called one of ``names``."""
        found = {stage.shape.name: stage for stage in self.stages}
        return next((found[name] for name in names if name in found), None)
