"""Cases of templates met outside (``templates2.jsonl``), each run on the layer that it names."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from strata_pack.chat.engines.packages import MinijinjaEngine
from strata_pack.cli.app import app
from tests.conftest import ROOT
from tests.gateway.conftest import House

DATA = ROOT / "tests/data/chat"
CASES = [json.loads(line) for line in (DATA / "templates2.jsonl").read_text(encoding="utf-8").splitlines()]
FOLDER_TEXTS = {
    "T": (DATA / "stock/qwen38_like.jinja").read_text(encoding="utf-8"),
    "T2": (DATA / "stock/coder_like.jinja").read_text(encoding="utf-8"),
}


@dataclass(frozen=True)
class Run:
    """A case, an empty folder for it, and the way to the fixtures that only some layers need."""

    case: dict[str, Any]
    folder: Path
    request: pytest.FixtureRequest

    @property
    def expect(self) -> dict[str, Any]:
        return dict(self.case["expect"])


def cli(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["template", *args])
    return result.exit_code, result.stdout


def check_folder(run: Run) -> None:
    for name, key in run.expect["files"].items():
        (run.folder / name).parent.mkdir(exist_ok=True)
        (run.folder / name).write_text(FOLDER_TEXTS[key], encoding="utf-8")
    code, out = cli("status", str(run.folder), "--json")
    assert code == 0
    (note,) = json.loads(out)["notes"]
    assert note.startswith("for requests with tools, transformers takes ")
    assert "tool_use.jinja" in note


def check_gateway(run: Run) -> None:
    house: House = run.request.getfixturevalue("house")
    house.chat("Hi", messages=run.case["messages"], **run.expect["body"])
    assert house.prompt.rstrip().endswith("</think>")


def rules_found(run: Run) -> set[str]:
    file = run.folder / "t.jinja"
    file.write_text(run.expect["template"], encoding="utf-8")
    _, out = cli("lint", str(file), "--fail-on", "error", "--json")
    return {finding["rule"] for finding in json.loads(out)["findings"]}


def check_lint(run: Run) -> None:
    expect, found = run.expect, rules_found(run)
    if "no_rule" in expect:
        assert expect["no_rule"] not in found
    else:
        assert any(rule.startswith(expect["any_finding_prefix"]) for rule in found)


def check_prefix(run: Run) -> None:
    text = (DATA / "stock/qwen35_like.jinja").read_text(encoding="utf-8")
    closing = "{%- if enable_thinking is defined and enable_thinking is false %}"
    assert closing in text
    opening = "{%- if enable_thinking is not defined or enable_thinking is not true %}"
    file = run.folder / "small.jinja"
    file.write_text(text.replace(closing, opening), encoding="utf-8")
    code, out = cli("prefix", str(file))
    assert code == 0
    assert run.expect["not_said"] not in out


def check_minijinja(run: Run) -> None:
    got = MinijinjaEngine().render(run.expect["template"], {"messages": run.case["messages"]})
    assert got == run.expect["equals"]


CHECKS: dict[str, Callable[[Run], None]] = {
    "folder": check_folder,
    "gateway-http": check_gateway,
    "lint": check_lint,
    "prefix": check_prefix,
    "engine minijinja": check_minijinja,
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_template_case_holds(case: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    CHECKS[case["expect"]["layer"]](Run(case, tmp_path, request))
