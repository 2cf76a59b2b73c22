"""Writes a report as one self-contained HTML page with light and dark mode, which works without its script.

All text in a report is untrusted (a model wrote some of it), so this module escapes every piece, the page has a content
security policy that forbids all loading, and its script only shows and hides existing elements.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib import resources
from urllib.parse import quote

from strata_pack import __version__
from strata_pack.report.diff import differences, shorten, visible
from strata_pack.report.folding import fold, worst_first
from strata_pack.report.model import STATUSES, Check, Report, Table
from strata_pack.report.picture import drawing

TEXT_LIMIT = 200_000
"""Maximum characters of one prompt or log that the page shows."""


def html(report: Report) -> bytes:
    """Return the page, UTF-8."""
    counts = "".join(
        f'<button type="button" class="filter {status}" data-status="{status}" aria-pressed="false">'
        f"<b>{report.count(status)}</b> {status}</button>"
        for status in STATUSES
    )
    facts = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in report.facts.items())
    pieces = {
        "title": _text(report.title),
        "status": report.status,
        "summary": _text(report.summary),
        "seconds": f"{report.seconds:.1f}",
        "started": _text(report.started or ""),
        "version": __version__,
        "facts": facts,
        "counts": counts,
        "checks": "".join(_check(check) for check in worst_first(fold(report))),
        "style": _file("page.css"),
        "script": _file("page.js"),
    }
    return _fill(_file("page.html"), pieces).encode("utf-8", "replace")


def _file(name: str) -> str:
    return resources.files("strata_pack.report").joinpath(name).read_text(encoding="utf-8")


def _fill(template: str, pieces: dict[str, str]) -> str:
    """Replace the placeholders in double braces by the pieces in one pass; placeholders inside a piece are not
    replaced."""
    filled: list[str] = []
    for number, part in enumerate(template.split("{{")):
        if number == 0:
            filled.append(part)
            continue
        name, _, rest = part.partition("}}")
        filled += [pieces[name.strip()], rest]
    return "".join(filled)


def _text(text: str) -> str:
    return escape(text, quote=True)


def _check(check: Check) -> str:
    body = "".join(_parts(check))
    opened = " open" if check.chart or check.status in ("failed", "error") else ""
    head = (
        f'<span class="badge {check.status}">{check.status}</span><code class="id">{_text(check.id)}</code>'
        f'<span class="detail">{_text(check.detail or check.title)}</span>'
        f'<span class="seconds">{check.seconds:.1f} s</span>'
    )
    return (
        f'<details class="check" data-status="{check.status}" id="{_text(check.id)}"{opened}>'
        f"<summary>{head}</summary><div class=body>{body}</div></details>\n"
    )


def _parts(check: Check) -> Iterable[str]:
    yield f"<p>{_text(check.title)}</p>"
    if check.repeat and check.status in ("failed", "error"):
        yield f"<p class=repeat>Repeat it: <code>{_text(check.repeat)}</code></p>"
    if check.where:
        yield f"<p class=where>{_text(check.where)}</p>"
    if check.links:
        yield f"<p class=links>{' · '.join(_link(name, path) for name, path in check.links.items())}</p>"
    if check.chart:
        yield drawing(check.chart)
    if check.table:
        yield _table(check.table)
    if check.expected is not None and check.got is not None and check.expected != check.got:
        yield _section(
            "Difference: expected (red, dotted) and got (green, solid)", _difference(check.expected, check.got)
        )
    for name, text in (("Prompt", check.prompt), ("Expected", check.expected), ("Got", check.got)):
        if text is not None:
            yield _section(name, f"<pre>{_text(_limited(text))}</pre>", folded=len(text) > 2000 or name == "Prompt")
    if check.log:
        yield _section("Server log around it", f"<pre class=log>{_text(_limited(check.log))}</pre>", folded=True)


def _link(name: str, path: str) -> str:
    """Return a link to a file near the page; quoting ensures that the path cannot contain a URL scheme."""
    return f'<a href="{_text(quote(path))}">{_text(name)}</a>'


def _section(name: str, body: str, *, folded: bool = False) -> str:
    return f"<details class=part{'' if folded else ' open'}><summary>{_text(name)}</summary>{body}</details>"


def _limited(text: str) -> str:
    left_out = len(text) - TEXT_LIMIT
    return text if left_out <= 0 else f"{text[:TEXT_LIMIT]}\n[... {left_out:,} more characters ...]"


_MARKS = {"removed": "del", "added": "ins"}


def _difference(expected: str, got: str) -> str:
    """Return the difference, with visible white space where the texts differ."""
    pieces = []
    for part in shorten(differences(expected, got)):
        mark = _MARKS.get(part.kind)
        text = _limited(part.text)
        pieces.append(f"<{mark}>{_text(visible(text))}</{mark}>" if mark else _text(text))
    return f"<pre class=diff>{''.join(pieces)}</pre>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{_text(header)}</th>" for header in table.headers)
    rows = "".join("<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in table.rows)
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"


def _cell(cell: str | int | float) -> str:
    if isinstance(cell, str):
        return f"<td>{_text(cell)}</td>"
    return f"<td class=number>{cell:,}</td>"
