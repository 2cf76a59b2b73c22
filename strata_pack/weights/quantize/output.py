"""Reports a quantization plan: bytes by type, and the type of every tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from strata_pack.report import Chart, Check, Report, Table
from strata_pack.weights.quantize.plan import QuantPlan, requantize_note
from strata_pack.weights.quantize.run import output_sizes

MIB = 1 << 20


def make_report(plans: Sequence[QuantPlan]) -> Report:
    """Return the report of one or several plans of one source: one check each, with a chart of MiB by type."""
    return Report(
        "Quantization plan",
        tuple(_check(plan) for plan in plans),
        {"source": plans[0].source.label, "weights": f"{plans[0].parameters:,}"},
    )


def picture(plans: Sequence[QuantPlan]) -> Chart:
    """Return the plot of MiB by type, a series for each plan."""
    sizes = [_sizes(plan) for plan in plans]
    names = sorted({name for one in sizes for name in one}, key=lambda name: -max(one.get(name, 0) for one in sizes))
    series = {
        plan.recipe.label: tuple(round(one.get(name, 0) / MIB, 1) for name in names)
        for plan, one in zip(plans, sizes, strict=True)
    }
    return Chart("MiB by type", "type", "MiB", tuple(names), series)


def _sizes(plan: QuantPlan) -> Mapping[str, int]:
    """Return the bytes of the plan's tensors by type."""
    sizes: Counter[str] = Counter()
    for tensor in plan.tensors:
        sizes[tensor.type.name] += tensor.nbytes
    return sizes


def _check(plan: QuantPlan) -> Check:
    note = requantize_note(plan)
    detail = f"{sum(output_sizes(plan)):,} bytes, {plan.bits_per_weight:.2f} bits per weight"
    return Check(
        f"plan.{plan.recipe.label}",
        f"{plan.recipe.label}: types and sizes",
        "passed",
        detail if note is None else f"{detail}; {note}",
        chart=picture([plan]),
        table=Table(
            ("tensor", "shape", "from", "to", "MiB", "bits", f"in {plan.recipe.base.name}"),
            tuple(
                (
                    *(one.name, " x ".join(map(str, one.source.shape)), one.source.type.name, one.type.name),
                    *(round(one.nbytes / MIB, 3), round(8 * one.nbytes / one.source.elements, 2), one.base_type.name),
                )
                for one in plan.tensors
            ),
        ),
    )
