"""The command ``strata-pack``: which commands there are. Each lives in a module of its own."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated, Any

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
from strata_pack.cli.face import Out, leave
from strata_pack.errors import WrongUse

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
    """Run the command line.

    Text that the terminal's encoding lacks is shown escaped. With ``--json`` wrong flags are reported as an object too.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if "--json" not in sys.argv[1:]:
        app()
    try:
        code = app(standalone_mode=False)
    except Exception as error:
        # Typer carries a click of its own or the installed one, by its version: told by the method, not by the class.
        message: Any = getattr(error, "format_message", None)
        if message is None:
            raise
        leave(Out("json"), message(), WrongUse.exit_code)
    raise SystemExit(code)
