"""Reports a comparison: an overview with a plot of size against divergence, then one check for each model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from strata_pack.compare.full import Comparison
from strata_pack.compare.many import ModelComparison
from strata_pack.plural import counted
from strata_pack.report import Check, Point, Report, Scatter, Table

MB = 1e6


def label(model: str) -> str:
    """Return the short name of a model: its file or folder name without the suffix."""
    return Path(model).name.removesuffix(".gguf")


def picture(found: Sequence[ModelComparison]) -> Scatter:
    """Return the plot of size against mean divergence, with a line through the Pareto front.

    A model with an infinite divergence has no place in it.
    """
    points = tuple(
        Point(label(one.model), round(one.size / MB, 1), one.total.kl_mean, one.best)
        for one in found
        if math.isfinite(one.total.kl_mean)
    )
    values = [point.y for point in points if point.y > 0]
    wide = len(values) > 1 and max(values) > 20 * min(values)
    return Scatter("Size against KL divergence", "size in MB", "mean KL divergence in nats", points, log_y=wide)


def make_report(found: Sequence[ModelComparison], max_kl: float | None) -> Report:
    """Return the report; a model fails if its mean divergence is above ``max_kl``."""
    headers = (
        "model",
        "MB",
        "bits/weight",
        "KL mean",
        "±",
        "KL p99",
        "perplexity",
        "±",
        "same top",
        "best of its size",
    )
    rows = tuple(_row(one) for one in found)
    overview = Check(
        "overview",
        "All models against the reference",
        "passed",
        f"{counted(len(found), 'model')} over {found[0].total.tokens:,} scored tokens, {found[0].total.method}",
        table=Table(headers, rows),
        chart=picture(found),
    )
    reference = found[0].total
    scored = [f"{one.text} ({counted(one.windows, 'window')} of {one.context})" for one in found[0].by_text]
    facts = {
        "reference": reference.reference,
        "reference perplexity": f"{reference.reference_perplexity.value:.4f}",
        "texts": ", ".join(scored),
    }
    return Report("Comparison of models", (overview, *(_check(one, max_kl) for one in found)), facts)


def _row(one: ModelComparison) -> tuple[str | float, ...]:
    total = one.total
    return (
        *(label(one.model), round(one.size / MB, 1), round(one.bits_per_weight, 2)),
        *(round(total.kl_mean, 6), round(total.kl_mean_error, 6), round(total.kl_p99, 4)),
        *(round(total.perplexity.value, 4), round(total.perplexity.error, 4)),
        *(f"{total.top1_agreement:.2%}", "yes" if one.best else ""),
    )


def _check(one: ModelComparison, max_kl: float | None) -> Check:
    within = max_kl is None or one.total.kl_mean <= max_kl
    limit = "" if max_kl is None else f", {'within' if within else 'above'} the limit {max_kl:g}"
    parts = one.by_text if len(one.by_text) == 1 else (*one.by_text, one.total)
    headers = ("text", "tokens", "KL mean", "±", "KL median", "KL p99", "KL max", "perplexity", "±", "same top")
    return Check(
        f"model.{label(one.model)}",
        one.model,
        "passed" if within else "failed",
        f"mean KL divergence {one.total.kl_mean:.6f} ± {one.total.kl_mean_error:.6f}{limit}",
        table=Table(headers, tuple(map(_text_row, parts))),
        data={"bounds": one.total.bounds} if one.total.bounds else {},
    )


def _text_row(part: Comparison) -> tuple[str | float, ...]:
    return (
        *(part.text, part.tokens, round(part.kl_mean, 6), round(part.kl_mean_error, 6), round(part.kl_median, 6)),
        *(round(part.kl_p99, 4), round(part.kl_max, 4), round(part.perplexity.value, 4)),
        *(round(part.perplexity.error, 4), f"{part.top1_agreement:.2%}"),
    )
