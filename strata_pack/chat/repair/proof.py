"""Proves a repair: renders every generated conversation with the stock and the repaired template on every engine.

``rules.heal`` gives the *healed* messages of a conversation. For every conversation, the repaired template must give,
byte for byte, what the stock template gives for the healed conversation. Without a stranded call, healing changes
nothing, so the prompt must not change. With a stranded call, the call must be rendered as content, outside the
thinking.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from strata_pack.chat.engines.engines import Engine
from strata_pack.chat.render.template import TemplateError, TemplateRefused
from strata_pack.chat.repair.suite import Conversation
from strata_pack.chat.repair.turns import FENCED
from strata_pack.parsing.dialect import CALL_CLOSE, CALL_OPEN, THINK_CLOSE, THINK_OPEN

RenderOutcome = tuple[Literal["prompt", "refused", "failed"], str]
"""The result of a rendering: a prompt, the template's refusal, or an error of the template (its text may differ)."""


@dataclass(frozen=True)
class Difference:
    """The first conversation that a template does not render as required. ``wanted`` and ``got`` are prompts."""

    engine: str
    conversation: str
    stranded: bool
    problem: str
    wanted: str
    got: str

    def __str__(self) -> str:
        return f"on {self.engine}, conversation {self.conversation!r}: {self.problem}"


class EngineProofDict(TypedDict):
    """An ``EngineProof`` as JSON."""

    engine: str
    version: str
    unchanged: int
    closed: int
    refused: int


@dataclass(frozen=True)
class EngineProof:
    """The proof on one engine: the number of ``unchanged`` conversations without a stranded call, of ``closed`` ones
    with one, and of ``refused`` ones, which the stock template does not render either (it may refuse parts, for
    example)."""

    engine: str
    version: str
    unchanged: int
    closed: int
    refused: int

    def to_dict(self) -> EngineProofDict:
        return {
            "engine": self.engine,
            "version": self.version,
            "unchanged": self.unchanged,
            "closed": self.closed,
            "refused": self.refused,
        }


CONTINUES_ITSELF = ("transformers",)
"""Engines that do not pass ``continue_final_message`` to the template, but truncate the prompt after the last text: the
template cannot know that a turn is continued, so such conversations are skipped."""


@dataclass(frozen=True)
class Baseline:
    """The results of the stock template on one engine: for each conversation and, if it is stranded, its healed
    form."""

    engine: Engine
    suite: list[Conversation]
    as_is: list[RenderOutcome]
    healed: list[RenderOutcome]


def baseline(stock: str, engine: Engine, conversations: Sequence[Conversation]) -> Baseline:
    """Render every conversation that the engine passes to templates with the template ``stock``."""
    blind = engine.name in CONTINUES_ITSELF
    suite = [one for one in conversations if not (blind and one.variables.get("continue_final_message"))]
    rendered: dict[str, RenderOutcome] = {}

    def once(inputs: dict[str, Any]) -> RenderOutcome:
        # Many stranded conversations have the same healed form.
        key = json.dumps(inputs)
        if key not in rendered:
            rendered[key] = render(engine, stock, inputs)
        return rendered[key]

    as_is = [once(one.inputs()) for one in suite]
    healed = [
        once(one.inputs(one.healed)) if one.stranded else outcome for one, outcome in zip(suite, as_is, strict=True)
    ]
    return Baseline(engine, suite, as_is, healed)


def render(engine: Engine, source: str, inputs: dict[str, Any]) -> RenderOutcome:
    """Return the result of ``engine`` for ``inputs``; only an unavailable engine raises."""
    try:
        return "prompt", engine.render(source, inputs)
    except TemplateRefused as refused:
        return "refused", refused.message
    except TemplateError:
        return "failed", ""


def prove_repair(base: Baseline, repaired: str) -> EngineProof | Difference:
    """Render the suite with the template ``repaired`` up to the first difference, and return that."""
    return compare_renders(base, (render(base.engine, repaired, one.inputs()) for one in base.suite))


def compare_renders(base: Baseline, results: Iterable[RenderOutcome]) -> EngineProof | Difference:
    """Compare ``results``, one for each conversation, with the stock template's results for the healed messages."""
    unchanged = closed = refused = 0
    for one, wanted, got in zip(base.suite, base.healed, results, strict=True):
        problem = _problem(one, wanted, got)
        if problem is not None:
            return Difference(base.engine.name, one.name, one.stranded, problem, wanted[1], got[1])
        if got[0] != "prompt":
            refused += 1
        elif one.stranded:
            closed += 1
        else:
            unchanged += 1
    return EngineProof(base.engine.name, base.engine.version, unchanged, closed, refused)


_OUTCOMES = {"prompt": "renders", "refused": "is refused by the template", "failed": "fails in the template"}


def _problem(one: Conversation, wanted: RenderOutcome, got: RenderOutcome) -> str | None:
    if got[0] != wanted[0]:
        return f"it {_OUTCOMES[got[0]]}, where it {_OUTCOMES[wanted[0]]} without the repair"
    if got != wanted:
        place = next((i for i, (a, b) in enumerate(zip(wanted[1], got[1], strict=False)) if a != b), -1)
        state = "not rendered as if its call stood in the content" if one.stranded else "changed by the repair"
        return f"it is {state}, from character {place} on"
    if got[0] == "prompt":
        for call in one.moved:
            if call.text not in got[1]:
                return "the call is not in the prompt"
            if inside_thinking(got[1], call.text, call.after):
                return "the call stands inside the thinking"
    return None


def inside_thinking(prompt: str, text: str, after: str) -> bool:
    """Return whether ``text`` is in ``prompt`` between ``<think>`` and ``</think>``; only the tags after the text
    ``after``, in the same turn, matter."""
    position = prompt.index(text)
    start = prompt.rfind(after, 0, position)
    turn = prompt[start + len(after) if start >= 0 else 0 : position]
    return turn.rfind(THINK_OPEN) > turn.rfind(THINK_CLOSE)


def moved_mentions(base: Baseline) -> str | None:
    """Return a warning if the template itself moves calls out of the thinking that are only quoted in a code fence, so
    that the history shows calls that were never made; ``None`` if it does not."""
    for one, outcome in zip(base.suite, base.as_is, strict=True):
        kind = one.name.partition(",")[0]
        if kind not in FENCED or outcome[0] != "prompt":
            continue
        for index, message in enumerate(one.messages):
            call = quoted_call(message)
            if call is None or call not in outcome[1]:
                continue
            if not inside_thinking(outcome[1], call, one.messages[index - 1]["content"]):
                return (
                    "the template itself moves fenced mentions: a call that the thinking only quotes in a code fence "
                    f"appears as a real call ({base.engine.name}, conversation {one.name!r})"
                )
    return None


def quoted_call(message: Any) -> str | None:
    """Return the first complete call in an assistant's ``reasoning_content``."""
    reasoning = message.get("reasoning_content")
    if message.get("role") != "assistant" or not isinstance(reasoning, str) or CALL_OPEN not in reasoning:
        return None
    start = reasoning.index(CALL_OPEN)
    end = reasoning.find(CALL_CLOSE, start)
    return reasoning[start : end + len(CALL_CLOSE)] if end >= 0 else None
