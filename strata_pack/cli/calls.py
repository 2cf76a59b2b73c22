"""``strata-pack calls``: measures how well a model calls tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strata_pack.cli import complete
from strata_pack.cli.output import Out
from strata_pack.cli.report_files import HtmlFile, ReportFiles, SvgFile, write_late
from strata_pack.cli.shared_flags import with_shared_flags

if TYPE_CHECKING:
    from strata_pack.compare.calls.run import CallsResult

app = typer.Typer()


@app.command(epilog="Example: strata-pack calls packs/my-model-Q4_K_M --against my-model-BF16.gguf --min 0.95")
@with_shared_flags
def calls(
    model: Annotated[
        Path | None, typer.Argument(metavar="PACK|GGUF", help="The model to ask.", show_default=False)
    ] = None,
    url: Annotated[str | None, typer.Option(help="Ask this llama.cpp server instead; needs --template.")] = None,
    against: Annotated[
        Path | None, typer.Option(metavar="PACK|GGUF", help="A reference model for the same tasks.")
    ] = None,
    minimum: Annotated[
        float | None,
        typer.Option(
            "--min", min=0, max=1, help="Exit code 1 below this share of the reference's right calls (or of all tasks)."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed: another one gives other tasks of the same kinds.")] = 0,
    tasks: Annotated[int, typer.Option(min=1, max=1000, help="Number of tasks of each of the nine kinds.")] = 8,
    limit: Annotated[int, typer.Option(min=16, help="Maximum tokens of a reply.")] = 768,
    template: Annotated[Path | None, typer.Option(metavar="FILE", help="Template in place of the model's own.")] = None,
    html: HtmlFile = None,
    svg: SvgFile = None,
    runtime: Annotated[
        str, typer.Option(metavar="NAME", help="See `runtime list`.", autocompletion=complete.runtimes)
    ] = "auto",
    llama_server: Annotated[Path | None, typer.Option(metavar="FILE", help="A llama-server binary.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", "-t", min=1, help="Default: all cores.")] = None,
    *,
    out: Out,
) -> None:
    """Give a model tasks that need tools and check its calls, which are generated without a grammar.

    Decoding is greedy, so a second run gives the same numbers. Each share has its 95 % confidence interval.
    """
    from strata_pack import report
    from strata_pack.compare.calls.output import make_report, picture, wanted
    from strata_pack.compare.calls.run import CallsOptions, ask_model, ask_url, check_model
    from strata_pack.errors import WrongUse
    from strata_pack.llama.runtimes import pick_runtime

    if (model is None) == (url is None):
        raise WrongUse("needs exactly one of PACK|GGUF and --url")
    if url is not None and template is None:
        raise WrongUse("--url needs a --template, which renders the prompts")
    ReportFiles(html=html, svg=svg).try_all(model, against, template)
    chosen = None if url is not None and against is None else pick_runtime(runtime, llama_server)
    options = CallsOptions(seed, tasks, limit, template, chosen, threads)
    if against is not None:
        check_model(against, options)  # before the model's own tasks, which take minutes
    with out.progress() as progress:
        if model is not None:
            found = ask_model(model, options, progress)
        else:
            assert url is not None
            assert template is not None
            found = ask_url(url, template, options, progress)
        reference = None if against is None else ask_model(against, options, progress)
    page = make_report(found, reference, minimum)
    _show(out, found, reference)
    out.result(
        {
            "ok": page.ok,
            "min": minimum,
            **found.to_dict(),
            "reference": None if reference is None else reference.to_dict(),
        }
    )
    if not page.ok and minimum is not None:
        share = wanted(reference, minimum)
        out.note(f"strata-pack: {found.model}: {found.total.value:.1%} right calls are below {share:.1%}")
    code = write_late(html, lambda: report.html(page), out)
    code = max(code, write_late(svg, lambda: report.standalone(picture(found, reference)), out))
    raise typer.Exit(1 if not page.ok else code)


def _show(out: Out, found: CallsResult, reference: CallsResult | None) -> None:
    from rich.markup import escape
    from rich.table import Table

    from strata_pack.compare.calls.output import percent

    results = [found] if reference is None else [found, reference]
    table = Table("kind", *(escape(Path(one.model).name) for one in results))
    for kind in found.by_kind:
        table.add_row(kind, *(percent(one.by_kind[kind]) for one in results))
    table.add_section()
    table.add_row("all", *(percent(one.total) for one in results))
    for verdict in ("wrong arguments", "wrong name", "invalid", "missing", "needless"):
        table.add_row(f"  {verdict}", *(str(one.count(verdict)) for one in results))
    for name in ("stranded", "drifted"):
        table.add_row(f"  {name}", *(str(sum(getattr(j, name) for j in one.scores)) for one in results))
    out.show(table)
