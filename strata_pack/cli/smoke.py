"""``strata-pack smoke``: proves on a real server that a pack loses no tool call."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strata_pack.cli import complete
from strata_pack.cli.confirm import Anyway
from strata_pack.cli.output import Out
from strata_pack.cli.report_files import HtmlFile, JunitFile, ReportFiles, SarifFile
from strata_pack.cli.shared_flags import with_shared_flags

app = typer.Typer()

SERVER = "The server"


@app.command(epilog="Example: strata-pack smoke packs/SmolLM2-135M-Instruct-Q4_K_M --html report.html")
@with_shared_flags
def smoke(
    target: Annotated[
        Path | None, typer.Argument(help="A pack folder or a .gguf file.", metavar="TARGET", show_default=False)
    ] = None,
    *,
    url: Annotated[str | None, typer.Option(help="Test this OpenAI-compatible server.", metavar="URL")] = None,
    template: Annotated[str | None, typer.Option(help="Template for a bare .gguf.", metavar="ID|FILE")] = None,
    golden: Annotated[Path | None, typer.Option(help="Golden cases in place of the pack's.", metavar="FILE")] = None,
    source: Annotated[
        Path | None, typer.Option(help="What the model was made from: config.json, GGUF or pack.", metavar="PATH")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Run only this scenario; repeatable.", metavar="ID", autocompletion=complete.scenarios),
    ] = None,
    limit: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds a scenario may take.", metavar="SECONDS", show_default=False)
    ] = None,
    runtime: Annotated[
        str,
        typer.Option(
            help="See `runtime list`.", metavar="NAME", rich_help_panel=SERVER, autocompletion=complete.runtimes
        ),
    ] = "auto",
    llama_server: Annotated[
        Path | None, typer.Option(help="A llama-server binary.", metavar="FILE", rich_help_panel=SERVER)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model name for --url.", metavar="ID", rich_help_panel=SERVER)
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="STRATA_SMOKE_API_KEY", help="Key for --url.", metavar="KEY", rich_help_panel=SERVER),
    ] = None,
    context: Annotated[
        int,
        typer.Option(min=512, help="Context tokens of all slots together.", metavar="TOKENS", rich_help_panel=SERVER),
    ] = 8192,
    gpu_layers: Annotated[
        int | None,
        typer.Option(min=0, help="Layers on the GPU (default: as many as fit).", metavar="N", rich_help_panel=SERVER),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Compute threads.", metavar="N", rich_help_panel=SERVER)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Port of the server (default: a free one).", metavar="N", rich_help_panel=SERVER
        ),
    ] = None,
    start_timeout: Annotated[
        float,
        typer.Option(min=1, help="Seconds to wait for the model to load.", metavar="SECONDS", rich_help_panel=SERVER),
    ] = 60.0,
    anyway: Anyway = False,
    html: HtmlFile = None,
    junit: JunitFile = None,
    sarif: SarifFile = None,
    out: Out,
) -> None:
    """Run the scenarios on a real llama.cpp server, or on the server at --url.

    Exit code 0: all passed; 1: a scenario failed; 3: a scenario could not be run.
    """
    from strata_pack.llama.runtimes import pick_runtime
    from strata_pack.pack.layout import Pack
    from strata_pack.pack.paths import is_pack
    from strata_pack.report import terminal
    from strata_pack.smoke.prove import keep_report
    from strata_pack.smoke.run import SmokeOptions, is_complete_report, run_smoke, run_smoke_url
    from strata_pack.smoke.runner import Interrupted
    from strata_pack.smoke.target import one_of

    one_of(target, url)
    files = ReportFiles(html, junit, sarif)
    files.try_all(target, template, golden, source, llama_server)
    options = SmokeOptions(
        runtime=None if url else pick_runtime(runtime, llama_server),
        only=tuple(only or ()),
        limit_seconds=limit,
        start_seconds=start_timeout,
        port=port,
        context=context,
        gpu_layers=gpu_layers,
        threads=threads,
        anyway=anyway,
    )
    try:
        with out.progress() as progress:
            if target is not None:
                report = run_smoke(
                    target, template=template, suite=golden, source=source, options=options, progress=progress
                )
            else:
                report = run_smoke_url(str(url), model=model, api_key=api_key, options=options, progress=progress)
    except Interrupted as stopped:
        if stopped.report is not None:
            out.show(terminal(stopped.report))
        raise
    out.show(terminal(report))
    out.result(report.to_dict())
    if target is not None and is_pack(target) and not only and template is None and is_complete_report(report):
        with out.progress() as progress:
            keep_report(Pack.open(target), "smoke", report, progress)
    code = files.write(report, out)
    raise typer.Exit(report.exit_code or code)
