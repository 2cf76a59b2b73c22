"""The command: what it prints, its exit codes, and that a second run says that there is nothing to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from strata_pack.cli.app import app
from tests.release.tiny_release import GATES, HEAD, PACKS, write_release


def call(*words: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, ["release", *words, "--json"])
    value: dict[str, Any] = json.loads(result.stdout)
    return result.exit_code, value


def states(value: dict[str, Any]) -> set[str]:
    return {node["state"] for node in value["nodes"]}


def test_a_release_is_planned_run_and_found_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(write_release(tmp_path / "r"))
    code, planned = call("plan", file)
    assert (code, states(planned)) == (0, {"to do"})
    assert not (tmp_path / "r/packs").exists()
    code, ran = call("run", file)
    assert (code, states(ran["releases"][0])) == (0, {"made"})
    code, again = call("run", file)
    assert (code, states(again["releases"][0])) == (0, {"done"})
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, ["release", "run", file]).stdout
    assert "nothing to do" in shown
    assert shown.endswith("\nr/packs/report.html\n")
    code, status = call("status", file)
    assert (code, states(status), status["changes"]) == (0, {"done"}, [])


def test_status_of_an_unmade_release_is_1(tmp_path: Path) -> None:
    code, value = call("status", str(write_release(tmp_path / "r")))
    assert (code, states(value)) == (1, {"to do"})


def test_packs_that_fail_their_gates_make_every_exit_code_1(tmp_path: Path) -> None:
    text = HEAD + PACKS + GATES.replace("kl_mean = 5.0", "kl_mean = 0") + '[publish]\nto = "out"\n'
    file = str(write_release(tmp_path / "r", text))
    code, value = call("run", file)
    assert code == 1
    assert [pack["passed"] for pack in value["releases"][0]["packs"].values()] == [False, False]
    assert [call(*words, file)[0] for words in (("status",), ("publish", "--dry-run"), ("publish",))] == [1, 1, 1]


def test_two_releases_in_one_folder_are_refused(tmp_path: Path) -> None:
    first = write_release(tmp_path / "r")
    second = first.with_name("two.toml")
    second.write_text((HEAD + PACKS).replace('"Tiny"', '"Two"'))
    code, value = call("run", str(first), str(second))
    assert code == 2
    assert "two releases would lie in" in value["error"]


def test_two_releases_of_a_name_are_refused(tmp_path: Path) -> None:
    files = [str(write_release(tmp_path / name)) for name in ("a", "b")]
    code, value = call("run", *files)
    assert code == 2
    assert "two releases are called Tiny" in value["error"]


def test_publishing_needs_a_target(tmp_path: Path) -> None:
    code, value = call("publish", str(write_release(tmp_path / "r")))
    assert code == 2
    assert "has no [publish] table" in value["error"]


def test_init_writes_a_file_and_keeps_one_that_is_there(tmp_path: Path) -> None:
    write_release(tmp_path / "r")
    file = tmp_path / "r/new.toml"
    assert call("init", str(tmp_path / "r/tiny.gguf"), "--out", str(file))[0] == 0
    code, value = call("init", str(tmp_path / "r/tiny.gguf"), "--out", str(file))
    assert code == 2
    assert "exists already" in value["error"]
    assert "tiny" in file.read_text()


@pytest.mark.parametrize(
    "words", [("run", "--dask", "tcp://127.0.0.1:1", "--workers", "2"), ("run", "--split-tensors")]
)
def test_flags_that_exclude_each_other_are_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    files = [str(write_release(tmp_path / name, (HEAD + PACKS).replace("Tiny", name))) for name in ("A", "B")]
    assert call(*words, *files)[0] == 2
