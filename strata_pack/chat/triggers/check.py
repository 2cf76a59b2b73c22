"""Finds text that a template adds or hides only if a conversation contains a trigger.

The search runs the template and records the literals, lengths and counts that it tests. It puts each of them, and texts
of many kinds, into every text of small conversations, and varies the number of turns, tools and calls and the date. It
reports a prompt that differs from the plain prompt in more than the inserted texts, unless the difference has an
accepted reason (see ``comparison``). Branches on a text that no conversation reached are forced. Each method has a
share of the search's limits, so that later ones always get some.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from strata_pack.chat.triggers import probes
from strata_pack.chat.triggers.comparison import difference, is_command, is_cut, words_of
from strata_pack.chat.triggers.harness import Harness, Rendered, RenderedShape, SearchLimits, Trigger
from strata_pack.chat.triggers.literals import literals, together
from strata_pack.chat.triggers.shapes import BASE, NAMES, WHERE
from strata_pack.chat.triggers.structures import by_structure, in_labels
from strata_pack.chat.triggers.variations import counted, dated, dated_and_said, forced
from strata_pack.chat.triggers.verdict import NEUTRAL, SORTED_TEXTS, all_tags, does_nothing, is_right, says_more

__all__ = ["Search", "SearchLimits", "Trigger", "search_triggers"]

MOST_LITERALS = 250
MOST_COMBINED = 60
MOST_FOUND = 12
FEWEST_COMMANDS = 3
MOST_JOINED = 4
"""Maximum number of literals that are combined in one text."""

MOST_SEPARATORS = 8
MOST_SIZES = 40
LEEWAY = 8
"""Characters beyond its length from which ``truncate`` cuts a text."""

COMMON_LENGTHS = (100, 1000)
MOST_WORDS = 3000
EVERY_LENGTH = 24
"""All lengths up to this one are tried, for conditions on remainders."""

QUICK = frozenset({"a chat", "an agent's turns", "a question in parts"})
THOROUGH = QUICK | {"a tool's result last", "a question"}
"""The shapes in which every text is tried, and the larger set in which a literal is."""


Fill = Callable[[str], str]
"""The text for a slot, by the slot's name."""


@dataclass(frozen=True)
class Search:
    """The triggers found in a template, by line. ``finished`` is False if the limits ended the search before everything
    was tried; then an empty result is weaker evidence."""

    triggers: tuple[Trigger, ...]
    finished: bool

    @property
    def errors(self) -> tuple[Trigger, ...]:
        """The triggers that are errors, not warnings."""
        return tuple(trigger for trigger in self.triggers if trigger.is_error)


NOT_FINISHED = "the template is large or slow: triggers were not searched to the end"


@functools.lru_cache(maxsize=16)
def search_triggers(source: str, limits: SearchLimits = SearchLimits()) -> Search:  # noqa: B008
    """Return the triggers in the template ``source``, and whether everything was tried.

    Raises ``TemplateError`` if it does not compile. A template that renders none of the conversations has no findings.
    """
    harness = Harness(source, limits)
    found: dict[tuple[int | None, str], Trigger] = {}
    for trigger in _search(harness):
        known = found.get((trigger.line, trigger.text))
        if known is None or (known.kind == "command" and trigger.is_error):
            found[trigger.line, trigger.text] = trigger
        if len(found) >= MOST_FOUND:
            break
    by_line = sorted(_commands_alike(found.values()), key=lambda one: (one.line is None, one.line or 0, one.trigger))
    return Search(tuple(by_line), not harness.cut_short)


def _commands_alike(triggers: Iterable[Trigger]) -> Iterator[Trigger]:
    """Yield the triggers. A tag that is replaced by a text is an error, unless the template has several such tags with
    different texts: those are commands documented for users, while a single one may be a trap."""
    found = list(triggers)
    texts = {trigger.text for trigger in found if trigger.kind == "command"}
    for trigger in found:
        alone = trigger.kind == "command" and len(texts) < FEWEST_COMMANDS
        yield replace(trigger, kind="changes") if alone else trigger


def _search(harness: Harness) -> Iterator[Trigger]:
    if not harness.references:
        return
    for share, look in WAYS:
        harness.allow(share)
        yield from look(harness)


def _always_changed(harness: Harness) -> Iterator[Trigger]:
    """Yield a finding if a user's text is changed in the prompt without any trigger."""
    printed = {slot for reference in harness.references for slot in reference.split.slots}
    if {"first", "second"} & printed:
        return
    reference = harness.references[0]
    prompt = harness.render(reference.shape.inputs(BASE)).prompt or ""
    slot = next(slot for slot in ("second", "first") if slot in reference.shape.slots)
    kept = [word for word in words_of(BASE[slot]) if word.lower() in prompt.lower()]
    if len(kept) > 1:
        yield Trigger("changes", WHERE[slot], prompt, None)


