from __future__ import annotations

import io

from rich.console import Console

from strata_pack.report import terminal


def _printed(report) -> str:
    sink = io.StringIO()
    Console(file=sink, width=100, highlight=False).print(terminal(report))
    return sink.getvalue()


def test_every_check_has_its_line_with_status_and_detail(full_report):
    lines = _printed(full_report).splitlines()
    for check in full_report.checks:
        assert any(line.startswith(check.status) and check.id in line for line in lines), check.id


def test_a_failure_shows_what_is_missing_with_its_white_space(full_report):
    text = _printed(full_report)
    assert "</think>↵" in text
    assert "⇥" in text


def test_the_figures_of_a_check_are_shown(full_report):
    assert any(line.split() == ["2", "60", "1340.5"] for line in _printed(full_report).splitlines())


def test_the_last_line_is_the_verdict(full_report):
    assert _printed(full_report).splitlines()[-1].strip() == "1 failed, 1 error, 1 skipped, 2 passed in 5.5 s"


def test_text_in_square_brackets_is_no_markup(full_report):
    from dataclasses import replace

    odd = replace(full_report, checks=(replace(full_report.checks[0], detail="[bold]tags[/nope]"),))
    assert "[bold]tags[/nope]" in _printed(odd)
