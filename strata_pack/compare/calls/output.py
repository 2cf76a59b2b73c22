"""Reports the calls of one or two models: a check for each kind of task, with the wrong replies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strata_pack.compare.calls.run import CallsResult
from strata_pack.compare.calls.score import CallScore, Share
from strata_pack.report import Chart, Check, Report, Table

SHOWN = 5
"""Maximum number of wrong replies of a kind that the page shows."""


def percent(share: Share) -> str:
    """Return a share with its 95 % interval: ``7 of 8, 88 % (53 to 98)``."""
    low, high = share.interval
    return f"{share.right} of {share.tasks}, {share.value:.0%} ({100 * low:.0f} to {100 * high:.0f})".replace("%", " %")


def picture(found: CallsResult, reference: CallsResult | None) -> Chart:
    """Return the plot of right calls by kind of task."""
    results = [found] if reference is None else [found, reference]
    kinds = tuple(found.by_kind)
    shares = [tuple(round(100 * one.by_kind[kind].value, 1) for kind in kinds) for one in results]
    names = [Path(one.model).name for one in results]
    names[1:] = [f"{name} (reference)" for name in names[1:]]
    series = dict(zip(names, shares, strict=True))
    return Chart("Right tool calls by kind of task", "kind", "percent", kinds, series)


def make_report(found: CallsResult, reference: CallsResult | None, least: float | None) -> Report:
    """Return the report. ``least``: the required share of the reference's right calls (or of all tasks)."""
    enough = least is None or found.total.value >= wanted(reference, least)
    results = [found] if reference is None else [found, reference]
    detail = percent(found.total)
    if reference is not None:
        detail += f"; reference: {percent(reference.total)}"
    overview = Check(
        "calls",
        "Right tool calls over all tasks",
        "passed" if enough else "failed",
        detail,
        chart=picture(found, reference),
        table=Table(
            ("model", "right", "of", "stranded", "drifted"),
            tuple((one.model, one.total.right, one.total.tasks, *_counts(one.scores)) for one in results),
        ),
    )
    facts = {"model": found.model, "seed": str(found.seed), "tasks": str(found.total.tasks)}
    if reference is not None:
        facts["reference"] = reference.model
    return Report("Tool calls", (overview, *(_kind(found, kind) for kind in found.by_kind)), facts)


def wanted(reference: CallsResult | None, least: float) -> float:
    """Return the required share of right calls: ``least`` times the reference's, or of all tasks."""
    return least if reference is None else least * reference.total.value


def _counts(scores: Sequence[CallScore]) -> tuple[int, int]:
    return sum(one.stranded for one in scores), sum(one.drifted for one in scores)


def _kind(found: CallsResult, kind: str) -> Check:
    wrong = [one for one in found.scores if one.kind == kind and not one.right]
    shown = "\n\n".join(f"{one.task}: {one.verdict}\n{one.reply}" for one in wrong[:SHOWN])
    return Check(
        f"calls.{kind}",
        f"Tasks of the kind {kind}",
        "passed",
        percent(found.by_kind[kind]) + "".join(f"; {one.task} {one.verdict}" for one in wrong),
        log=shown or None,
    )
