"""Formats the result of a golden check: terminal table and differences, checks for JUnit and SARIF, annotations."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from strata_pack.chat.golden.check import CaseResult, CaseStatus, GoldenReport
from strata_pack.report import model
from strata_pack.report.screen import STYLES, difference

AS_CHECK: dict[CaseStatus, model.Status] = {"passed": "passed", "failed": "failed", "known": "skipped"}


def to_report(checked: Sequence[tuple[str, GoldenReport]]) -> model.Report:
    """Return golden checks as one ``Report`` with one ``Check`` per case and engine.

    ``checked`` are pairs of the template's name for the report, and its golden report.
    """
    facts: dict[str, str] = {}
    for where, golden in checked:
        facts |= {f"{where} sha256": golden.template_sha256, f"{where} suite sha256": golden.suite_sha256}
        facts |= {f"engine {name}": version for name, version in golden.engines.items()}
    checks = [_check(result, golden.suite, where) for where, golden in checked for result in golden.results]
    return model.Report(title="golden", checks=tuple(checks), facts=facts)


def _check(result: CaseResult, suite: str, where: str) -> model.Check:
    return model.Check(
        id=f"{suite}/{result.engine}/{result.case.id}",
        title=result.case.name,
        status=AS_CHECK[result.status],
        detail=_detail(result),
        where=where,
        expected=_wanted(result),
        got=_got(result),
    )


def _wanted(result: CaseResult) -> str:
    case = result.case
    return f"refused: {case.error}" if case.error is not None else case.expected or ""


def _got(result: CaseResult) -> str:
    return f"refused: {result.got_error}" if result.got_error is not None else result.got or ""


def _detail(result: CaseResult) -> str:
    if result.status == "known":
        return f"known difference: {result.reason or 'listed in differs_on'}"
    if result.status == "passed":
        return ""
    wanted, got = _wanted(result), _got(result)
    at = next((index for index, pair in enumerate(zip(wanted, got, strict=False)) if pair[0] != pair[1]), None)
    place = min(len(wanted), len(got)) if at is None else at
    line = wanted.count("\n", 0, place) + 1
    return f"differs at character {place} (line {line}): expected {_quote(wanted, place)}, got {_quote(got, place)}"


def _quote(text: str, place: int) -> str:
    """Return the characters from ``place`` on, quoted, or a note that the text ends there."""
    return repr(text[place : place + 24]) if place < len(text) else "the end"


def terminal(golden: GoldenReport, where: str) -> Group:
    """Return the renderables for rich: engines by result, known differences by reason, every failure with its diff."""
    title = Text(f"{where}: {golden.suite}, {len(golden.results) // max(len(golden.engines), 1)} cases", style="bold")
    failures = [part for result in golden.failures for part in _failure(result)]
    return Group(title, _matrix(golden), *_known(golden), *failures)


def _matrix(golden: GoldenReport) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for header in ("engine", "version", "passed", "known", "failed"):
        table.add_column(header, justify="left" if header in ("engine", "version") else "right")
    for name, version in golden.engines.items():
        counts = golden.counts(name)
        style = STYLES["failed"] if counts["failed"] else STYLES["passed"]
        cells = [Text(str(counts[status])) for status in ("passed", "known", "failed")]
        table.add_row(Text(name, style=style), Text(version), *cells)
    return table


def _known(golden: GoldenReport) -> list[Text]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for result in golden.results:
        if result.status == "known":
            reasons.setdefault((result.engine, result.reason or "listed in differs_on"), []).append(result.case.name)
    if not reasons:
        return []
    lines = [Text(f"  {engine}: {why}: {'; '.join(names)}", style="dim") for (engine, why), names in reasons.items()]
    return [Text("known differences", style=STYLES["skipped"]), *lines]


def _failure(result: CaseResult) -> list[Text]:
    title = Text(f"{result.engine}, {result.case.id}", style=STYLES["failed"])
    return [Text(), title, Text(f"  {_detail(result)}"), difference(_wanted(result), _got(result))]


def github_annotations(golden: GoldenReport, where: str) -> list[str]:
    """Return one GitHub workflow command for each failure, which GitHub shows next to the template's file."""
    return [
        f"::error file={_property(where)},title={_property(f'golden {result.engine}')}::"
        + _data(f"{result.case.id}: {_detail(result)}")
        for result in golden.failures
    ]


def _data(text: str) -> str:
    """Escape the message of a workflow command (GitHub's own rule)."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
