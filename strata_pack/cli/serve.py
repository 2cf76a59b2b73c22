"""``strata-pack serve``: runs the gateway on a llama.cpp server that it starts, or on a running one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from strata_pack.cli.confirm import Anyway
from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags
from strata_pack.gateway.options import DEFAULTS, AccessFormat, ServeOptions
from strata_pack.parsing import ImplicitEnd

app = typer.Typer()


class WithServerArguments(TyperCommand):
    """A command that passes everything after ``--`` to llama-server."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args = [*args[:at], *(f"--server-argument={argument}" for argument in args[at + 1 :])]
        return super().parse_args(ctx, args)


@app.command(
    cls=WithServerArguments, epilog="Example: strata-pack serve packs/qwen3.8-flash-next --port 8080 --parallel 4"
)
@with_shared_flags
def serve(
    out: Out,
    packs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PACK|GGUF",
            help="Pack to serve; of several, the requested model is loaded on demand.",
            show_default=False,
        ),
    ] = None,
    upstream: Annotated[str | None, typer.Option(metavar="URL", help="Use the llama-server running there.")] = None,
    template: Annotated[
        str | None, typer.Option(metavar="ID|FILE", help="A shipped template or a file; default: the model's.")
    ] = None,
    mmproj: Annotated[
        Path | None, typer.Option("--mmproj", metavar="FILE", help="The projector of a GGUF, for images.")
    ] = None,
    no_mmproj: Annotated[bool, typer.Option("--no-mmproj", help="Do not use the pack's projector.")] = False,
    fetch_images: Annotated[
        bool, typer.Option("--fetch-images", help="Fetch images from public https addresses.")
    ] = False,
    spec: Annotated[
        Literal["auto", "mtp", "off", "eagle3", "dflash"],
        typer.Option(metavar="auto|mtp|off", help="Draft with the model's own head (MTP); auto: if possible."),
    ] = DEFAULTS.spec,
    host: Annotated[
        str, typer.Option(metavar="ADDR", help="Address to listen on; beyond loopback, a key is needed.")
    ] = DEFAULTS.host,
    port: Annotated[int, typer.Option(metavar="N", help="Port; 0 for a free one.", min=0, max=65535)] = DEFAULTS.port,
    api_key: Annotated[
        str | None, typer.Option(metavar="KEY", envvar="STRATA_API_KEY", help="Key that clients must send.")
    ] = None,
    api_key_file: Annotated[Path | None, typer.Option(metavar="FILE", help="File with API keys, one per line.")] = None,
    upstream_key: Annotated[
        str | None, typer.Option(metavar="KEY", envvar="STRATA_UPSTREAM_KEY", help="Key to send upstream.")
    ] = None,
    parallel: Annotated[
        int | None,
        typer.Option(metavar="N", help="Concurrent requests (default: the server's slots, or 1).", min=1),
    ] = None,
    queue: Annotated[
        int, typer.Option(metavar="N", help="Requests that may wait; further ones get 429.", min=0)
    ] = DEFAULTS.queue,
    context: Annotated[
        int, typer.Option(metavar="N", help="Context tokens per slot, with PACK.", min=256)
    ] = DEFAULTS.context,
    max_loaded: Annotated[int | None, typer.Option(metavar="N", help="Maximum number of loaded models.", min=1)] = None,
    idle: Annotated[
        float | None, typer.Option(metavar="S", help="Seconds until an idle model is unloaded.", min=1)
    ] = None,
    runtime: Annotated[str | None, typer.Option(metavar="NAME", help="llama.cpp runtime, with PACK.")] = None,
    anyway: Anyway = False,
    reasoning_budget: Annotated[
        int | None, typer.Option(metavar="N", help="Maximum thinking tokens per reply.", min=0)
    ] = None,
    cors: Annotated[list[str] | None, typer.Option(metavar="ORIGIN", help="Allowed CORS origin; repeatable.")] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Further allowed Host header; repeatable.")
    ] = None,
    store: Annotated[bool, typer.Option("--store/--no-store", help="Store recent responses.")] = DEFAULTS.store,
    access_log: Annotated[
        AccessFormat, typer.Option(help="Access log on stderr, without content.")
    ] = DEFAULTS.access_log,
    tls_cert: Annotated[Path | None, typer.Option(metavar="PEM", help="Certificate, to serve HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="PEM", help="Its key.")] = None,
    pass_native: Annotated[
        bool, typer.Option("--pass-native", help="Pass on /tokenize, /detokenize, /apply-template, /props and /slots.")
    ] = False,
    server_argument: Annotated[list[str] | None, typer.Option(hidden=True)] = None,
    implicit_end: Annotated[
        ImplicitEnd, typer.Option(help="Which calls inside the thinking end it.")
    ] = DEFAULTS.implicit_end,
    model_name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the model in replies.")] = None,
    start_timeout: Annotated[
        float, typer.Option(metavar="S", help="Seconds to wait for llama.cpp to load.", min=1)
    ] = DEFAULTS.start_seconds,
    request_timeout: Annotated[
        float, typer.Option(metavar="S", help="Maximum seconds per reply.", min=1)
    ] = DEFAULTS.request_seconds,
    drain: Annotated[
        float, typer.Option(metavar="S", help="Seconds that running requests get at shutdown.", min=0)
    ] = DEFAULTS.drain_seconds,
) -> None:
    """Serve a pack with OpenAI's and Anthropic's APIs, so that no tool call is lost.

    Arguments after -- are passed to llama-server: -- --cache-type-k q8_0
    """
    from strata_pack.extras import missing

    try:
        from strata_pack.gateway.command import run
    except ModuleNotFoundError as error:
        raise missing(str(error.name), "serve", "serve") from error

    def announce(facts: dict[str, Any], line: str) -> None:
        out.line(line)
        out.announce(facts)

    run(
        ServeOptions(
            packs=tuple(packs or ()),
            max_loaded=max_loaded,
            idle_seconds=idle,
            upstream=upstream,
            template=template,
            mmproj=mmproj,
            images=not no_mmproj,
            fetch_images=fetch_images,
            spec=spec,
            host=host,
            port=port,
            api_key=api_key,
            api_key_file=api_key_file,
            upstream_key=upstream_key,
            parallel=parallel,
            queue=queue,
            context=context,
            runtime=runtime,
            anyway=anyway,
            reasoning_budget=reasoning_budget,
            cors=tuple(cors or ()),
            allow_hosts=tuple(allow_host or ()),
            store=store,
            access_log=access_log,
            tls_cert=tls_cert,
            tls_key=tls_key,
            pass_native=pass_native,
            server_arguments=tuple(server_argument or ()),
            implicit_end=implicit_end,
            model_name=model_name,
            start_seconds=start_timeout,
            request_seconds=request_timeout,
            drain_seconds=drain,
        ),
        announce=announce,
        note=out.note,
    )
