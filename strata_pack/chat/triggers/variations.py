"""Varies the numbers of turns, tools and calls and the date, and forces branches that were not reached."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

from strata_pack.chat.triggers.comparison import WORD, difference, split_prompt
from strata_pack.chat.triggers.harness import Harness, Trigger
from strata_pack.chat.triggers.literals import TextTests, together
from strata_pack.chat.triggers.recording import MARK
from strata_pack.chat.triggers.shapes import BASE, long_chat, many_calls, many_tools

NO_TIME = f"{MARK}moment"
"""A placeholder for the time, to see how a template uses it."""

MOST_TURNS = 600
MOST_COUNT = 24
SOME = (1, 2, 3, 4, 5, 6)

OURS = re.compile(rf"{MARK}\w*|<[^<>\n]{{1,40}}>|\[/?[A-Z_ ]+\]", re.IGNORECASE)
"""The search's texts, and tags, which are the template's syntax between turns."""

TIMES = re.compile(
    r"\d+|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|sept|oct|nov|dec|january|february|march|april|june|july|august|"
    r"september|october|november|december|mon|tue|wed|thu|fri|sat|sun|monday|tuesday|wednesday|thursday|friday|"
    r"saturday|sunday|am|pm|st|nd|rd|th)\b",
    re.IGNORECASE,
)
"""The parts of a prompt that depend on the date."""


def counted(harness: Harness) -> Iterator[Trigger]:
    """Yield texts that occur only in conversations with certain numbers of turns, tools or calls, from two on."""
    agent = harness.reference(["an agent's turns", "a tool's result last"])
    makers: dict[str, Callable[[int], dict[str, Any]]] = {
        "turns of the user": lambda count: long_chat(count, system=False),
        "turns of the user after a system message": lambda count: long_chat(count, system=True),
        "tools": many_tools,
    }
    if agent is not None:
        makers["calls in one turn"] = lambda count: many_calls(agent.shape, count)
    for what, make in makers.items():
        limit = MOST_TURNS if what.startswith("turns") else MOST_COUNT
        yield from _by_count(harness, what, make, _counts(harness, limit, turns=what.startswith("turns")))


def _counts(harness: Harness, limit: int, *, turns: bool) -> list[int]:
    """Return the counts to try: fixed ones, and those that the template compares with, as turns and as messages."""
    wanted = set(SOME)
    for number in harness.numbers:
        near = {number - 1, number, number + 1}
        if turns:
            near |= {number // 2, number // 2 + 1, number // 2 + 2}
        wanted |= near
    return sorted(count for count in wanted if 1 <= count <= limit)


def _by_count(
    harness: Harness, what: str, make: Callable[[int], dict[str, Any]], counts: list[int]
) -> Iterator[Trigger]:
    words: dict[int, frozenset[str]] = {}
    prompts: dict[int, str] = {}
    for count in counts:
        if harness.spent():
            break
        prompt = harness.render(make(count)).prompt
        if prompt is not None:
            prompts[count] = prompt
            words[count] = _written(prompt)
    few = _words_of_few(harness) if what.startswith("turns") else words.get(1)
    more = [count for count in words if count > 1]
    if not more:
        return
    everywhere = frozenset.intersection(*(words[count] for count in more))
    for count in more:
        if new := (words[count] - everywhere) | (frozenset() if few is None else words[count] - few):
            text = _around(prompts[count], new)
            yield Trigger("count", f"a conversation of {count} {what}", text, line_of(harness, text))
            return


def _written(prompt: str) -> frozenset[str]:
    """Return the words in the template's own text."""
    return frozenset(WORD.findall(OURS.sub(" ", " ".join(split_prompt(prompt).constants))))


def _words_of_few(harness: Harness) -> frozenset[str] | None:
    """Return the template's words around one message of each kind; ``None`` if it accepts no such conversation."""
    user = {"role": "user", "content": BASE["first"]}
    answer = {"role": "assistant", "content": BASE["answer"]}
    system = {"role": "system", "content": BASE["system"]}
    found: set[str] = set()
    both = False
    for messages in ([user], [system, user], [user, answer], [system, user, answer]):
        for variables in ({}, {"add_generation_prompt": False}):
            prompt = harness.render({"messages": messages, **variables}).prompt
            if prompt is not None:
                found |= _written(prompt)
                both = both or answer in messages
    return frozenset(found) if both else None


