"""``strata-pack smoke``: prove on a real server that a pack loses no tool call."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strata_pack.cli import complete
from strata_pack.cli.face import face
from strata_pack.cli.output import Out

app = typer.Typer()

SERVER = "The server"
REPORT = "The report"


@app.command(epilog="Example: strata-pack smoke packs/SmolLM2-135M-Instruct-Q4_K_M --html report.html")
@face
def smoke(
    target: Annotated[
        Path | None, typer.Argument(help="A pack folder or a .gguf file.", metavar="TARGET", show_default=False)
    ] = None,
    *,
    url: Annotated[str | None, typer.Option(help="Test this OpenAI-compatible server.", metavar="URL")] = None,
    template: Annotated[str | None, typer.Option(help="Template for a bare .gguf.", metavar="ID|FILE")] = None,
    golden: Annotated[Path | None, typer.Option(help="Other golden cases.", metavar="FILE")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Play only this scenario; repeatable.", metavar="ID", autocompletion=complete.scenarios),
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
        int, typer.Option(min=512, help="Tokens all streams share.", metavar="TOKENS", rich_help_panel=SERVER)
    ] = 8192,
    gpu_layers: Annotated[
        int | None, typer.Option(min=0, help="As many as fit if not given.", metavar="N", rich_help_panel=SERVER)
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads that compute.", metavar="N", rich_help_panel=SERVER)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="A free one if not given.", metavar="N", rich_help_panel=SERVER),
    ] = None,
    start_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds for loading.", metavar="SECONDS", rich_help_panel=SERVER)
    ] = 60.0,
    html: Annotated[
        Path | None, typer.Option(help="Write it as a page.", metavar="FILE", rich_help_panel=REPORT)
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(help="Write it as JUnit XML.", metavar="FILE", rich_help_panel=REPORT)
    ] = None,
    sarif: Annotated[
        Path | None, typer.Option(help="Write it as SARIF.", metavar="FILE", rich_help_panel=REPORT)
    ] = None,
    out: Out,
) -> None:
    """Play the scenarios on a real llama.cpp server, or on the server at --url.

    Exit code 0: proved; 1: a scenario failed; 3: one could not be played.
    """
    from strata_pack import report as faces
    from strata_pack.files import write_atomic
    from strata_pack.llama.runtimes import pick_runtime
    from strata_pack.outputs import check_outputs
    from strata_pack.pack.layout import Pack
    from strata_pack.pack.paths import is_pack
    from strata_pack.smoke.prove import keep_report
    from strata_pack.smoke.run import SmokeOptions, run_smoke, run_smoke_url
    from strata_pack.smoke.target import one_of

    one_of(target, url)
    check_outputs((html, junit, sarif), (target, template, golden, llama_server))
    options = SmokeOptions(
        runtime=None if url else pick_runtime(runtime, llama_server),
        only=tuple(only or ()),
        limit_s=limit,
        start_timeout_s=start_timeout,
        port=port,
        context=context,
        gpu_layers=gpu_layers,
        threads=threads,
    )
    with out.progress() as progress:
        if target is not None:
            report = run_smoke(target, template=template, suite=golden, options=options, progress=progress)
        else:
            report = run_smoke_url(str(url), model=model, api_key=api_key, options=options, progress=progress)
    if target is not None and is_pack(target) and not only and template is None:
        keep_report(Pack.open(target), "smoke", report)
    for path, face_of in ((html, faces.html), (junit, faces.junit), (sarif, faces.sarif)):
        if path is not None:
            write_atomic(path, face_of(report))
    out.show(faces.terminal(report))
    out.result(report.to_dict())
    raise typer.Exit(report.exit_code)
