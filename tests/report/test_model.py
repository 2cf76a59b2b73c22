from __future__ import annotations

import pytest

from strata_pack.report import Check, Report


@pytest.mark.parametrize(
    ("statuses", "status", "code"),
    [
        ((), "skipped", 0),
        (("skipped",), "skipped", 0),
        (("passed", "skipped"), "passed", 0),
        (("passed", "error"), "error", 3),
        (("passed", "failed"), "failed", 1),
        (("error", "failed"), "failed", 1),
    ],
)
def test_a_report_is_as_bad_as_its_worst_check(statuses, status, code):
    report = Report("t", tuple(Check(str(number), "t", each) for number, each in enumerate(statuses)))
    assert (report.status, report.exit_code, report.ok) == (status, code, code == 0)


def test_the_summary_counts_what_there_is_the_worst_first(full_report):
    assert full_report.summary == "1 failed, 1 error, 1 skipped, 2 passed"


def test_an_empty_report_says_so():
    assert Report("t", ()).summary == "nothing checked"


def test_what_a_check_does_not_have_is_left_out_of_its_dict():
    assert Check("a", "b", "passed").to_dict() == {
        "id": "a",
        "title": "b",
        "status": "passed",
        "detail": "",
        "seconds": 0.0,
    }
