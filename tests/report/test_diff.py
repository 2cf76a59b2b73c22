from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.report.diff import Segment, differences, printable, shorten, visible

TEXT = st.text(alphabet="ab \n\té", max_size=60)


@given(TEXT, TEXT)
@settings(derandomize=True, deadline=None, max_examples=150)
def test_the_segments_make_up_both_texts(expected, got):
    parts = differences(expected, got)
    assert "".join(part.text for part in parts if part.kind != "added") == expected
    assert "".join(part.text for part in parts if part.kind != "removed") == got


@given(TEXT)
@settings(derandomize=True, deadline=None, max_examples=50)
def test_equal_texts_have_no_difference(text):
    assert {part.kind for part in differences(text, text)} <= {"equal"}


def test_one_lost_line_is_one_segment():
    assert differences("a\n</think>\nb", "a\nb") == [
        Segment("equal", "a\n"),
        Segment("removed", "</think>\n"),
        Segment("equal", "b"),
    ]


def test_a_space_that_became_a_tab_can_be_seen():
    changed = [visible(part.text) for part in differences("a b\n", "a\tb\n") if part.kind != "equal"]
    assert changed == ["·", "⇥"]


def test_two_long_texts_with_nothing_in_common_are_two_segments():
    removed, added = differences("a" * 400_000, "b" * 400_000)  # an alignment by characters takes days
    assert (removed.kind, added.kind) == ("removed", "added")


def test_a_long_equal_stretch_is_cut_and_the_cut_is_counted():
    parts = shorten([Segment("equal", "x" * 1000), Segment("added", "!"), Segment("equal", "y" * 1000)], 10)
    assert [part.text for part in parts] == [
        "[... 990 characters ...]" + "x" * 10,
        "!",
        "y" * 10 + "[... 990 characters ...]",
    ]


def test_a_short_equal_stretch_is_kept_whole():
    assert shorten([Segment("equal", "abc")], 10) == [Segment("equal", "abc")]


@pytest.mark.parametrize(
    ("text", "shown"),
    [("\x1b[2J", "<U+001B>[2J"), ("a\u200bb", "a<U+200B>b"), ("a\u202eb", "a<U+202E>b"), ("\ud800", "<U+D800>")],
    ids=["escape", "zero width", "right to left", "surrogate"],
)
def test_characters_that_a_terminal_obeys_or_hides_are_named(text: str, shown: str) -> None:
    assert visible(text) == printable(text) == shown
