"""Checks of one cause are told once, the worst first, each with the command that repeats it."""

from __future__ import annotations

import io
import json
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from strata_pack.report import Check, Report, html, junit, sarif, terminal, to_json
from strata_pack.report.folding import LEAST, fold, worst_first
from tests.report.junit_schema import violations

SAME = [
    Check(
        f"golden/case {number}", "renders", "failed", "the prompt differs", 0.5, repeat=f"strata-pack golden {number}"
    )
    for number in range(156)
]
REPORT = Report(
    "smoke", (Check("start", "it starts", "passed", "the prompt differs"), *SAME), started="2026-01-01T00:00:00Z"
)

CHECKS = st.lists(
    st.builds(
        Check,
        id=st.uuids().map(str),
        title=st.just("t"),
        status=st.sampled_from(["passed", "failed", "error", "skipped"]),
        detail=st.sampled_from(["", "one cause", "another"]),
    ),
    max_size=20,
)


def _shown(report: Report) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(terminal(report))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_failures_of_one_cause_are_one_line_that_names_the_others():
    start, folded = fold(REPORT).checks
    assert start.status == "passed"
    assert folded.detail == (
        "the prompt differs (156 times, also golden/case 1, golden/case 2, golden/case 3 and 152 more)"
    )
    assert folded.data["folded"] == [check.id for check in SAME]


def test_the_terminal_shows_a_cause_once_and_counts_every_failure():
    shown = _shown(REPORT)
    assert len([line for line in shown.splitlines() if line.startswith("failed")]) == 1
    assert "156 failed, 1 passed" in shown


def test_json_keeps_every_check():
    assert len(json.loads(to_json(REPORT))["checks"]) == 157


@pytest.mark.parametrize(
    ("output", "pattern"), [(junit, b"<failure"), (sarif, b'"ruleId"'), (html, b'class="badge failed"')]
)
def test_a_cause_is_one_entry_in_every_other_output(output, pattern):
    extra = 1 if output is html else 0  # the head of the page has a badge of its own
    assert len(re.findall(pattern, output(REPORT))) == 1 + extra


def test_junit_counts_what_it_holds():
    suite = ET.fromstring(junit(REPORT)).find("testsuite")
    assert suite is not None
    assert suite.get("tests") == str(len(list(suite.iter("testcase"))))


def test_what_failed_comes_first_on_the_page_with_the_command_that_repeats_it():
    page = html(REPORT).decode()
    assert page.index('id="golden/case 0"') < page.index('id="start"')
    assert "Repeat it: <code>strata-pack golden 0</code>" in page


def test_a_repeat_command_is_escaped_on_the_page():
    page = html(Report("t", (Check("a", "b", "failed", repeat="x <script>"),))).decode()
    assert "x &lt;script&gt;" in page


@given(CHECKS)
def test_folding_loses_no_check_and_shows_no_cause_twice(checks):
    report = Report("t", tuple(checks))
    folded = fold(report)
    told = [id_ for check in folded.checks for id_ in check.data.get("folded", [check.id])]
    assert sorted(told) == sorted(check.id for check in checks)
    assert folded.status == report.status
    causes = [
        (check.status, check.data.get("folded") and 1, check.detail.partition(" (")[0]) for check in folded.checks
    ]
    kept = [cause for cause in causes if cause[1]]
    assert len(set(kept)) == len(kept)


@given(CHECKS)
def test_the_worst_checks_come_first(checks):
    order = [check.status for check in worst_first(Report("t", tuple(checks)))]
    ranks = ["failed", "error", "skipped", "passed"]
    assert order == sorted(order, key=ranks.index)


def test_two_of_a_kind_are_no_crowd():
    assert LEAST == 3
    two = Report("t", tuple(SAME[:2]))
    assert fold(two) == two


@given(CHECKS)
def test_junit_is_valid_by_the_schema_of_jenkins(checks):
    assert violations(junit(Report("t", tuple(checks), {"a": "b"}, "2026-01-01T00:00:00Z", 1234.5678))) == []


def test_the_full_report_is_valid_by_the_schema_of_jenkins(full_report):
    assert violations(junit(full_report)) == []


@pytest.mark.parametrize(
    ("document", "wrong"),
    [
        (b'<testsuites skipped="1" time=""/>', "testsuites has the attribute skipped"),
        (b'<testsuite name="a" tests="1" failures="0" time="1"/>', "testsuite lacks the attribute errors"),
        (b'<testsuites time="1"><testcase name="a"/></testsuites>', "testsuites holds testcase"),
    ],
)
def test_what_the_schema_forbids_is_seen(document, wrong):
    assert wrong in violations(document)
