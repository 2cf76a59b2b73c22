"""README and docs show commands that exist, with flags that exist, and the README names every command there is."""

from __future__ import annotations

import re
import shlex

import click
import pytest
import typer.main

from strata_pack.cli.app import app
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXTS = [README, *(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))]
COMMAND = re.compile(r"^(?:    |\$ )strata-pack ([a-z][^\n|`\[…]*)$", re.MULTILINE)
SHOWN = sorted({line for text in TEXTS for line in COMMAND.findall(text)})
LINKS = sorted(set(re.findall(r"\]\(([^)#:]+)\)", README)))


def resolve(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that ``words`` call and what is left of them."""
    command: click.Command = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words[0]]  # type: ignore[attr-defined]
        words = words[1:]
    return command, words


@pytest.mark.parametrize("line", [line for line in SHOWN if line.split()[0] in typer.main.get_command(app).commands])  # type: ignore[attr-defined]
def test_a_shown_command_has_the_flags_it_is_shown_with(line: str) -> None:
    command, rest = resolve(shlex.split(line, comments=True))
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.partition("=")[0] for word in rest if re.fullmatch(r"--?[a-z][a-z-]*(=.*)?", word)} <= known


@pytest.mark.parametrize("name", sorted(typer.main.get_command(app).commands))  # type: ignore[attr-defined]
def test_every_command_is_in_the_readme(name: str) -> None:
    assert f"strata-pack {name}" in README or f"`{name}`" in README


@pytest.mark.parametrize("link", LINKS)
def test_a_link_leads_to_a_file(link: str) -> None:
    assert (ROOT / link).exists()