def _around(prompt: str, words: frozenset[str]) -> str:
    """Return the line of ``prompt`` with the first of ``words``."""
    return next((line for line in prompt.split("\n") if any(word in line for word in words)), " ".join(sorted(words)))


def line_of(harness: Harness, text: str) -> int | None:
    """Return the line of the template with ``text``, or with its longest word."""
    words = sorted(WORD.findall(text), key=len, reverse=True)
    for wanted in (text.strip(), *words):
        for number, line in enumerate(harness.source.split("\n"), 1):
            if wanted and wanted in line:
                return number
    return None


def dated(harness: Harness) -> Iterator[Trigger]:
    """Yield what another day or hour changes in a prompt, apart from the date itself."""
    if not harness.everything.asked_the_time:
        return
    literals = [text for text in harness.everything.texts if len(text) <= 40 and TIMES.search(text)]
    for reference in harness.references[:2]:
        inputs = reference.shape.inputs(BASE)
        plain = harness.render(inputs).prompt
        if plain is None:
            continue
        said_as_is = harness.render(inputs, now=NO_TIME).prompt or ""
        moments: list[datetime | str] = [*_times(), *literals]
        for now in moments:
            if harness.spent():
                return
            prompt = harness.render(inputs, now=now).prompt
            if isinstance(now, str) and prompt == said_as_is.replace(NO_TIME, now):
                continue
            if prompt is not None and _masked(prompt) != _masked(plain):
                said = now if isinstance(now, str) else f"{now:%A %Y-%m-%d %H:%M}"
                wanted, got = difference(_masked(plain), _masked(prompt))
                if isinstance(now, str):
                    wanted, got = wanted.replace(_masked(now), ""), got.replace(_masked(now), "")
                    if not set(WORD.findall(got)) - set(WORD.findall(plain)) and wanted == "":
                        continue
                yield Trigger("date", f"the date {said!r}", got or wanted, line_of(harness, got or wanted))
                return


def dated_and_said(harness: Harness) -> Iterator[Trigger]:
    """Yield what a date and a literal of the same condition make appear together."""
    if not harness.everything.asked_the_time or not harness.references:
        return
    shape = harness.references[0].shape
    for wanted, line in together(harness.template.tree).items():
        for moment in wanted:
            for said in wanted:
                if said == moment or harness.spent():
                    continue
                both = [
                    shape.inputs({slot: f"{text} {said}" for slot, text in BASE.items()}) for said in (said, NO_TIME)
                ]
                prompt, plain = (harness.render(inputs, now=moment).prompt for inputs in both)
                if prompt and plain and harness.vocabulary.new_words(prompt, [*BASE.values(), plain, said]):
                    title = f"{said!r} in a text on the date {moment!r}"
                    yield Trigger("appears", title, difference(plain, prompt)[1], line)


def _masked(prompt: str) -> str:
    return re.sub(r"#[#\s,./:-]*", "#", TIMES.sub("#", prompt))


def _times() -> Iterator[datetime]:
    start = datetime(2026, 1, 1, 9, 30)
    yield from (start + timedelta(days=day) for day in range(366))
    yield from (datetime(2026, 6, 15, hour, 7) for hour in range(24))
    yield from (datetime(2026, 6, 15, 12, part, part) for part in range(60))
    yield from (datetime(year, month, 3, 12, 0) for year in (2020, 2024, *range(2027, 2041)) for month in (1, 7, 12))


def forced(harness: Harness) -> Iterator[Trigger]:
    """Yield the texts of branches that no conversation reached although their conditions test a text."""
    tests = TextTests(harness.template.tree)
    for number, branch in enumerate(harness.template.branches):
        if number in harness.everything.reached or not tests.depends(branch.test):
            continue
        for reference in harness.references:
            if harness.spent():
                return
            rendered = harness.render(reference.shape.inputs(BASE), forced={branch.decider: branch.value})
            if rendered.prompt is None or number not in rendered.seen.reached:
                continue
            new = harness.vocabulary.new_words(rendered.prompt, BASE.values())
            if new:
                text = _around(rendered.prompt, frozenset(new))
                yield Trigger("unreached", "a text that its condition waits for", text, branch.line)
                break
