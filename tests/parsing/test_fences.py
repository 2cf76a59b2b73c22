"""Fences as CommonMark has them: ``markdown-it-py`` is the oracle over generated documents."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from strata_pack.parsing.fences import MarkdownTracker

PROBE = "zq"
ORACLE = MarkdownIt("commonmark").disable(["html_block", "reference"])  # see the module's docstring
PIECES = ["```", "~~~", "````", "~~~~", "```py", "~~~ a", "> ", "- ", "1. ", "2. ", "10) ", "* ", "+ ", "-", "  ",
          "    ", "   ", " ", "\t", "text", "# h", "---", "===", "``` a`b", "```x```", "> > ", "`"]  # fmt: skip
LINES = st.lists(st.sampled_from(PIECES), max_size=4).map("".join)
DOCUMENTS = st.lists(st.tuples(LINES, st.booleans()), min_size=1, max_size=9)


def probed(lines: list[tuple[str, bool]]) -> str:
    """Return the document with a numbered probe at the end of every line that asks for one."""
    return "\n".join(f"{line}{PROBE}{number}q" if probe else line for number, (line, probe) in enumerate(lines))


def fenced_by_oracle(text: str) -> set[int]:
    inside = [f"{token.content} {token.info}" for token in ORACLE.parse(text) if token.type == "fence"]
    return {int(number) for code in inside for number in re.findall(rf"{PROBE}(\d+)q", code)}


def fenced_by_tracker(text: str, size: int) -> set[int]:
    tracker = MarkdownTracker(spans=False)
    fenced = set()
    last = 0
    for probe in re.finditer(rf"{PROBE}(\d+)q", text):
        for start in range(last, probe.start(), size):
            tracker.feed(text[start : min(start + size, probe.start())])
        last = probe.start()
        if tracker.fenced():
            fenced.add(int(probe[1]))
    return fenced


@settings(derandomize=True, deadline=None, max_examples=400)
@given(DOCUMENTS, st.integers(1, 9))
@example([("> ```", False), ("lazy", True)], 1)
@example([("- ```", False), ("  x", True), ("y", True)], 1)
@example([("- para", False), ("lazy", False), ("  ```", False), ("x", True)], 1)
@example([("1. a", False), ("   ~~~", False), ("   ```", True), ("b", True)], 1)
@example([("-", False), ("", False), ("  ```", True), ("x", True)], 2)
@example([("````", False), ("```", True), ("````", False), ("x", True)], 3)
def test_fences_are_those_of_commonmark(lines: list[tuple[str, bool]], size: int) -> None:
    # markdown-it-py 4.3 takes a ">" behind four columns of white space for a block quote; CommonMark does not.
    assume(not any(re.match(r"[ >]*( {4}|\t)[ \t]*>", line.expandtabs(4)) for line, _ in lines))
    text = probed(lines)
    assert fenced_by_tracker(text, size) == fenced_by_oracle(text), text


@pytest.mark.parametrize(
    ("text", "fenced"),
    [
        ("```\nx", True),
        ("```\r\nx\r\n```\r\n", False),
        ("```\nx\n```", True),  # not yet: more may stand on the line
        ("```\nx\n```\n", False),
        ("``\nx", False),
        ("```a`b\nx", False),
        ("~~~a`b\nx", True),
        ("text\n```\nx", True),
        ("    ```\nx", False),
        ("<div>\n```\nx", True),
    ],
)
def test_where_a_text_stands(text: str, fenced: bool) -> None:
    for size in (1, len(text)):
        tracker = MarkdownTracker(spans=False)
        for start in range(0, len(text), size):
            tracker.feed(text[start : start + size])
        assert tracker.fenced() is fenced


@pytest.mark.parametrize(
    ("text", "ticks"), [("a `b", 1), ("a `b`", 0), ("a ``b` c", 2), ("a `b\nc", 0), ("``", 2), ("a `b`` c` d ```", 3)]
)
def test_open_code_spans_of_the_line(text: str, ticks: int) -> None:
    for size in (1, 2, len(text)):
        tracker = MarkdownTracker(spans=True)
        for start in range(0, len(text), size):
            tracker.feed(text[start : start + size])
        assert tracker.open_ticks() == ticks


def test_nested_quotes_cost_a_bounded_number_of_containers() -> None:
    tracker = MarkdownTracker(spans=False)
    tracker.feed("> " * 100_000 + "\n")
    assert len(tracker._containers) <= 32
