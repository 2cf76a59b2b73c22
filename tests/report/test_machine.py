from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET

import jsonschema
import pytest

from strata_pack.report import Check, Report, Table, junit, sarif, schema, to_json


def test_the_schema_is_itself_valid():
    jsonschema.Draft202012Validator.check_schema(schema())


def test_json_fits_its_schema(full_report):
    jsonschema.validate(json.loads(to_json(full_report)), schema())


@pytest.mark.parametrize("breakage", [{"status": "fine"}, {"checks": [{"id": ""}]}, {"surprise": 1}])
def test_the_schema_refuses_what_is_no_report(full_report, breakage):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**json.loads(to_json(full_report)), **breakage}, schema())


def test_json_keeps_every_text_except_lone_surrogates(full_report):
    checks = json.loads(to_json(full_report))["checks"]
    assert checks[1]["log"] == full_report.checks[1].log.replace("\ud800", "?")
    assert checks[2]["chart"]["series"] == {"echoed": [900, 60], "stripped": [900, 1340]}


def test_json_spells_a_number_that_it_cannot_write():
    check = Check("one", "one", "passed", table=Table(("KL mean",), ((math.inf,),)))
    written = to_json(Report("report", (check,)))
    assert (json.loads(written)["checks"][0]["table"]["rows"], b"Infinity" in written) == ([["inf"]], False)


def test_junit_counts_and_names_every_check(full_report):
    suite = ET.fromstring(junit(full_report)).find("testsuite")
    assert [suite.get(key) for key in ("tests", "failures", "errors", "skipped")] == ["5", "1", "1", "1"]
    assert [case.get("name") for case in suite.iter("testcase")] == [check.id for check in full_report.checks]


@pytest.mark.parametrize(
    ("check", "element"), [("repair-reasoning", "failure"), ("parallel", "error"), ("mentions", "skipped")]
)
def test_junit_says_what_is_wrong_in_the_element_for_it(full_report, check, element):
    case = ET.fromstring(junit(full_report)).find(f".//testcase[@name='{check}']")
    detail = next(each.detail for each in full_report.checks if each.id == check)
    assert case.find(element).get("message")[:15] == detail[:15]


def test_junit_of_a_failure_holds_both_texts(full_report):
    text = ET.fromstring(junit(full_report)).find(".//failure").text
    assert full_report.checks[1].expected in text
    assert full_report.checks[1].got in text


def test_junit_holds_nothing_that_xml_forbids(full_report):
    text = junit(full_report).decode()
    assert "\x00" not in text
    assert "\x1b" not in text
    assert "&#27;" not in text


def test_sarif_has_what_needs_a_person_and_nothing_else(full_report):
    (run,) = json.loads(sarif(full_report))["runs"]
    assert [(result["ruleId"], result["level"]) for result in run["results"]] == [
        ("repair-reasoning", "error"),
        ("parallel", "warning"),
    ]


def test_each_sarif_result_points_to_its_rule(full_report):
    (run,) = json.loads(sarif(full_report))["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rules[result["ruleIndex"]]["id"] for result in run["results"]] == [r["ruleId"] for r in run["results"]]


def test_a_sarif_location_is_a_valid_uri(full_report):
    (run,) = json.loads(sarif(full_report))["runs"]
    (location,) = run["results"][0]["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "packs/a%20model/model.gguf"


def test_sarif_of_a_good_report_is_an_empty_list_of_results():
    (run,) = json.loads(sarif(Report("t", (Check("a", "b", "passed"),))))["runs"]
    assert run["results"] == []
    assert run["invocations"] == [{"executionSuccessful": True}]
