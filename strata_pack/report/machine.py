"""Writes a report for programs: JSON with a schema, JUnit XML, SARIF 2.1.0."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from importlib import resources
from typing import Any

from strata_pack import __version__
from strata_pack.files import dump_json
from strata_pack.report.folding import fold
from strata_pack.report.model import Check, Report

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 does not allow, even escaped (section 2.2)."""


def to_json(report: Report) -> bytes:
    """Return the report as the bytes of a JSON file; ``schema()`` describes the format."""
    return dump_json(_encodable(report.to_dict()))


def schema() -> dict[str, Any]:
    """Return the JSON Schema of ``to_json``."""
    text = resources.files("strata_pack.report").joinpath("report.schema.json").read_text(encoding="utf-8")
    value: dict[str, Any] = json.loads(text)
    return value


def _encodable(value: Any) -> Any:
    """Replace lone surrogates, which UTF-8 cannot encode, and numbers that JSON cannot write, recursively."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_encodable(key): _encodable(entry) for key, entry in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return [_encodable(entry) for entry in value] if isinstance(value, list) else value


def junit(report: Report) -> bytes:
    """Return the report as JUnit XML, one test case per check (or group), valid by the schema that Jenkins uses."""
    told = fold(report)
    counts = {
        "tests": str(len(told.checks)),
        "failures": str(told.count("failed")),
        "errors": str(told.count("error")),
        "time": f"{report.seconds:.3f}",
    }
    # The schema that Jenkins uses allows "skipped" only for a suite, and a timestamp without a time zone (it is UTC).
    root = ET.Element("testsuites", {"name": _xml(report.title), **counts})
    suite = ET.SubElement(
        root, "testsuite", {"name": _xml(report.title), **counts, "skipped": str(told.count("skipped"))}
    )
    if report.started:
        suite.set("timestamp", report.started.removesuffix("Z"))
    if report.facts:
        properties = ET.SubElement(suite, "properties")
        for name, value in report.facts.items():
            ET.SubElement(properties, "property", name=_xml(name), value=_xml(value))
    for check in told.checks:
        suite.append(_testcase(report, check))
    ET.indent(root)
    data: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


_JUNIT_ELEMENTS = {"failed": "failure", "error": "error", "skipped": "skipped"}


def _testcase(report: Report, check: Check) -> ET.Element:
    case = ET.Element("testcase", classname=_xml(report.title), name=_xml(check.id), time=f"{check.seconds:.3f}")
    element = _JUNIT_ELEMENTS.get(check.status)
    if element is not None:
        node = ET.SubElement(case, element, type=check.status, message=_xml(check.detail or check.title))
        texts = {"repeat": check.repeat, "expected": check.expected, "got": check.got, "prompt": check.prompt}
        parts = texts.items()
        node.text = _xml("\n\n".join(f"{name}:\n{text}" for name, text in parts if text is not None)) or None
    if check.log:
        ET.SubElement(case, "system-err").text = _xml(check.log)
    return case


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)


_SARIF_LEVELS = {"failed": "error", "error": "warning"}
"""SARIF level by status: a found difference is an error, a check that could not be made is a warning."""


def sarif(report: Report) -> bytes:
    """Return the failed checks, and the checks that could not be made, as a SARIF 2.1.0 log."""
    told = [check for check in fold(report).checks if check.status in _SARIF_LEVELS]
    rules = [{"id": check.id, "shortDescription": {"text": check.title}} for check in told]
    results = [_sarif_result(check, index) for index, check in enumerate(told)]
    run = {
        "tool": {"driver": {"name": "strata-pack", "version": __version__, "rules": rules}},
        "invocations": [{"executionSuccessful": report.count("error") == 0}],
        "results": results,
    }
    return dump_json(_encodable({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}))


def _sarif_result(check: Check, rule: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": check.id,
        "ruleIndex": rule,
        "level": _SARIF_LEVELS[check.status],
        "message": {"text": check.detail or check.title},
    }
    if check.where:
        result["locations"] = [{"physicalLocation": {"artifactLocation": {"uri": _uri(check.where)}}}]
    return result


def _uri(where: str) -> str:
    from urllib.parse import quote

    return where if "://" in where else quote(where, safe="/")