# Literals.


def _by_literals(harness: Harness) -> Iterator[Trigger]:
    """Try every literal, further literals found by that, and combinations of literals of which one leads to the
    other."""
    lines = literals(harness.template.tree)
    at_first = {text for reference in harness.references for text in reference.seen.texts}
    queue: dict[tuple[str, ...], None] = {}
    for text in (*lines, *sorted(at_first)):
        seen = harness.everything
        for one in (text, *probes.undone(text, harness.source, turned_round=seen.turned_round, steps=seen.steps)):
            if not probes.is_blank(one):
                queue.setdefault((one,))
    for wanted in together(harness.template.tree):
        if len(wanted) <= MOST_JOINED and not all_tags(harness, wanted):
            queue.setdefault(wanted)
            queue.setdefault(wanted[::-1])
    done = combined = 0
    while done < len(queue) and not harness.spent():
        if done == MOST_LITERALS:
            harness.cut_short = True
            return
        wanted = list(queue)[done]
        done += 1
        met: set[str] = set()
        line = next((lines[one] for one in wanted if one in lines), None)
        yield from _with(harness, wanted, line, met)
        for text in sorted(met - at_first - set(wanted)):
            if not probes.is_blank(text) and not any(text in one or one in text for one in wanted):
                queue.setdefault((text,))
                if len(wanted) < MOST_JOINED and combined < MOST_COMBINED and not all_tags(harness, wanted):
                    queue.setdefault((*wanted, text))
                    combined += 1


def _with(harness: Harness, wanted: tuple[str, ...], line: int | None, met: set[str]) -> Iterator[Trigger]:
    shown = " and ".join(map(repr, wanted))
    found = False
    for trigger in _in_texts(harness, wanted, shown, line, met):
        found = True
        yield trigger
    if not found:
        yield from in_labels(harness, wanted, shown, line)


def _in_texts(
    harness: Harness, wanted: tuple[str, ...], shown: str, line: int | None, met: set[str]
) -> Iterator[Trigger]:
    for place in probes.PLACES:
        fill = functools.partial(probes.placed, wanted, place=place)
        yield from _everywhere(
            harness,
            fill,
            wanted,
            shown,
            line=line,
            names=fill,
            quick=place == "alone",
            met=met,
            plain=functools.partial(probes.placed, (NEUTRAL,), place=place),
        )
    if len(wanted) > 1:
        for turned in (wanted, wanted[::-1]):
            order = {slot: turned[number % len(turned)] for number, slot in enumerate(BASE)}
            yield from _everywhere(
                harness, order.__getitem__, wanted, shown, line=line, quick=True, met=met, mixed=True
            )
        return
    for separator in list(harness.everything.separators)[:MOST_SEPARATORS]:
        if separator != wanted[0] and not all_tags(harness, wanted):
            yield from _everywhere(
                harness,
                functools.partial(probes.separated, wanted[0], separator),
                wanted,
                shown,
                line=line,
                quick=True,
                plain=functools.partial(probes.separated, NEUTRAL, separator),
            )
    if wanted[0] in harness.everything.separators:
        for count in sorted({n + more for n in harness.numbers if 0 < n <= 30 for more in (0, 1)}):
            text = probes.repeated(wanted[0], count)
            yield from _everywhere(harness, _same(text), wanted, f"{shown}, {count} times", line=line, quick=True)


def _by_places(harness: Harness) -> Iterator[Trigger]:
    """Try the literals that slices of a text are compared with, at the positions of the slices."""
    tried: set[str] = set()
    for _ in range(MOST_LITERALS):
        cuts = [(start, text) for start, text in harness.everything.cuts if text]
        by_place: dict[int, str] = {}
        for start, text in cuts:
            by_place.setdefault(start, text)
        texts = [probes.at_places({start: text}) for start, text in cuts] + [probes.at_places(by_place)]
        new = [text for text in texts if text.strip() and text not in tried]
        if not new or harness.spent():
            return
        tried.add(new[-1])
        yield from _everywhere(harness, _same(new[-1]), [new[-1]], repr(new[-1]), quick=True)


# Sizes.


