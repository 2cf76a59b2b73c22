"""The command ``strata-pack``: which commands there are. Each lives in a module of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from strata_pack import __version__
from strata_pack.cli import (
    build,
    compare,
    convert,
    fetch,
    golden,
    inspect,
    parse,
    prove,
    quantize,
    replay,
    runtime,
    serve,
    smoke,
    template,
    verify,
)

app = typer.Typer(
    name="strata-pack",
    help="Build and prove local-model packs whose tool calls never get lost.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        print(f"strata-pack {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Build and prove local-model packs whose tool calls never get lost."""


app.add_typer(build.app)
app.add_typer(inspect.app)
app.add_typer(verify.app)
app.add_typer(compare.app)
app.add_typer(prove.app)
app.add_typer(template.app, name="template")
app.add_typer(golden.app, name="golden")
app.add_typer(fetch.app)
app.add_typer(convert.app)
app.add_typer(quantize.app)
app.add_typer(serve.app)
app.add_typer(smoke.app)
app.add_typer(runtime.app, name="runtime")
app.add_typer(parse.app)
app.add_typer(replay.app)


def main() -> None:
    """Run the command line."""
    app()
