"""``strata-pack smoke``: prove on a real server that a pack loses no tool call."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strata_pack.cli.face import Out, face

app = typer.Typer()


@app.command(epilog="Example: strata-pack smoke packs/SmolLM2-135M-Instruct-Q4_K_M --html report.html")
@face
def smoke(
    target: Annotated[
        Path | None, typer.Argument(help="A pack folder or a .gguf file.", metavar="TARGET", show_default=False)
    ] = None,
    *,
    url: Annotated[
        str | None, typer.Option("--url", help="Test this OpenAI-compatible server instead.", metavar="URL")
    ] = None,
    template: Annotated[
        str | None,
        typer.Option("--template", help="Serve a .gguf with this shipped template or file.", metavar="ID|FILE"),
    ] = None,
    golden: Annotated[
        Path | None, typer.Option("--golden", help="Golden cases to use instead.", metavar="FILE")
    ] = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="Play only this scenario (again for more).")] = None,
    runtime: Annotated[str, typer.Option("--runtime", help="Which llama.cpp: see `runtime list`.")] = "auto",
    llama_server: Annotated[
        Path | None, typer.Option("--llama-server", help="A llama-server binary to use.", metavar="FILE")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="The model's name, with --url.")] = None,
    api_key: Annotated[
        str | None, typer.Option("--api-key", envvar="STRATA_SMOKE_API_KEY", help="For --url.", show_default=False)
    ] = None,
    context: Annotated[int, typer.Option("--context", min=512, help="Tokens that all streams share.")] = 8192,
    gpu_layers: Annotated[
        int | None, typer.Option("--gpu-layers", min=0, help="Layers on the GPU; all that fit if not given.")
    ] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Threads of the server.")] = None,
    port: Annotated[int | None, typer.Option("--port", min=1, max=65535, help="A free one if not given.")] = None,
    limit: Annotated[
        float | None, typer.Option("--limit", min=0.1, help="Seconds for each scenario, instead of its own limit.")
    ] = None,
    start_timeout: Annotated[float, typer.Option("--start-timeout", min=1, help="Seconds for loading.")] = 60.0,
    html: Annotated[Path | None, typer.Option("--html", help="Write the report as a page.", metavar="FILE")] = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="Write it as JUnit XML.", metavar="FILE")] = None,
    sarif: Annotated[Path | None, typer.Option("--sarif", help="Write it as SARIF.", metavar="FILE")] = None,
    out: Out,
) -> None:
    """Play the scenarios on a real llama.cpp server, or on the server at --url.

    Exit code 0: proved; 1: a scenario failed; 3: one could not be played.
    """
    from strata_pack import report as faces
    from strata_pack.files import write_atomic
    from strata_pack.llama.runtimes import pick_runtime
    from strata_pack.smoke.run import SmokeOptions, run_smoke, run_smoke_url
    from strata_pack.smoke.target import one_of

    one_of(target, url)
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
    for path, face_of in ((html, faces.html), (junit, faces.junit), (sarif, faces.sarif)):
        if path is not None:
            write_atomic(path, face_of(report))
    out.show(faces.terminal(report))
    out.result(report.to_dict())
    raise typer.Exit(report.exit_code)
