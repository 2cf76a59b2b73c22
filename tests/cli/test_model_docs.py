"""The pages on converting and on Qwen3.8-Flash-Next show commands with flags that exist, and figures that hold."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.cli.test_readme import resolve
from tests.conftest import ROOT

PAGES = {name: (ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in ("convert", "flash-next")}
COMMANDS = [line for page in PAGES.values() for line in re.findall(r"^    strata-pack (.+)$", page, re.MULTILINE)]
OPTIONS = sorted(set(re.findall(r"^\\| `(--[a-z0-9-]+)", PAGES["convert"], re.MULTILINE)))


@pytest.mark.parametrize("line", COMMANDS)
def test_a_shown_command_has_the_flags_it_is_shown_with(line: str) -> None:
    command, rest = resolve(shlex.split(line))
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in rest if word.startswith("--")} <= known


def test_every_option_of_the_table_is_there() -> None:
    command, _ = resolve(["convert"])
    assert set(OPTIONS) <= {option for parameter in command.params for option in parameter.opts}
    assert "--mmproj" in OPTIONS
