"""Formats lint findings: JSON, SARIF 2.1.0 with lines, and the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from rich.console import Group
from rich.table import Table
from rich.text import Text

from strata_pack import __version__
from strata_pack.chat.lint.model import SEVERITIES, Finding, Severity
from strata_pack.chat.lint.rules import RULES
from strata_pack.files import dump_json
from strata_pack.report import model

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "note"}
_STYLES: dict[Severity, str] = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def to_dict(findings: Sequence[Finding], path: str) -> dict[str, Any]:
    """Return the findings as the JSON object of the command."""
    return {
        "path": path,
        "counts": {severity: sum(one.severity == severity for one in findings) for severity in SEVERITIES},
        "findings": [finding.to_dict() for finding in findings],
    }


def rule_table() -> Table:
    """Return the table of all rules."""
    table = Table("rule", "name", "severity", "finds", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for rule in RULES:
        table.add_row(rule.id, rule.name, Text(rule.severity, style=_STYLES[rule.severity]), rule.summary)
    return table


def sarif(findings: Sequence[Finding]) -> bytes:
    """Return the findings as a SARIF 2.1.0 log, with every rule described and every line marked."""
    index = {rule.id: number for number, rule in enumerate(RULES)}
    rules = [
        {
            "id": rule.id,
            "name": rule.name,
            "shortDescription": {"text": rule.summary},
            "help": {"text": rule.remedy},
            "defaultConfiguration": {"level": _LEVELS[rule.severity]},
        }
        for rule in RULES
    ]
    driver = {"name": "strata-pack", "version": __version__, "rules": rules}
    results = [_result(finding, index[finding.rule.id]) for finding in findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return dump_json({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]})


def _result(finding: Finding, rule: int) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": {"uri": quote(finding.path, safe="/:")}}
    if finding.line is not None:
        column = {} if finding.column is None else {"startColumn": finding.column}
        place["region"] = {"startLine": finding.line, **column}
    return {
        "ruleId": finding.rule.id,
        "ruleIndex": rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.message}; {finding.rule.remedy}"},
        "locations": [{"physicalLocation": place}],
    }


def to_report(findings: Sequence[Finding], path: str, fail_on: Severity) -> model.Report:
    """Return the findings as a report, one check each; findings below ``fail_on`` are reported but do not fail."""
    failing = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    checks = [
        model.Check(
            id=f"{one.rule.id}/{number}",
            title=f"{one.rule.name}: {one.rule.remedy}",
            status="failed" if one.severity in failing else "skipped",
            detail=f"{one.severity}: {one.message}",
            where=":".join(str(part) for part in (one.path, one.line, one.column) if part is not None),
            got=one.excerpt or None,
            repeat=shlex.join(["strata-pack", "template", "lint", path, "--select", one.rule.id]),
        )
        for number, one in enumerate(findings, 1)
    ]
    return model.Report(f"lint: {path}", tuple(checks) or (model.Check("lint", "nothing to find", "passed"),))


def terminal(findings: Sequence[Finding], path: str) -> Group:
    """Return the renderables for rich: each finding with its line and remedy, and the count."""
    parts: list[Text] = []
    for finding in findings:
        where = ":".join(str(part) for part in (path, finding.line, finding.column) if part is not None)
        head = Text()
        head.append(where, style="bold")
        head.append(f" {finding.severity}", style=_STYLES[finding.severity])
        head.append(f" {finding.rule.id} {finding.rule.name}: ", style="dim")
        head.append(_shown(finding.message))
        parts.append(head)
        if finding.excerpt:
            parts.append(Text(f"    {_shown(finding.excerpt)}", style="dim"))
        parts.append(Text(f"    help: {finding.rule.remedy}", style="green"))
    counts = ", ".join(
        f"{number} {severity}{'s' if number != 1 and severity != 'info' else ''}"
        for severity in SEVERITIES
        if (number := sum(one.severity == severity for one in findings))
    )
    parts.append(Text(f"{path}: {counts or 'nothing found'}", style="bold" if findings else "bold green"))
    return Group(*parts)


def _shown(text: str) -> str:
    """Return ``text`` with control and invisible characters escaped."""
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)
