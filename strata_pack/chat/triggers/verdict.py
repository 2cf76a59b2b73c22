"""Decides whether a prompt with a literal in it is the plain one with its texts exchanged, or another for a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strata_pack.chat.render.failures import TemplateRefused
from strata_pack.chat.triggers import probes
from strata_pack.chat.triggers.comparison import (
    SWITCH,
    is_call_syntax,
    is_layout,
    is_made_of,
    is_markup,
    is_syntax,
    words_of,
)
from strata_pack.chat.triggers.harness import SETTINGS, Harness, Rendered, RenderedShape
from strata_pack.chat.triggers.shapes import BASE, NAMES

NEUTRAL = "zqneutral"
"""A neutral word in place of a literal, to see the effect of the surrounding text alone."""

SORTED_TEXTS = frozenset(probes.SORTS.values())


SCHEMA = frozenset(
    {
        *("type", "description", "properties", "required", "items", "enum", "default", "nullable", "format", "title"),
        *("anyOf", "allOf", "oneOf", "not", "minimum", "maximum", "additionalProperties", "$ref", "$defs", "const"),
        *("object", "array", "string", "number", "integer", "boolean", "null", "minItems", "maxItems", "pattern"),
    }
)
"""Words of JSON Schema: a parameter with such a name triggers the template's processing of the schema."""


def all_tags(harness: Harness, wanted: Sequence[str]) -> bool:
    return bool(wanted) and all(
        is_markup(one) or SWITCH.fullmatch(one.strip()) or harness.vocabulary.is_tag(one) for one in wanted
    )


def is_right(
    harness: Harness,
    reference: RenderedShape,
    rendered: Rendered,
    texts: Mapping[str, str],
    wanted: Sequence[str],
    changed: Sequence[str],
) -> bool:
    """Return whether the prompt is the plain one with its texts replaced, or differs for an accepted reason."""
    if set(changed) <= NAMES and set(wanted) & SCHEMA:
        return True
    if rendered.prompt is None:
        return not isinstance(rendered.error, TemplateRefused) or not wanted or all_tags(harness, wanted)
    if is_made_of(rendered.prompt, reference.split, texts):
        return True
    for number in range(len(SETTINGS)):
        split = harness.with_setting(reference, number)
        if split is not None and is_made_of(rendered.prompt, split, texts):
            return True
    if _is_switched(harness, reference, rendered.prompt, texts, wanted):
        return True
    if not wanted or wanted[0] in SORTED_TEXTS:
        return words_of(rendered.prompt) == words_of(reference.split.prompt(texts))
    expected = reference.split.prompt(texts)
    if is_layout(harness.vocabulary, rendered.prompt, expected, texts, wanted, changed):
        return True
    if is_call_syntax(rendered.prompt, reference.split, texts, wanted, changed):
        return True
    return is_syntax(harness.vocabulary, rendered.prompt, reference.split, texts, wanted, changed)


def _is_switched(
    harness: Harness, reference: RenderedShape, prompt: str, texts: Mapping[str, str], wanted: Sequence[str]
) -> bool:
    """Return whether a command in a text (``/no_think``) has the same effect as a variable of the template."""
    commands = [one.strip() for one in wanted if SWITCH.fullmatch(one.strip())]
    if not commands:
        return False
    bare = dict(texts)
    for slot, text in texts.items():
        for command in commands:
            text = text.replace(command, "")
        bare[slot] = text if text == texts[slot] else text.strip()
    for setting in SETTINGS:
        other = harness.render(reference.shape.inputs(bare, setting)).prompt
        if other is not None and _words_without(prompt, commands) == _words_without(other, commands):
            return True
    return False


def _words_without(prompt: str, commands: Sequence[str]) -> list[str]:
    for command in commands:
        prompt = prompt.replace(command, "")
    return words_of(prompt)


def says_more(
    harness: Harness, reference: RenderedShape, prompt: str | None, texts: Mapping[str, str], wanted: Sequence[str]
) -> bool:
    """Return whether a prompt has words of unknown origin, or lacks words of a text."""
    if prompt is None:
        return False
    filled = {**BASE, **texts}
    printed = " ".join(filled[slot] for slot in reference.split.slots)
    lost = set(words_of(printed)) - set(words_of(prompt))
    lost -= set(words_of(" ".join(wanted)))
    return bool(lost or harness.vocabulary.new_words(prompt, filled.values()))


def does_nothing(
    harness: Harness, reference: RenderedShape, rendered: Rendered, plain: Mapping[str, str], wanted: Sequence[str]
) -> bool:
    """Return whether the same texts with a neutral word give the same prompt, so the literal has no effect."""
    other = harness.render(reference.shape.inputs({**BASE, **plain}))
    if other.prompt is None or rendered.prompt is None:
        return other.prompt is rendered.prompt
    return other.prompt.replace(NEUTRAL, " ".join(wanted)) == rendered.prompt