def _by_sizes(harness: Harness) -> Iterator[Trigger]:
    near = {number + step for number in harness.numbers[-MOST_SIZES:] for step in (-1, 0, 1)}
    far = {number + LEEWAY for number in harness.numbers[-MOST_SIZES:]}
    sizes = sorted(size for size in {*near, *far, *COMMON_LENGTHS, *range(1, EVERY_LENGTH)} if size > 0)
    for size in sizes:
        if size in near:
            yield from _everywhere(harness, _same(str(size)), [], f"the number {size}", quick=True)
        for what, make, most in (
            ("characters", probes.of_length, 1 << 20),
            ("words", probes.of_words, MOST_WORDS),
            ("lines", probes.of_lines, MOST_WORDS),
        ):
            if size <= most and (what == "characters" or size in near):
                text = make(size)
                title = f"a text of {size} {what}"
                yield from _everywhere(harness, _same(text), [], title, quick=True)


def _by_sorts(harness: Harness) -> Iterator[Trigger]:
    for title, text in probes.SORTS.items():
        yield from _everywhere(harness, _same(text), [text], title)


# One text in every slot, and who did it.


def _same(text: str) -> Fill:
    return lambda _slot: text


def _everywhere(
    harness: Harness,
    text_of: Fill,
    wanted: Sequence[str],
    title: str,
    *,
    line: int | None = None,
    names: Fill | None = None,
    quick: bool = False,
    met: set[str] | None = None,
    plain: Fill | None = None,
    mixed: bool = False,
) -> Iterator[Trigger]:
    """Put a text into every slot of the shapes; if the prompt is wrong, find the slots that cause it.

    Names are filled apart from texts, or with ``mixed`` together with them.
    """
    for reference in harness.references:
        if harness.spent():
            return
        if reference.shape.name not in (QUICK if quick else THOROUGH):
            continue
        agent = reference.shape.name == "an agent's turns"
        for fill, is_name in ((text_of, False), (names, True)):
            slots = [slot for slot in reference.shape.slots if (mixed and agent) or (slot in NAMES) is is_name]
            if fill is None or not slots or (is_name and (not agent or mixed)):
                continue
            texts = {slot: fill(slot) for slot in slots}
            rendered = harness.render(reference.shape.inputs({**BASE, **texts}))
            if met is not None:
                met |= set(rendered.seen.texts)
            if is_right(harness, reference, rendered, {**BASE, **texts}, wanted, slots):
                continue
            if plain is not None and does_nothing(
                harness, reference, rendered, {slot: plain(slot) for slot in slots}, wanted
            ):
                continue
            found = list(_in_each(harness, reference, texts, wanted, title, line, plain))
            yield from found
            literal = bool(wanted) and wanted[0] not in SORTED_TEXTS and not all_tags(harness, wanted)
            if (
                not found
                and literal
                and len(slots) > 1
                and says_more(harness, reference, rendered.prompt, texts, wanted)
            ):
                yield _trigger(
                    harness, reference, rendered, {**BASE, **texts}, wanted, f"{title} in several texts", line
                )


def _in_each(
    harness: Harness,
    reference: RenderedShape,
    texts: Mapping[str, str],
    wanted: Sequence[str],
    title: str,
    line: int | None,
    plain: Fill | None,
) -> Iterator[Trigger]:
    for slot, text in texts.items():
        filled = {**BASE, slot: text}
        rendered = harness.render(reference.shape.inputs(filled))
        neutral = {} if plain is None else {slot: plain(slot)}
        if not is_right(harness, reference, rendered, filled, wanted, [slot]) and not (
            neutral and does_nothing(harness, reference, rendered, neutral, wanted)
        ):
            yield _trigger(harness, reference, rendered, filled, wanted, f"{title} in {WHERE[slot]}", line)


def _trigger(
    harness: Harness,
    reference: RenderedShape,
    rendered: Rendered,
    texts: Mapping[str, str],
    wanted: Sequence[str],
    title: str,
    line: int | None,
) -> Trigger:
    new = sorted(rendered.seen.reached - reference.seen.reached)
    line = min((harness.template.branches[number].line for number in new), default=line)
    if rendered.prompt is None:
        cause = "" if rendered.error is None else rendered.error.cause
        return Trigger("refused", title, cause, line)
    missing, instead = difference(reference.split.prompt(texts), rendered.prompt)
    if is_command(rendered.prompt, reference.split, texts, wanted):
        return Trigger("command", title, instead, line)
    if instead.strip():
        return Trigger("appears" if not missing.strip() else "changes", title, instead, line)
    return Trigger("cut" if is_cut(missing, wanted) else "vanishes", title, missing, line)


WAYS: tuple[tuple[float, Callable[[Harness], Iterator[Trigger]]], ...] = (
    (0.05, _always_changed),
    (0.55, _by_literals),
    (0.62, _by_places),
    (0.74, _by_sizes),
    (0.80, _by_sorts),
    (0.84, by_structure),
    (0.88, counted),
    (0.93, dated),
    (0.95, dated_and_said),
    (1.0, forced),
)
"""The search methods in order, each with the fraction of the limits at which it ends; the next gets the rest."""
