"""``strata-pack fetch`` as a person or a script uses it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from strata_pack.cli.app import app
from tests.hub_server import HubServer
from tests.weights.hub.fixtures import BODY, FILES, REPO, SELECTED, TOTAL, WEIGHTS


@pytest.fixture(autouse=True)
def _endpoint(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["fetch", *map(str, arguments)])


def test_json_is_one_object_with_every_file(dest: Path) -> None:
    result = run(REPO, "--out", dest, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (found["ok"], found["bytes_travelled"], found["format"]) == (True, TOTAL, "safetensors")
    assert [(file["path"], file["size"]) for file in found["files"]] == [(n, len(FILES[n])) for n in SELECTED]


def test_plan_is_shown_before_it_starts(dest: Path) -> None:
    result = run(REPO, "--out", dest)
    assert "3 files, 300.0 kB (safetensors); 0 bytes here already, 300.0 kB to fetch; 1 other files" in result.stderr


def test_dry_run_shows_the_plan_and_fetches_nothing(hub: HubServer, dest: Path) -> None:
    result = run(REPO, "--out", dest, "--dry-run", "--json")
    plan = json.loads(result.stdout)
    assert plan["bytes_to_travel"] == TOTAL
    assert plan["skipped"] == ["pytorch_model.bin"]
    assert {file["path"]: file["origin"] for file in plan["files"]} == dict.fromkeys(SELECTED, "network")
    assert hub.body_hits() == []
    assert not dest.exists()


def test_dry_run_table_names_every_file(dest: Path) -> None:
    result = run(REPO, "--out", dest, "--dry-run")
    assert all(name in result.stdout for name in SELECTED)


def test_a_changed_file_is_replaced_only_with_consent(dest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(REPO, "--out", dest)
    (dest / "config.json").write_text("mine")
    monkeypatch.setattr("strata_pack.cli.confirm.can_ask", lambda: True)
    refused = CliRunner().invoke(app, ["fetch", REPO, "--out", str(dest)], input="n\n")
    assert (refused.exit_code, (dest / "config.json").read_text()) == (130, "mine")
    assert "config.json: differs from the repository and will be replaced" in refused.stderr
    assert run(REPO, "--out", dest, "--yes").exit_code == 0
    assert (dest / "config.json").read_bytes() == FILES["config.json"]


def test_quiet_prints_nothing(dest: Path) -> None:
    result = run(REPO, "--out", dest, "--quiet")
    assert (result.exit_code, result.output) == (0, "")


def test_uri_names_revision_and_file(hub: HubServer, dest: Path) -> None:
    commit = hub.repos[REPO].commit({"q4/a.gguf": BODY, WEIGHTS: BODY})
    hub.repos[REPO].commit({})
    result = run(f"hf://{REPO}@{commit}/q4/a.gguf", "--out", dest)
    assert result.exit_code == 0, result.output
    assert (dest / "q4/a.gguf").read_bytes() == BODY


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ((".",), 2, "is a local path"),
        (("nonsense",), 2, "not a hub id either"),
        ((f"{REPO}@main", "--revision", "main"), 2, "the revision is given twice"),
        ((REPO, "--revision", "nothing"), 2, "no such revision"),
        (("org/nothing",), 2, "no such repository"),
    ],
)
def test_mistake_is_one_sentence(arguments: tuple[str, ...], code: int, sentence: str, dest: Path) -> None:
    result = run(*arguments, "--out", dest)
    assert result.exit_code == code
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_revision_option_is_the_uri_s(hub: HubServer, dest: Path) -> None:
    commit = hub.repos[REPO].commits[0][0]
    hub.repos[REPO].commit({"README.md": b"gone"})
    assert json.loads(run(REPO, "--revision", commit, "--out", dest, "--json").stdout)["commit"] == commit
