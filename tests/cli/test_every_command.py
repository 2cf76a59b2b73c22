"""What all commands have in common: one screen of help with an example, and the shared flags."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click
import pytest
import typer.main
from typer.testing import CliRunner

from strata_pack.cli.app import app

SCREEN = 78
"""Lines; the tallest help is that of `serve`."""


def commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command that does something, with the words that call it."""
    for name, command in getattr(group, "commands", {}).items():
        if getattr(command, "commands", None):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


ALL = dict(commands(typer.main.get_command(app)))
GROUPS = sorted({words[0] for words in ALL if len(words) > 1})


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_shows_an_example_on_one_screen(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "COLUMNS", "110")
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0
    assert f"strata-pack {' '.join(words)}" in " ".join(result.stdout.partition("Example")[2].split())
    assert len(result.stdout.splitlines()) <= SCREEN


@pytest.mark.parametrize("group", GROUPS)
def test_help_of_a_group_shows_an_example(group: str) -> None:
    shown = CliRunner().invoke(app, [group, "--help"]).stdout
    assert f"strata-pack {group}" in " ".join(shown.partition("Example")[2].split())


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_of_a_narrow_terminal_cuts_no_flag(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "COLUMNS", "60")
    shown = CliRunner().invoke(app, [*words, "--help"]).stdout
    flags = {flag for one in ALL[words].params if not getattr(one, "hidden", False) for flag in one.opts}
    assert [flag for flag in flags if flag.startswith("--") and flag not in shown] == []
    assert "…" not in shown


@pytest.mark.parametrize("words", ALL, ids=" ".join)
@pytest.mark.parametrize("flag", ["--json", "--quiet", "--debug"])
def test_every_command_has_the_shared_flags(words: tuple[str, ...], flag: str) -> None:
    assert any(flag in parameter.opts for parameter in ALL[words].params)


@pytest.mark.parametrize(
    "words",
    [
        ("build",),
        ("inspect",),
        ("verify",),
        ("golden", "check"),
        ("template", "list"),
        ("template", "show"),
        ("template", "status"),
        ("template", "install"),
        ("smoke",),
        ("parse",),
        ("replay",),
        ("runtime", "list"),
        ("serve",),
        ("compare",),
        ("quantize",),
        ("fetch",),
        ("convert",),
    ],
    ids=" ".join,
)
def test_the_command_exists(words: tuple[str, ...]) -> None:
    assert words in ALL


def test_an_unknown_command_is_wrong_use() -> None:
    assert CliRunner().invoke(app, ["frobnicate"]).exit_code == 2
