"""``strata-pack compare``: how much a quantized model lost against another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strata_pack.cli.face import Out, face

if TYPE_CHECKING:
    from strata_pack.compare.full import Comparison

app = typer.Typer()


@app.command(
    epilog="Example: strata-pack compare packs/my-model-Q4_K_M --against my-model-BF16.gguf --max-kl 0.05",
)
@face
def compare(
    model: Annotated[Path, typer.Argument(metavar="PACK|GGUF", help="The model to judge.")],
    against: Annotated[Path, typer.Option(metavar="PACK|GGUF", help="The reference, as exact as you have it.")],
    text: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A UTF-8 text. Default: a chapter of Alice in Wonderland.")
    ] = None,
    max_kl: Annotated[
        float | None, typer.Option("--max-kl", min=0, help="Exit code 1 if the mean KL divergence (nats) is above.")
    ] = None,
    context: Annotated[int, typer.Option(min=32, help="Tokens of a window; its second half is scored.")] = 512,
    windows: Annotated[int | None, typer.Option(min=1, help="Windows at most. Default: the whole text.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", "-t", min=1, help="Default: all cores.")] = None,
    llama_server: Annotated[
        Path | None,
        typer.Option(
            "--llama-server", help="Ask this llama-server for its likeliest tokens instead: bounds, not exact figures."
        ),
    ] = None,
    *,
    out: Out,
) -> None:
    """Compare two models over a text: perplexity, KL divergence of the next tokens, agreement on the likeliest."""
    from strata_pack.compare.top import compare_models

    with out.progress() as progress:
        found = compare_models(
            model,
            against,
            text,
            context=context,
            limit=windows,
            threads=threads,
            server=llama_server,
            progress=progress,
        )
    _show(out, found)
    within = max_kl is None or found.kl_mean <= max_kl
    out.result({"ok": within, "max_kl": max_kl, **found.to_dict()})
    if not within:
        out.note(f"strata-pack: {model}: the mean KL divergence {found.kl_mean:.6f} is above {max_kl:g}")
        raise typer.Exit(1)


def _show(out: Out, found: Comparison) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table("", escape(Path(found.model).name), escape(Path(found.reference).name))
    ours, theirs = found.perplexity, found.reference_perplexity
    table.add_row("perplexity", f"{ours.value:.4f} ± {ours.error:.4f}", f"{theirs.value:.4f} ± {theirs.error:.4f}")
    table.add_row("KL divergence, mean", f"{found.kl_mean:.6f} ± {found.kl_mean_error:.6f}", "")
    table.add_row("median", f"{found.kl_median:.6f}", "")
    table.add_row("99th percentile", f"{found.kl_p99:.6f}", "")
    table.add_row("maximum", f"{found.kl_max:.6f}", "")
    table.add_row("same likeliest token", f"{found.top1_agreement:.2%}", "")
    out.show(table)
    where = f"{found.windows} windows of {found.context} of {found.text}"
    out.line(f"{found.tokens} tokens scored in {where}, from {found.method}")
    for bound in found.bounds:
        out.line(f"note: {bound}")
