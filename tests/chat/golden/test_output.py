"""What a golden report looks like in the terminal, JUnit, SARIF and GitHub annotations."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from strata_pack.chat.golden.check import GoldenReport
from strata_pack.chat.golden.output import github_annotations, terminal, to_report
from strata_pack.report import junit, sarif
from tests.chat.golden.suites import check_file, make_case, suite_file

# Faces


@pytest.fixture
def report(tmp_path: Path) -> GoldenReport:
    cases = [
        make_case("good"),
        make_case("bad", expected="Hi \n\tyou"),
        make_case("odd", expected="Ho", differs_on={"jinja2": "it is old"}),
    ]
    return check_file(suite_file(tmp_path, *cases))


def _shown(report: GoldenReport) -> str:
    stream = StringIO()
    Console(file=stream, width=120).print(terminal(report, "my.jinja"))
    return stream.getvalue()


def test_terminal_shows_white_space_of_the_difference(report: GoldenReport) -> None:
    assert "[-·-]↵\n" in _shown(report).replace("[-·-]\n", "[-·-]↵\n")
    assert "⇥" in _shown(report)


def test_terminal_says_where_the_texts_part(report: GoldenReport) -> None:
    assert "differs at character 2 (line 1)" in _shown(report)


def test_terminal_names_known_differences_with_their_reason(report: GoldenReport) -> None:
    assert "jinja2: it is old: odd" in _shown(report)


def test_junit_holds_every_case_once(report: GoldenReport) -> None:
    suite = ET.fromstring(junit(to_report([("my.jinja", report)])))[0]
    found = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert found == {
        "golden/jinja2/golden: good": [],
        "golden/jinja2/golden: bad": ["failure"],
        "golden/jinja2/golden: odd": ["skipped"],
    }


def test_sarif_holds_the_failures_at_the_template(report: GoldenReport) -> None:
    results = json.loads(sarif(to_report([("my.jinja", report)])))["runs"][0]["results"]
    assert [result["ruleId"] for result in results] == ["golden/jinja2/golden: bad"]
    assert results[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "my.jinja"


def test_github_annotation_is_one_escaped_line(tmp_path: Path) -> None:
    report = check_file(suite_file(tmp_path, make_case("100%\nsure", expected="x")))
    (line,) = github_annotations(report, "a,b:c.jinja")
    assert line.startswith("::error file=a%2Cb%3Ac.jinja,title=golden jinja2::golden: 100%25%0Asure: differs at")
