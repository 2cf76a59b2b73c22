"""The whole process: wrong flags with ``--json``, and terminals that cannot show every text or are not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from strata_pack.weights.gguf_file import MetaValue
from tests.pack.tiny_gguf import write_tiny

COMMAND = Path(sys.executable).with_name("strata-pack")


def run(*arguments: str | Path, shell: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command; ``shell`` are redirections."""
    words = ["sh", "-c", f'exec "$@" {shell}', "sh", COMMAND, *arguments]
    return subprocess.run(words, capture_output=True, env={**os.environ, **environment}, timeout=60, check=False)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny.gguf", extra={"general.description": MetaValue.string("café 中")})


@pytest.mark.parametrize(
    "words",
    [("inspect", "--json"), ("inspect", "x", "--bogus", "--json"), ("frobnicate", "--json"), ("build", "x", "--json")],
    ids=" ".join,
)
def test_wrong_flags_are_an_object_in_json_mode(words: tuple[str, ...]) -> None:
    done = run(*words)
    told = json.loads(done.stdout)
    assert (done.returncode, told["ok"], told["exit_code"]) == (2, False, 2)
    assert told["error"] in done.stderr.decode()


def test_the_exit_code_of_a_check_survives_json_mode(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    assert run("verify", tmp_path, "--json").returncode == 1


def test_help_with_json_is_the_help() -> None:
    done = run("inspect", "--json", "--help")
    assert (done.returncode, b"Usage" in done.stdout) == (0, True)


def test_json_is_whole_on_a_terminal_without_the_letters(model: Path) -> None:
    done = run("inspect", "--json", model, PYTHONIOENCODING="ascii")
    assert json.loads(done.stdout)["metadata"]["general.description"] == "café 中"


def test_text_is_escaped_on_a_terminal_without_the_letters(model: Path) -> None:
    done = run("inspect", "--metadata", model, PYTHONIOENCODING="ascii")
    assert (done.returncode, rb"caf\xe9 \u4e2d" in done.stdout) == (0, True)


@pytest.mark.parametrize("shell", [">&-", "2>&-", "<&-"])
def test_a_closed_stream_is_no_error(model: Path, shell: str) -> None:
    assert run("inspect", model, shell=shell).returncode == 0
