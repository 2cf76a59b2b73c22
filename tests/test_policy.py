"""The policy file: what it excepts, until when, and that nothing unknown or undated gets through."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.errors import WrongUse
from strata_pack.policy import Policy, read_policy
from strata_pack.report.exceptions import apply_exceptions
from strata_pack.report.model import Check, Report
from tests.pack.tiny_pack import write_pack

TODAY = datetime.date(2026, 6, 1)
RULES = ("ST101", "verify/loads", "verify/hashes")


def policy(folder: Path, text: str) -> Policy:
    (folder / "strata-pack.toml").write_text(text)
    return read_policy(folder / "strata-pack.toml", RULES, ("verify/hashes",), TODAY)


def entry(rule: str = "ST101", until: str = "2026-06-01", more: str = "") -> str:
    return f'[[exception]]\nrule = "{rule}"\nreason = "known"\nuntil = {until}\n{more}\n'


def test_an_exception_counts_until_the_end_of_its_day(tmp_path: Path) -> None:
    found = policy(tmp_path, entry() + entry("verify/loads", "2026-05-31"))
    assert [one.rule for one in found.current] == ["ST101"]
    assert [one.rule for one in found.expired] == ["verify/loads"]


def test_an_exception_can_be_for_some_names_alone(tmp_path: Path) -> None:
    found = policy(tmp_path, entry(more='where = "Qwen*"'))
    assert found.exception("ST101", "Qwen3") is not None
    assert found.exception("ST101", "Llama") is None


WRONG = {
    "an unknown rule": (entry("ST999"), "no rule"),
    "a rule that allows no exception": (entry("verify/hashes"), "verify/hashes allows no exception"),
    "no reason": ('[[exception]]\nrule = "ST101"\nuntil = 2026-06-01\n', "has no reason"),
    "an empty reason": (entry().replace('"known"', '""'), "reason must be a quoted string"),
    "no end": ('[[exception]]\nrule = "ST101"\nreason = "x"\n', "has no until"),
    "an end that is a text": (entry(until='"2026-06-01"'), "until must be a date"),
    "an end with a time": (entry(until="2026-06-01T00:00:00Z"), "until must be a date"),
    "an unknown key": (entry(more="rules = 1"), "no key"),
    "another table": ('[lint]\nignore = "ST101"\n', "only [[exception]] is allowed"),
    "no TOML": ("[[", "is not TOML"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_malformed_policy_is_refused(tmp_path: Path, kind: str) -> None:
    text, sentence = WRONG[kind]
    with pytest.raises(WrongUse) as failure:
        policy(tmp_path, text)
    assert sentence in str(failure.value)


def test_no_policy_excepts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_policy(None, RULES) == Policy()


def test_a_report_shows_what_is_excepted_and_fails_for_what_has_ended(tmp_path: Path) -> None:
    checks = (Check("loads", "", "failed", "no tensor"), Check("files", "", "failed", "x"))
    report = apply_exceptions(Report("verify", checks), policy(tmp_path, entry("verify/loads")), "verify", "pack")
    assert [check.status for check in report.checks] == ["skipped", "failed"]
    assert report.checks[0].detail == "excepted until 2026-06-01: known (no tensor)"
    report = apply_exceptions(
        Report("verify", checks), policy(tmp_path, entry("verify/loads", "2026-01-01")), "verify", "pack"
    )
    assert [check.status for check in report.checks] == ["failed", "failed", "failed"]
    assert "ended on 2026-01-01" in report.checks[2].detail


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def later(days: int) -> str:
    return str(datetime.date.today() + datetime.timedelta(days))


def test_verify_reads_the_policy_of_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pack(tmp_path / "pack")
    (tmp_path / "pack/model/notes.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    wrong = [c for c in json.loads(run("verify", "pack", "--json").stdout)["checks"] if c["status"] == "failed"]
    assert wrong
    text = "".join(entry(f"verify/{check['id']}", later(1)) for check in wrong)
    (tmp_path / "strata-pack.toml").write_text(text)
    assert run("verify", "pack").exit_code == 0
    (tmp_path / "strata-pack.toml").write_text(text.replace(later(1), later(-1)))
    assert run("verify", "pack").exit_code == 1


def test_lint_reads_the_policy_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ messages[0]['content'] }}{{ strftime_now('%Y') }}")
    found = json.loads(run("template", "lint", tmp_path / "t.jinja", "--json").stdout)["findings"]
    assert found
    text = "".join(entry(rule, later(1)) for rule in {one["rule"] for one in found})
    (tmp_path / "p.toml").write_text(text)
    arguments = ("template", "lint", tmp_path / "t.jinja", "--policy", tmp_path / "p.toml", "--json")
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["excepted"]) == len(found)
    (tmp_path / "p.toml").write_text(text.replace(later(1), later(-1)))
    assert run(*arguments).exit_code == 1
    (tmp_path / "p.toml").write_text(entry("ST999", later(1)))
    assert run(*arguments).exit_code == 2
