"""Lint rules on behaviour: they render conversations and check what the prompt must contain.

These rules run the template with jinja2 under limits; a template that does not compile has no such findings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from strata_pack.chat.engines.engines import Jinja2Engine
from strata_pack.chat.lint.model import Found, Subject, rule
from strata_pack.chat.prefix.measure import check_prefix
from strata_pack.chat.prefix.session import bundled_session
from strata_pack.chat.render.start_up import START_UP, start_up_failure
from strata_pack.chat.render.template import ChatTemplate, TemplateError, TemplateLimit
from strata_pack.chat.repair.proof import Difference, baseline, compare_renders
from strata_pack.chat.repair.rules import CallForm
from strata_pack.chat.repair.suite import generate

FAMILY_MARKERS: Mapping[CallForm, tuple[str, ...]] = {
    "xml": ("<tool_call>", "<function=", "<parameter="),
    "json": ("<tool_call>",),
}
"""The strings in a template's source by which llama-server selects the parser for its calls."""

FOREIGN_MARKERS = ("<|channel|>", "dsml_token", "<|open|>")
"""Markers of other families, which llama-server checks first."""


@rule(
    "ST403", "start-up", "error", "llama-server would not start with it",
    "render user, assistant, user; a system message may be refused",
)  # fmt: skip
def refuses_start_up(subject: Subject) -> Iterator[Found]:
    template = subject.template
    if template is None:
        return
    failure = start_up_failure(template)
    if isinstance(failure, TemplateLimit):
        yield Found(f"exceeds its limits on four short messages: {failure.cause}", failure.line)
    elif failure is not None:
        yield Found(f"refuses user, assistant, user: {failure.cause}", failure.line)


@rule(
    "ST401", "family-marker", "warning", "llama-server does not know the family by the text",
    "keep the markers of the calls in the text, as in the instructions for tools",
)  # fmt: skip
def family_markers(subject: Subject) -> Iterator[Found]:
    form = subject.form
    if form is None:
        return
    missing = [marker for marker in FAMILY_MARKERS[form] if marker not in subject.source]
    if missing:
        yield Found(f"its text lacks {', '.join(missing)}, by which llama-server picks the parser for its calls")
    template = subject.template
    if template is not None and "<think>" not in subject.source and _opens_thinking(template):
        yield Found("its prompts hold <think> but its text does not, so llama-server reads no thinking")


def _opens_thinking(template: ChatTemplate) -> bool:
    try:
        return "<think>" in template.render(START_UP, add_generation_prompt=True)
    except TemplateError:
        return False


@rule(
    "ST402", "foreign-marker", "error", "llama-server takes it for another family",
    "write the marker in two halves, or leave it out",
)  # fmt: skip
def foreign_markers(subject: Subject) -> Iterator[Found]:
    if subject.form is None:
        return
    for marker in FOREIGN_MARKERS:
        for number, line in enumerate(subject.lines, 1):
            if marker in line:
                yield Found(f"holds {marker}, by which llama-server takes it for another family's", number, marker)


@rule(
    "ST501", "stranded-call", "error", "a tool call stays inside the thinking of the history",
    "run `strata-pack template repair`",
)  # fmt: skip
def stranded_calls(subject: Subject) -> Iterator[Found]:
    form = subject.form
    if form is None:
        return
    suite = [one for one in generate(form) if one.stranded]
    base = baseline(subject.source, Jinja2Engine(), suite)
    result = compare_renders(base, base.as_is)
    if isinstance(result, Difference):
        yield Found(
            "a tool call that an assistant left in its open thinking stays there, or is lost with it "
            f"(first in the conversation {result.conversation!r})"
        )


@dataclass(frozen=True)
class HistoryLoss:
    """A conversation whose prompt must contain every text in ``wanted``; ``what`` names the loss otherwise."""

    what: str
    messages: list[dict[str, Any]]
    wanted: tuple[str, ...]


def _ask(turn: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "Ask one."}, turn, {"role": "user", "content": "Ask two."}]


LOSSES: tuple[HistoryLoss, ...] = (
    HistoryLoss(
        "the text before a literal </think> in an answer",
        _ask({"role": "assistant", "content": "It starts here, </think> closes it, and it ends there."}),
        ("It starts here", "it ends there"),
    ),
    HistoryLoss(
        "a text part of a user's message",
        [{"role": "user", "content": [{"type": "text", "text": "Part one."}, {"type": "text", "text": "Part two."}]}],
        ("Part one.", "Part two."),
    ),
    HistoryLoss(
        "a user's message that holds tags",
        [{"role": "user", "content": "What is </think> and <think> for?"}],
        ("What is </think> and <think> for?",),
    ),
)


@rule(
    "ST502", "lost-text", "warning", "the history loses text",
    "do not cut answers at tags; take thinking from reasoning_content alone",
)  # fmt: skip
def lost_text(subject: Subject) -> Iterator[Found]:
    template = subject.template
    if template is None:
        return
    for loss in LOSSES:
        try:
            prompt = template.render(loss.messages, add_generation_prompt=True)
        except TemplateError:
            continue
        missing = [text for text in loss.wanted if text not in prompt]
        if missing:
            yield Found(f"loses {loss.what}: {missing[0]!r} is not in the prompt")


LATE = "Later rule number four."


@rule(
    "ST504", "late-system", "info", "a system message after the first turn is refused or dropped",
    "send such text in a user's message, or let the gateway move it",
)  # fmt: skip
def late_system(subject: Subject) -> Iterator[Found]:
    """Find templates that refuse or drop a system message after the first turn (agents send reminders so)."""
    template = subject.template
    if template is None or not _renders(template, START_UP):
        return
    late = [*START_UP[:-1], {"role": "system", "content": LATE}, START_UP[-1]]
    try:
        prompt = template.render(late, add_generation_prompt=True)
    except TemplateError as error:
        yield Found(f"does not take a system message after the first turn: {error.cause}", error.line)
        return
    if LATE not in prompt:
        yield Found("drops a system message after the first turn without a word", severity="warning")


def _renders(template: ChatTemplate, messages: list[dict[str, Any]]) -> bool:
    try:
        template.render(messages, add_generation_prompt=True)
    except TemplateError:
        return False
    return True


@rule(
    "ST503", "unstable-prefix", "warning", "a prompt is not the beginning of the next one",
    "see `strata-pack template prefix`",
)  # fmt: skip
def unstable_prefix(subject: Subject) -> Iterator[Found]:
    template = subject.template
    if template is None or subject.form is None:
        return
    try:
        run = check_prefix(template, bundled_session(), ["kept"]).run("kept")
    except TemplateError:
        return
    first = next((step.broken for step in run.steps if step.broken is not None), None)
    if first is not None:
        broken = sum(step.broken is not None for step in run.steps)
        yield Found(
            f"{broken} of {len(run.steps)} prompts of an agent's session do not extend the previous one, although the "
            f"client sends everything back: {first.why}; {run.again:,} characters are read again"
        )


RULES = (family_markers, foreign_markers, refuses_start_up, stranded_calls, lost_text, unstable_prefix, late_system)
