"""The table of commands: every module holds its command, and the top page shows it at any width."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from strata_pack.cli import commands
from strata_pack.cli.app import app
from strata_pack.cli.commands import COMMANDS, top_page
from tests.conftest import ROOT


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_names_the_module_that_holds_the_command(name: str) -> None:
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    assert command.name == name


def test_every_module_with_commands_of_its_own_is_in_the_table() -> None:
    holders = {
        f"strata_pack.cli.{path.stem}"
        for path in Path(commands.__file__).parent.glob("*.py")
        if "\napp = typer.Typer(" in path.read_text(encoding="utf-8") and path.stem != "app"
    }
    assert holders == {module for module, _ in COMMANDS.values()}


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_no_line_of_the_top_page_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, top_page(width).splitlines()[1:])) <= width


def test_the_top_page_is_one_whoever_prints_it() -> None:
    assert CliRunner().invoke(app, ["--help"]).stdout.split() == top_page(80).split()


def test_a_mistyped_command_gets_a_suggestion() -> None:
    result = CliRunner().invoke(app, ["bulid"])
    assert (result.exit_code, "'build'" in result.output) == (2, True)


def test_the_script_starts_the_light_entry() -> None:
    assert 'strata-pack = "strata_pack.cli.main:main"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
