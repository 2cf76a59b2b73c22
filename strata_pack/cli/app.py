"""Defines the typer group ``strata-pack``; a command's module is imported only when the command is called."""

from __future__ import annotations

import importlib
import io
import os
import shutil
import sys
from collections.abc import Iterator, MutableMapping
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from strata_pack import __version__
from strata_pack.cli.commands import COMMANDS, SUMMARY, top_page
from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import leave
from strata_pack.errors import WrongUse

BOXES = 100
"""Columns that the boxes of typer's help need."""


class _Commands(MutableMapping[str, Any]):
    """Maps names to commands; a command's module is imported at the first access."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, COMMANDS[name][0])
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)

    def __contains__(self, name: object) -> bool:
        return name in COMMANDS


def _load(name: str, module: str) -> Any:
    """Return the command ``name`` of the module's ``app``, or the whole ``app`` if the command is a group."""
    inner = importlib.import_module(module).app
    parent = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    parent.add_typer(inner)
    alone = typer.main.get_group(parent).commands
    if name in alone:
        return _wrapping(alone[name])
    parent.add_typer(inner, name=name)
    return _wrapping(typer.main.get_group(parent).commands[name])


def _wrapping(command: Any) -> Any:
    """Return ``command`` with help that is complete on a narrow terminal, where typer's boxes cut names of flags."""
    commands = getattr(command, "commands", None)
    for inner in commands.values() if commands else ():
        _wrapping(inner)
    if commands:
        return command
    boxed = command.format_help

    def format_help(ctx: Any, formatter: Any) -> None:
        command.rich_markup_mode = "rich" if shutil.get_terminal_size().columns >= BOXES else None
        boxed(ctx, formatter)

    command.format_help = format_help
    return command


class LazyGroup(TyperGroup):
    """The top-level group: help page and completion come from the table of commands, the commands from their
    modules."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()
        self._names_only = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        if self._names_only:
            return TyperCommand(name=cmd_name, help=COMMANDS[cmd_name][1])
        return self.commands[cmd_name]

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete a command's name without importing any command."""
        self._names_only = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._names_only = False

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        formatter.write(top_page(formatter.width))


app = typer.Typer(
    name="strata-pack",
    cls=LazyGroup,
    help=SUMMARY,
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
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the flags before a command."""


def ascii_alone() -> bool:
    """Return whether the locale is C or POSIX: Python writes UTF-8 in it, which such a terminal cannot show."""
    named = {os.environ.get("LC_ALL"), os.environ.get("LANG")} & {"C", "POSIX"}
    return bool(named and sys.flags.utf8_mode) and not {"PYTHONUTF8", "PYTHONIOENCODING"} & set(os.environ)


def run() -> None:
    """Run the command line.

    Characters outside the terminal's encoding are escaped. With ``--json``, wrong flags are reported as an object too.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="ascii" if ascii_alone() else None, errors="backslashreplace")
    if "--json" not in sys.argv[1:]:
        app()
    try:
        code = app(standalone_mode=False)
    except Exception as error:
        # Depending on its version, typer bundles click or uses the installed one, so test for the method, not the
        # class.
        message: Any = getattr(error, "format_message", None)
        if message is None:
            raise
        leave(Out("json"), message(), WrongUse.exit_code)
    raise SystemExit(code)
