"""Renders the template under search and collects what its renderings tested."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from strata_pack.chat.render.budget import RenderLimits
from strata_pack.chat.render.failures import TemplateError
from strata_pack.chat.triggers.comparison import Split, TemplateWords, shown, split_prompt
from strata_pack.chat.triggers.literals import numbers
from strata_pack.chat.triggers.recording import LARGEST_NUMBER, RecordedTemplate, Seen
from strata_pack.chat.triggers.shapes import BASE, FORMS, ConversationShape, candidates

TriggerKind = Literal[
    "appears", "vanishes", "changes", "refused", "count", "structure", "feature", "date", "unreached", "cut", "command"
]

WARNINGS = frozenset({"unreached", "cut", "command", "feature"})
"""Kinds that are warnings, because they may be intended or a mistake: a text in an unreached branch, a text cut at a
tag, one of several tags that are each replaced by an instruction in the user's turn, and a text about something that
few conversations have."""

FEW_NUMBERS = 24

PROBE = RenderLimits(steps=30_000, text_chars=4 << 20, made_chars=64 << 20)
"""Limits of one rendering; low, because a template may iterate over every character of a long text."""

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
"""The variables that users set; a command in a text may have the same effect."""

AS_PYTHON = re.compile(r"\{'[a-z_]+': ['\[{]")
"""A dict as Python prints it, whose quotes depend on the text in it."""

_SAID: Mapping[TriggerKind, str] = {
    "appears": "makes a text appear",
    "vanishes": "makes a text vanish",
    "changes": "changes the text",
    "refused": "makes the template refuse the conversation",
    "count": "makes a text appear",
    "structure": "makes a text appear",
    "feature": "makes a text appear",
    "date": "changes the prompt",
    "unreached": "makes a text appear",
    "cut": "makes a text vanish",
    "command": "stands for another text",
}


@dataclass(frozen=True)
class Trigger:
    """The effect of a trigger. ``trigger`` describes what must be in the conversation and where; ``text`` is what
    appears, vanishes or changes; ``line`` is that of the condition, ``None`` if unknown."""

    kind: TriggerKind
    trigger: str
    text: str
    line: int | None

    @property
    def is_error(self) -> bool:
        """Whether it is an error (the template must not be used without review), not a warning."""
        return self.kind not in WARNINGS

    def sentence(self) -> str:
        """Return the sentence for a message."""
        return f"{self.trigger} {_SAID[self.kind]}: {shown(self.text)!r}"


@dataclass(frozen=True)
class Rendered:
    """The result of one rendering: ``prompt`` or the error, and what was tested."""

    prompt: str | None
    error: TemplateError | None
    seen: Seen


@dataclass(frozen=True)
class RenderedShape:
    """A rendered shape, its prompt split into constants and slots, and what was tested."""

    shape: ConversationShape
    split: Split
    seen: Seen


@dataclass(frozen=True)
class SearchLimits:
    """Limits of the search of one template: rendered conversations, and seconds of this thread's CPU time."""

    renders: int = 6_000
    seconds: float = 10.0


class Harness:
    """Renders conversations for the search. ``references`` are the shapes rendered with plain texts, with which all
    others are compared, ``vocabulary`` the template's own words in them; ``cut_short`` says whether something was
    skipped because the limits were spent."""

    def __init__(self, source: str, limits: SearchLimits) -> None:
        self.source = source
        self.template = RecordedTemplate(source, PROBE)
        self.cut_short = False
        self._limits = limits
        self._share = 1.0
        self._started = time.thread_time()
        self.everything = Seen()
        self.renders = 0
        self.references = [reference for name in FORMS if (reference := self._reference(name)) is not None]
        self._settings: dict[tuple[str, int], Split | None] = {}
        splits = [
            self.with_setting(reference, number) for reference in self.references for number in range(len(SETTINGS))
        ]
        self.vocabulary = TemplateWords.of(split for split in splits if split is not None)

    def allow(self, share: float) -> None:
        """Allow the search to spend up to ``share`` (0 to 1) of its limits."""
        self._share = share

    def spent(self) -> bool:
        """Return whether the allowed share is spent; if so, set ``cut_short``."""
        seconds = time.thread_time() - self._started
        rendered, lasted = self.renders / self._limits.renders, seconds / self._limits.seconds
        if max(rendered, lasted) < self._share:
            return False
        self.cut_short = True
        return True

    @property
    def numbers(self) -> list[int]:
        """The numbers that sizes are compared with: those in the template's source, and those recorded, if they are
        few (a template that computes with characters yields many)."""
        met = self.everything.numbers if len(self.everything.numbers) <= FEW_NUMBERS else ()
        return sorted({number for number in (*numbers(self.template.tree), *met) if number <= LARGEST_NUMBER})

    def render(
        self,
        inputs: Mapping[str, Any],
        *,
        forced: Mapping[int, bool] | None = None,
        now: datetime | str | None = None,
    ) -> Rendered:
        """Render, and collect what was tested."""
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
        everything.steps |= seen.steps
        for number, line in seen.numbers.items():
            everything.numbers.setdefault(number, line)
        for place, line in seen.cuts.items():
            everything.cuts.setdefault(place, line)
        for mine, new in ((everything.separators, seen.separators), (everything.texts, seen.texts)):
            for text, line in new.items():
                mine.setdefault(text, line)

    def with_setting(self, reference: RenderedShape, number: int) -> Split | None:
        """Return the prompt of ``reference`` with setting ``number`` of the variables, split; ``None`` if it does not
        render."""
        key = (reference.shape.name, number)
        if key not in self._settings:
            prompt = self.render(reference.shape.inputs(BASE, SETTINGS[number])).prompt
            self._settings[key] = None if prompt is None else split_prompt(prompt)
        return self._settings[key]

    def _reference(self, name: str) -> RenderedShape | None:
        for shape in candidates(name):
            rendered = self.render(shape.inputs(BASE))
            if rendered.prompt is not None and not AS_PYTHON.search(rendered.prompt):
                return RenderedShape(shape, split_prompt(rendered.prompt), rendered.seen)
        return None

    def reference(self, names: Sequence[str]) -> RenderedShape | None:
        """Return the first reference whose name is in ``names``."""
        found = {reference.shape.name: reference for reference in self.references}
        return next((found[name] for name in names if name in found), None)
