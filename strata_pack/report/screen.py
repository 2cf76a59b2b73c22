"""Prints a report on a terminal: one table, then the failed checks with the first difference of the texts."""

from __future__ import annotations

from rich.console import Group
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from strata_pack.report.diff import Segment, differences, printable, shorten, visible
from strata_pack.report.folding import fold
from strata_pack.report.model import Check, Report, Status, Table

STYLES: dict[Status, str] = {"passed": "green", "failed": "bold red", "skipped": "yellow", "error": "bold magenta"}
_DIFF_STYLES = {"equal": "dim", "removed": "red", "added": "green"}
_MARKS = {"equal": ("", ""), "removed": ("[-", "-]"), "added": ("{+", "+}")}
CONTEXT = 60
TABLE_ROWS = 8
"""Largest number of rows of a table that is printed; larger ones are only in the page and the JSON."""


def terminal(found: Report) -> Group:
    """Return what rich prints: title, facts, table of checks, details of failures, and the count."""
    report = fold(found)
    facts = [Text(f"{name}: {value}", style="dim") for name, value in report.facts.items()]
    overview = RichTable(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    overview.add_column(no_wrap=True)
    overview.add_column(no_wrap=True)
    overview.add_column(overflow="fold")
    overview.add_column(justify="right", no_wrap=True)
    for check in report.checks:
        status = Text(check.status, style=STYLES[check.status])
        overview.add_row(status, escape(check.id), escape(check.detail or check.title), f"{check.seconds:.1f} s")
    shown = [(check, check.table) for check in report.checks if check.table and len(check.table.rows) <= TABLE_ROWS]
    tables = [part for check, table in shown for part in (Text(), _figures(check, table))]
    told = [part for check in report.checks if check.status == "failed" for part in _failure(check)]
    end = Text(f"{found.summary} in {found.seconds:.1f} s", style=STYLES[found.status])
    return Group(Text(report.title, style="bold"), *facts, Text(), overview, *tables, *told, Text(), end)


def _figures(check: Check, table: Table) -> RichTable:
    shown = RichTable(title=check.id, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, header in enumerate(table.headers):
        shown.add_column(escape(header), justify="left" if number == 0 else "right")
    for row in table.rows:
        shown.add_row(*(escape(f"{cell:,}" if isinstance(cell, int) else str(cell)) for cell in row))
    return shown


def _failure(check: Check) -> list[Text]:
    """Return the difference between expected and got, with visible white space."""
    if check.expected is None or check.got is None:
        return []
    title = Text(f"{check.id}: expected (red) and got (green)", style="bold")
    return [Text(), title, difference(check.expected, check.got)]


def difference(expected: str, got: str) -> Text:
    """Return the differences of two texts: text only in ``expected`` in red, only in ``got`` in green, white space
    visible.

    Without colours (a pipe, a log) they are marked ``[-...-]`` and ``{+...+}``.
    """
    body = Text()
    for part in shorten(differences(expected, got), CONTEXT):
        before, after = _MARKS[part.kind]
        body.append(f"{before}{_drawn(part)}{after}", style=_DIFF_STYLES[part.kind])
    return body


def _drawn(part: Segment) -> str:
    return printable(part.text) if part.kind == "equal" else visible(part.text)
