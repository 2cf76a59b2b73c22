"""Reports the coverage of an importance matrix, with plots of experts and of weights dominated by few columns."""

from __future__ import annotations

from collections.abc import Sequence

from strata_pack.plural import counted
from strata_pack.report import Chart, Check, Report, Table
from strata_pack.weights.imatrix.show import Coverage, WeightCoverage

SHOWN = 16
"""Number of weights in a plot."""


def picture(found: Coverage) -> Chart:
    """Return the plot of the weights whose importance lies in the fewest columns."""
    outliers = found.outliers(SHOWN)
    return Chart(
        "Importance in the top 1 % of columns",
        "weight",
        "percent",
        _labels(outliers),
        {"top 1 % of columns": tuple(round(100 * weight.top_share, 1) for weight in outliers)},
    )


def _labels(weights: Sequence[WeightCoverage]) -> tuple[str, ...]:
    return tuple(weight.name.removesuffix(".weight") for weight in weights)


def make_report(found: Coverage) -> Report:
    """Return the report; its checks never fail, but it names experts that were never chosen."""
    weights, chunks = counted(len(found.weights), "weight"), counted(found.chunks, "chunk")
    checks = [
        Check(
            "outliers",
            "Weights whose importance lies in few columns",
            "passed",
            f"{weights} over {chunks} of {found.chunk_size} tokens",
            chart=picture(found),
            table=Table(
                ("weight", "columns", "rows seen", "percent in the top 1 %"),
                tuple((one.name, one.columns, one.rows, round(100 * one.top_share, 2)) for one in found.weights),
            ),
        )
    ]
    experts = [weight for weight in found.weights if weight.matrices > 1]
    if experts:
        fewest = sorted(experts, key=lambda weight: -len(weight.unseen) - len(weight.hardly_seen))[:SHOWN]
        checks.append(
            Check(
                "experts",
                "Experts that the text reached",
                "passed",
                f"{found.unseen} of {found.experts} were never chosen",
                chart=Chart(
                    "Experts never chosen",
                    "weight",
                    "experts",
                    _labels(fewest),
                    {
                        "never chosen": tuple(float(len(weight.unseen)) for weight in fewest),
                        "fewer than 16 rows": tuple(float(len(weight.hardly_seen)) for weight in fewest),
                    },
                ),
                table=Table(
                    ("weight", "experts", "never chosen"),
                    tuple((one.name, one.matrices, ", ".join(map(str, one.unseen))) for one in experts),
                ),
            )
        )
    facts = {"file": found.path, "texts": ", ".join(found.datasets) or "unnamed"}
    return Report("Importance matrix", tuple(checks), facts)
