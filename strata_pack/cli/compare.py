"""``strata-pack compare``: measures how far quantized models diverge from a reference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from strata_pack.cli.output import Out
from strata_pack.cli.report_files import HtmlFile, ReportFiles, SvgFile, write_late
from strata_pack.cli.shared_flags import with_shared_flags
from strata_pack.plural import counted

if TYPE_CHECKING:
    from strata_pack.compare.many import ModelComparison

app = typer.Typer()


@app.command(
    epilog="Example: strata-pack compare packs/my-model-Q4_K_M --against my-model-BF16.gguf --max-kl 0.05",
)
@with_shared_flags
def compare(
    model: Annotated[list[Path], typer.Argument(metavar="PACK|GGUF...", help="The models to compare.")],
    against: Annotated[
        Path, typer.Option(metavar="PACK|GGUF", help="The reference, in the highest precision you have.")
    ],
    text: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A UTF-8 text, repeatable. Default: prose and agent transcripts."),
    ] = None,
    max_kl: Annotated[
        float | None, typer.Option("--max-kl", min=0, help="Exit code 1 if a mean KL divergence (nats) is above.")
    ] = None,
    context: Annotated[int, typer.Option(min=32, help="Tokens per window; its second half is scored.")] = 512,
    windows: Annotated[int | None, typer.Option(min=1, help="Maximum windows per text.")] = None,
    parse_special: Annotated[
        bool, typer.Option("--parse-special", help="Tokenize special tokens spelled in FILE as special.")
    ] = False,
    keep_logits: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the reference's logits here for later runs.")
    ] = None,
    html: HtmlFile = None,
    svg: SvgFile = None,
    threads: Annotated[int | None, typer.Option("--threads", "-t", min=1, help="Default: all cores.")] = None,
    llama_server: Annotated[
        Path | None, typer.Option(help="Use the top tokens that this llama-server reports: bounds, not exact figures.")
    ] = None,
    kernels: Annotated[
        Literal["auto", "ggml"],
        typer.Option(help="ggml: llama.cpp multiplies all weights; auto: faster kernels where they apply."),
    ] = "auto",
    *,
    out: Out,
) -> None:
    """Compare models with a reference: perplexity, KL divergence of the next token, agreement on the likeliest
    token."""
    from strata_pack import report
    from strata_pack.compare.many import CompareOptions, compare_many
    from strata_pack.compare.output import make_report, picture
    from strata_pack.compare.texts import texts

    ReportFiles(html=html, svg=svg).try_all(*model, against, *(text or ()))
    options = CompareOptions(context, windows, threads, keep_logits, llama_server, kernels)
    with out.progress() as progress:
        found = compare_many(model, against, texts(text or (), parse_special=parse_special), options, progress)
    if len(found) == 1:
        _show_one(out, found[0])
    else:
        _show_many(out, found)
    above = [one for one in found if max_kl is not None and one.total.kl_mean > max_kl]
    first = {**found[0].to_dict(), "model": found[0].model} if len(found) == 1 else {}
    out.result({**first, "ok": not above, "max_kl": max_kl, "models": [one.to_dict() for one in found]})
    for one in above:
        out.note(f"strata-pack: {one.model}: the mean KL divergence {one.total.kl_mean:.6f} is above {max_kl:g}")
    code = write_late(html, lambda: report.html(make_report(found, max_kl)), out)
    code = max(code, write_late(svg, lambda: report.standalone(picture(found)), out))
    raise typer.Exit(1 if above else code)


def _show_one(out: Out, judged: ModelComparison) -> None:
    from rich.markup import escape
    from rich.table import Table

    found = judged.total
    table = Table("", escape(Path(judged.model).name), escape(Path(found.reference).name))
    ours, theirs = found.perplexity, found.reference_perplexity
    table.add_row("perplexity", f"{ours.value:.4f} ± {ours.error:.4f}", f"{theirs.value:.4f} ± {theirs.error:.4f}")
    table.add_row("KL divergence, mean", f"{found.kl_mean:.6f} ± {found.kl_mean_error:.6f}", "")
    if len(judged.by_text) > 1:
        for part in judged.by_text:
            table.add_row(f"  {escape(part.text)}", f"{part.kl_mean:.6f} ± {part.kl_mean_error:.6f}", "")
    table.add_row("median", f"{found.kl_median:.6f}", "")
    table.add_row("99th percentile", f"{found.kl_p99:.6f}", "")
    table.add_row("maximum", f"{found.kl_max:.6f}", "")
    table.add_row("same likeliest token", f"{found.top1_agreement:.2%}", "")
    out.show(table)
    _show_basis(out, judged)


def _show_many(out: Out, found: list[ModelComparison]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table("model", "MB", "bpw", "KL mean", "KL p99", "perplexity", "same top", "best")
    for one in found:
        total = one.total
        table.add_row(
            *(escape(Path(one.model).name), f"{one.size / 1e6:.1f}", f"{one.bits_per_weight:.2f}"),
            *(f"{total.kl_mean:.6f} ± {total.kl_mean_error:.6f}", f"{total.kl_p99:.4f}"),
            *(f"{total.perplexity.value:.4f}", f"{total.top1_agreement:.2%}", "yes" if one.best else ""),
        )
    out.show(table)
    out.line("best: no other model of the table is both smaller and closer to the reference")
    _show_basis(out, found[0])


def _show_basis(out: Out, judged: ModelComparison) -> None:
    found = judged.total
    parts = [f"{counted(part.windows, 'window')} of {part.context} of {part.text}" for part in judged.by_text]
    out.line(f"{found.tokens} tokens scored in {' and '.join(parts)}, from {found.method}")
    for bound in found.bounds:
        out.line(f"note: {bound}")
