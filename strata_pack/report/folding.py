"""Groups checks with the same cause: if a server without Jinja fails 150 conversations alike, one line reports it.

JSON contains every check; the outputs for users and CI show the first of each group, which names the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from strata_pack.report.model import STATUSES, Check, Report, Status

LEAST = 3
"""Minimum number of checks with the same status and text that are shown as one."""

NAMED = 3

FOLDED: tuple[Status, ...] = ("failed", "error", "skipped")


def fold(report: Report) -> Report:
    """Return ``report`` with checks of the same cause merged; passed checks are unchanged."""
    groups: dict[tuple[Status, str], list[Check]] = {}
    for check in report.checks:
        groups.setdefault((check.status, check.detail), []).append(check)
    kept: list[Check] = []
    for check in report.checks:
        group = groups[check.status, check.detail]
        if check.status not in FOLDED or not check.detail or len(group) < LEAST:
            kept.append(check)
        elif check is group[0]:
            kept.append(_as_one(group))
    return replace(report, checks=tuple(kept))


def _as_one(group: Sequence[Check]) -> Check:
    first, others = group[0], [check.id for check in group[1:]]
    more = len(others) - NAMED
    names = ", ".join(others[:NAMED]) + (f" and {more} more" if more > 0 else "")
    return replace(
        first,
        detail=f"{first.detail} ({len(group)} times, also {names})",
        seconds=sum(check.seconds for check in group),
        data={**first.data, "folded": [check.id for check in group]},
    )


def worst_first(report: Report) -> list[Check]:
    """Return the checks with those that need attention first, each status in the order of the run."""
    return sorted(report.checks, key=lambda check: STATUSES.index(check.status))
