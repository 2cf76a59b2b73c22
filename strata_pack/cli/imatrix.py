"""``strata-pack imatrix``: collects importance matrices on a calibration text, and shows what one covers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from strata_pack.cli.confirm import Yes, consent
from strata_pack.cli.output import Out
from strata_pack.cli.report_files import HtmlFile, ReportFiles, SvgFile, try_file, write_late
from strata_pack.cli.shared_flags import with_shared_flags
from strata_pack.plural import counted

if TYPE_CHECKING:
    from strata_pack.weights.imatrix.show import Coverage

DEFAULT = "collect"
OUTLIERS = 8
"""Number of weights shown with their concentration."""


class _CollectByDefault(TyperGroup):
    """``imatrix MODEL ...`` means ``imatrix collect MODEL ...``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_CollectByDefault,
    no_args_is_help=True,
    help="Collect an importance matrix (imatrix MODEL), or show one (imatrix show FILE).",
    epilog="Example: strata-pack imatrix qwen3-f16.gguf --text calibration.txt --out imatrix.gguf",
)


@app.command(
    DEFAULT, epilog="Example: strata-pack imatrix collect qwen3-f16.gguf --text calibration.txt --out imatrix.gguf"
)
@with_shared_flags
def collect(
    model: Annotated[Path, typer.Argument(metavar="PACK|GGUF", help="The model, in the highest precision you have.")],
    text: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A UTF-8 text, repeatable. Default: the shipped calibration text."),
    ] = None,
    dest: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write: .gguf, or .dat in the old format.")
    ] = Path("imatrix.gguf"),
    chunks: Annotated[int | None, typer.Option(min=0, help="Maximum number of chunks; 0 only merges.")] = None,
    ctx: Annotated[int, typer.Option(min=16, help="Tokens per chunk.")] = 512,
    merge: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Add the sums of this imatrix file, repeatable.")
    ] = None,
    process_output: Annotated[
        bool, typer.Option("--process-output", help="Collect for the output weights too.")
    ] = False,
    no_parse_special: Annotated[
        bool, typer.Option("--no-parse-special", help="Tokenize special tokens spelled in the text as plain text.")
    ] = False,
    threads: Annotated[int | None, typer.Option("--threads", "-t", min=1, help="Default: all cores.")] = None,
    yes: Yes = False,
    *,
    out: Out,
) -> None:
    """Evaluate a text with the model and write the importance of each column of each weight.

    An interrupted run is resumed by the same command.
    """
    from strata_pack.compare.full import model_file
    from strata_pack.weights.imatrix.collect import ImatrixRequest, make_imatrix
    from strata_pack.weights.imatrix.show import coverage_of

    request = ImatrixRequest(
        model_file(model),
        dest,
        texts=tuple(text or ()),
        context=ctx,
        chunks=chunks,
        merged=tuple(merge or ()),
        process_output=process_output,
        parse_special=not no_parse_special,
        threads=threads,
    )
    try_file(dest)
    consent(lambda: [f"{dest}: will be replaced"] if dest.exists() else [], out, yes=yes, named=True)
    with out.progress() as progress:
        result = make_imatrix(request, progress)
    found = coverage_of(result.collected, str(dest))
    rate = f", {result.tokens_per_second:.0f} tokens a second" if result.chunks > result.resumed else ""
    weights, evaluated = counted(len(found.weights), "weight"), counted(found.chunks, "chunk")
    out.line(
        f"{dest}: {weights}, {evaluated} of {found.chunk_size} tokens{rate}"
        + (f"; {found.unseen} of {found.experts} experts were never chosen" if found.unseen else "")
    )
    speed = {"resumed": result.resumed, "tokens_per_second": result.tokens_per_second}
    out.result({"ok": True, **found.to_dict(), **speed})


@app.command(epilog="Example: strata-pack imatrix show imatrix.gguf")
@with_shared_flags
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An imatrix, as GGUF or .dat.")],
    html: HtmlFile = None,
    svg: SvgFile = None,
    *,
    out: Out,
) -> None:
    """Show what an imatrix covers: chunks, experts never seen, weights whose importance is concentrated in few
    columns."""
    from strata_pack import report
    from strata_pack.weights.imatrix.output import make_report, picture
    from strata_pack.weights.imatrix.show import coverage

    ReportFiles(html=html, svg=svg).try_all(file)
    found = coverage(file)
    _show(out, found)
    out.result({"ok": True, **found.to_dict()})
    code = write_late(html, lambda: report.html(make_report(found)), out)
    raise typer.Exit(max(code, write_late(svg, lambda: report.standalone(picture(found)), out)))


def _show(out: Out, found: Coverage) -> None:
    from rich.markup import escape
    from rich.table import Table

    text = ", ".join(found.datasets) or "an unnamed text"
    chunks = counted(found.chunks, "chunk")
    out.line(f"{found.path}: {counted(len(found.weights), 'weight')}, {chunks} of {found.chunk_size} tokens of {text}")
    if found.experts:
        hardly = sum(len(weight.hardly_seen) for weight in found.weights)
        out.line(f"experts: {found.experts}, never chosen: {found.unseen}, given fewer than 16 rows: {hardly}")
        for weight in found.weights:
            if weight.unseen:
                out.line(f"  {weight.name}: {', '.join(map(str, weight.unseen))}")
    table = Table("weight", "columns", "importance in the top 1 %", "largest over median")
    for weight in found.outliers(OUTLIERS):
        table.add_row(escape(weight.name), str(weight.columns), f"{weight.top_share:.1%}", f"{weight.peak:.0f}")
    out.show(table)
