"""The table of calls with one defect, and calls with many: what is right, what comes back as text, what is never mixed.

``STRATA_EXAMPLES=100000 pytest -m slow tests/parsing/test_mutants.py`` looks for mixed arguments with as many examples.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.parsing import parse
from tests.parsing.invariants import check
from tests.parsing.mutants import TOOLS, Call, Mutant, changes, one_call_mutants, pieces_of, two_call_mutants, verdict

TABLES = {"one call": (one_call_mutants, 100, 0.80), "two calls": (two_call_mutants, 150, 0.65)}

ALPHA: Call = ("save", {"path": "alpha.md", "text": "alpha one\nalpha two"})
BETA: Call = ("save", {"path": "beta.md", "text": "beta one\nbeta two"})
MANY = [
    (pieces, list(changes(pieces))) for pieces in (pieces_of([ALPHA, BETA]), pieces_of([ALPHA, BETA], one_wrapper=True))
]
MOST_DEFECTS = 6
"""With seven tags gone, what is left of two calls can be one well-formed call with a remark in it."""


def calls_of(text: str) -> list[tuple[str, dict[str, Any]]]:
    return [(call.name, call.arguments) for call in parse(text, thinking=False, tools=TOOLS).calls]


@pytest.mark.parametrize("name", TABLES)
def test_of_the_calls_with_one_defect_most_are_right_and_few_are_wrong(name: str) -> None:
    table, least, right = TABLES[name]
    mutants = table()
    verdicts = Counter(verdict(mutant, calls_of(mutant.text)) for mutant in mutants)
    assert len(mutants) >= least
    assert verdicts["right"] >= right * len(mutants)
    assert verdicts["wrong"] <= 0.04 * len(mutants)


@pytest.mark.parametrize("mutant", one_call_mutants()[::9], ids=lambda mutant: mutant.defect)
def test_a_call_with_a_defect_is_the_same_for_every_cut(mutant: Mutant) -> None:
    check(mutant.text + "\nDone.", [9, 40], "stop", thinking=False, tools=TOOLS)


def owners(value: Any) -> frozenset[str]:
    """Return whose texts ``value`` holds."""
    return frozenset(name for name in ("alpha", "beta") if name in str(value))


def damaged(seed: int) -> str:
    """Return two calls with several defects. (Drawn by a seed: drawing each by hypothesis costs more than parsing.)"""
    chance = random.Random(seed)
    pieces, possible = chance.choice(MANY)
    candidates = [change for change in possible if not change[3]] if chance.random() < 0.5 else possible
    chosen = chance.sample(candidates, chance.randint(2, MOST_DEFECTS))
    parts: list[str] = []
    at = 0
    for _, start, end, instead in sorted(chosen, key=lambda change: change[1]):
        if start >= at:
            parts += [piece.text for piece in pieces[at:start]] + [instead]
            at = end
    return "".join(parts + [piece.text for piece in pieces[at:]])


DAMAGED = st.integers(0, 2**64).map(damaged)


def no_call_is_mixed(text: str) -> None:
    for _, arguments in calls_of(text):
        held = {owners(value) for value in arguments.values()}
        assert not {frozenset({"alpha"}), frozenset({"beta"})} <= held, arguments


@settings(derandomize=True, deadline=None, max_examples=500)
@given(DAMAGED)
def test_two_calls_with_some_defects_are_never_mixed(text: str) -> None:
    no_call_is_mixed(text)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(deadline=None, max_examples=int(os.environ.get("STRATA_EXAMPLES", "100000")))
@given(DAMAGED)
def test_two_calls_with_many_defects_are_never_mixed(text: str) -> None:
    no_call_is_mixed(text)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(DAMAGED, st.sampled_from(["stop", "length"]), st.booleans())
def test_damaged_calls_are_the_same_for_every_cut_and_lose_no_word(text: str, finish: str, thinking: bool) -> None:
    outcome = check(text, [], finish, thinking=thinking, tools=TOOLS)
    out = outcome.reasoning + outcome.content + " ".join(str(arguments) for _, arguments in outcome.calls)
    lost = [word for word in re.findall(r"alpha\.md|beta\.md|alpha one|beta one", text) if word not in out]
    assert not lost or outcome.counters["dropped_text"]
