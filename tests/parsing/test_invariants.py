"""The invariant that everything rests on, over generated texts.

``STRATA_EXAMPLES=10000 pytest tests/parsing/test_invariants.py`` runs it with as many examples.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.parsing.invariants import TOOLS, check
from tests.parsing.pieces import PIECES
from tests.parsing.reference import without_calls

EXAMPLES = int(os.environ.get("STRATA_EXAMPLES", "120"))

TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=24).map("".join)
OPTIONS = st.fixed_dictionaries(
    {
        "thinking": st.booleans(),
        "tools": st.sampled_from([TOOLS, TOOLS, None]),
        "implicit_end": st.sampled_from(["guarded", "guarded", "strict", "any", "off"]),
        "call_format": st.sampled_from(["auto", "auto", "xml", "json"]),
    }
)
CUTS = st.lists(st.floats(0, 1), max_size=5)


def places(cuts: list[float], text: str) -> list[int]:
    return sorted(int(cut * len(text)) for cut in cuts)


@settings(derandomize=EXAMPLES <= 120, deadline=None, max_examples=EXAMPLES)
@given(TEXTS, CUTS, st.sampled_from(["stop", "length"]), OPTIONS)
@example(
    '<tool_call>\n{"name": "save", "arguments": {"text": "</tool_call>"}}\n</tool_call><think>',
    [],
    "stop",
    {"thinking": True, "tools": TOOLS, "implicit_end": "strict", "call_format": "json"},
)
def test_every_cut_gives_the_same_reply(text: str, cuts: list[float], finish: str, options: dict[str, Any]) -> None:
    check(text, places(cuts, text), finish, **options)


@settings(derandomize=EXAMPLES <= 120, deadline=None, max_examples=EXAMPLES)
@given(TEXTS, CUTS, st.booleans())
def test_without_tools_the_reply_is_that_of_plain_string_operations(
    text: str, cuts: list[float], thinking: bool
) -> None:
    outcome = check(text, places(cuts, text), "stop", thinking=thinking, tools=[])
    assert (outcome.reasoning, outcome.content) == without_calls(text, thinking=thinking)


@settings(derandomize=EXAMPLES <= 120, deadline=None, max_examples=EXAMPLES)
@given(st.lists(st.sampled_from(PIECES), max_size=20), OPTIONS)
def test_every_word_fed_comes_out_somewhere(pieces: list[str], options: dict[str, Any]) -> None:
    """A numbered word stands behind every piece: each is in the reasoning, the content, a call or a documented drop."""
    text = "".join(f"{piece}w{number}w" for number, piece in enumerate(pieces))
    outcome = check(text, [], "stop", **options)
    out = outcome.reasoning + outcome.content + json.dumps([name for name, _ in outcome.calls])
    out += json.dumps([arguments for _, arguments in outcome.calls], ensure_ascii=False)
    for number in range(len(pieces)):
        word = f"w{number}w"
        if word not in out:
            assert outcome.counters["dropped_text"] or was_dropped(text, word), f"{word} is lost: {outcome}"


def was_dropped(text: str, word: str) -> bool:
    """Whether ``word`` stands where the documentation says that text is dropped: before a late ``</tool_call>``, in a
    value that the same parameter written later replaces, or in keys of JSON calls that are not read."""
    before, after = text.split(word, 1)
    prose = re.search(r"</function[a-z_]*>", before) is not None and "</tool_call>" in after
    replaced = re.search(r"<parameter[ =]", before) is not None and re.search(r"<parameter[ =]", after) is not None
    return prose or replaced
