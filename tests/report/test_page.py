from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from strata_pack.report import Chart, html
from strata_pack.report.chart import nice_ceiling, svg
from strata_pack.report.folding import worst_first


class Reader(HTMLParser):
    """Counts the elements, and collects every attribute that could load something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "action", "data", "poster")]


@pytest.fixture
def page(full_report) -> str:
    return html(full_report).decode("utf-8")


def test_nothing_on_the_page_loads_anything(page):
    reader = Reader()
    reader.feed(page)
    assert reader.loads == ["data:,"]
    assert "url(" not in page
    assert "@import" not in page


def test_hostile_text_makes_no_element(page):
    reader = Reader()
    reader.feed(page)
    assert reader.tags.count("script") == 1
    assert "img" not in reader.tags


def test_every_check_is_one_entry_with_its_status(page, full_report):
    found = re.findall(r'<details class="check" data-status="(\w+)" id="([\w-]+)"', page)
    assert found == [(check.status, check.id) for check in worst_first(full_report)]


def test_the_difference_marks_the_lost_line_and_draws_its_white_space(page):
    assert "<del>&lt;/think&gt;↵\n</del>" in page or "<del>↵\n&lt;/think&gt;</del>" in page
    assert "<ins>⇥</ins>" in page


def test_the_chart_is_drawn_with_a_bar_for_every_value(page):
    assert len(re.findall(r'<rect class="series\d" [^>]*><title>', page)) == 4


def test_braces_in_a_report_are_text(full_report):
    from dataclasses import replace

    assert "{{style}}" in html(replace(full_report, title="{{style}}")).decode()


def test_a_chart_of_nothing_is_still_a_picture():
    assert svg(Chart("t", "x", "y", (), {})).startswith("<svg")


@pytest.mark.parametrize(
    ("value", "ceiling"), [(0, 1), (1, 1), (1.1, 2), (2.2, 2.5), (26, 50), (990, 1000), (1340, 2000), (float("nan"), 1)]
)
def test_an_axis_ends_at_a_round_number(value, ceiling):
    assert nice_ceiling(value) == ceiling


def test_labels_that_would_overlap_are_turned_and_cut():
    short, long = (Chart("t", "x", "y", tuple(f"{name}{n}" for n in range(16)), {}) for name in ("a", "w" * 99))
    assert "rotate" not in svg(short)
    assert svg(long).count("rotate") == 16
    assert "w" * 30 not in svg(long)


def test_a_tick_has_its_own_value():
    assert ">7.5<" in svg(Chart("t", "x", "y", ("a",), {"s": (9.0,)}))
