"""``strata-pack quantize``: quantizes a GGUF or a safetensors checkpoint to a smaller GGUF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata_pack.cli.confirm import Yes, consent
from strata_pack.cli.output import Out
from strata_pack.cli.quant_options import QuantFlags, with_quant_flags
from strata_pack.cli.report_files import ReportFiles, write_late
from strata_pack.cli.shared_flags import with_shared_flags

if TYPE_CHECKING:
    from strata_pack.weights.quantize.command import QuantizeRequest
    from strata_pack.weights.quantize.recipes import Recipe
    from strata_pack.weights.quantize.run import QuantPlan

app = typer.Typer()


@app.command(epilog="Example: strata-pack quantize qwen3-f16.gguf qwen3-Q4_K_M.gguf --quant Q4_K_M --dry-run")
@with_shared_flags
@with_quant_flags
def quantize(
    source: Annotated[str, typer.Argument(help="A .gguf (or any shard of one), or a folder with safetensors.")],
    dest: Annotated[Path | None, typer.Argument(metavar="FILE", help="The .gguf to write, or a folder.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show every tensor's type and size, and stop.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="With --dry-run: the plan as a page.")] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="With --dry-run: sizes by type as an SVG.")] = None,
    *,
    flags: QuantFlags,
    out: Out,
) -> None:
    """Quantize a model; the file is byte-identical to llama-quantize's.

    With several --quant, the source is read once and FILE is a folder.

    An interrupted run is resumed by the same command.
    """
    from strata_pack.errors import WrongUse
    from strata_pack.outputs import check_file_output
    from strata_pack.weights.quantize.command import QuantizeRequest, existing_outputs, quantize_files, target_file

    pictures = ReportFiles(html=html, svg=svg)
    if pictures != ReportFiles() and not dry_run:
        raise WrongUse("--html and --svg write the plan that --dry-run shows")
    pictures.try_all(source, flags.imatrix)
    flags.check_fit()
    if flags.fit is not None and not dry_run:
        check_file_output(target_file(dest), force=force)  # before the search, which takes minutes
    edits, split_bytes = flags.edits(), flags.split_bytes()
    recipes, searched = flags.recipes(source, None if dest is None else dest.parent / f"{dest.stem}.fit.toml", out)
    request = QuantizeRequest(
        source=source,
        dest=dest,
        recipe=recipes[0],
        imatrix=flags.imatrix,
        keep_split=flags.keep_split,
        allow_requantize=flags.allow_requantize,
        allow_nonfinite=flags.allow_nonfinite,
        force=force,
        threads=flags.threads,
        kernels=flags.kernels,
        edits=edits,
        split_bytes=split_bytes,
    )
    if dry_run:
        _show_plans(request, recipes, searched, pictures, out)
        return
    if force:
        consent(
            lambda: [f"{path}: will be replaced" for path in existing_outputs(request, recipes)],
            out,
            yes=yes,
            named=True,
        )
    with out.progress() as progress:
        results = quantize_files(request, recipes, progress)
    for file in (file for result in results for file in result.files):
        out.line(f"{file.path}: {file.size / (1 << 20):,.1f} MiB, sha256 {file.sha256}")
    answers = [result.to_dict() for result in results]
    outputs = {one.label: answer for one, answer in zip(recipes, answers, strict=True)}
    out.result({"ok": True, **(answers[0] if len(answers) == 1 else {"outputs": outputs}), **searched})


def _show_plans(
    request: QuantizeRequest, recipes: Sequence[Recipe], searched: Mapping[str, Any], pictures: ReportFiles, out: Out
) -> None:
    from strata_pack import report
    from strata_pack.weights.quantize.command import open_plans
    from strata_pack.weights.quantize.output import make_report, picture

    with open_plans(request, recipes) as plans:
        shown = [show_plan(plan, out) for plan in plans]
        out.result({**(shown[0] if len(shown) == 1 else {"ok": True, "plans": shown}), **searched})
        code = write_late(pictures.html, lambda: report.html(make_report(plans)), out)
        raise typer.Exit(max(code, write_late(pictures.svg, lambda: report.standalone(picture(plans)), out)))


def show_plan(plan: QuantPlan, out: Out) -> dict[str, Any]:
    """Print a plan, one line per tensor and the totals; return the whole plan as JSON data."""
    from rich.markup import escape
    from rich.table import Table

    from strata_pack.weights.quantize.plan import requantize_note
    from strata_pack.weights.quantize.run import output_sizes

    table = Table("tensor", "shape", "from", "to", box=None, pad_edge=False)
    for title in ("MiB", "bits"):
        table.add_column(title, justify="right")
    table.add_column(f"differs from {plan.recipe.base.name}")
    for tensor in plan.tensors:
        table.add_row(
            escape(tensor.name),
            " x ".join(map(str, tensor.source.shape)),
            tensor.source.type.name,
            tensor.type.name,
            f"{tensor.nbytes / (1 << 20):.3f}",
            f"{8 * tensor.nbytes / tensor.source.elements:.2f}",
            "" if tensor.type is tensor.base_type else f"{tensor.base_type.name} there",
        )
    sizes = output_sizes(plan)
    out.show(table)
    counts = ", ".join(f"{count} {name}" for name, count in plan.type_counts.items())
    out.line(f"{len(plan.tensors)} tensors: {counts}")
    files = "" if len(sizes) == 1 else f" in {len(sizes)} files"
    out.line(f"{sum(sizes):,} bytes{files}, {plan.bits_per_weight:.2f} bits per weight")
    note = requantize_note(plan)
    if note is not None:
        out.line(note)
    return {"ok": True, **plan.to_dict(), "file_bytes": sizes}
