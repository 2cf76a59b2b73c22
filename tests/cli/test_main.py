"""The whole process: wrong flags with ``--json``, and terminals that cannot show every text or are not there."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from strata_pack.cli.bars import open_progress
from strata_pack.weights.gguf.file import MetaValue
from tests.pack.tiny_gguf import STOCK, metadata, tensors, write_file, write_tiny

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


def test_metadata_cannot_drive_the_terminal(tmp_path: Path) -> None:
    extra = {"general.description": MetaValue.string("\x1b[2J\u202e")}
    done = run("inspect", "--metadata", write_tiny(tmp_path / "tiny.gguf", extra=extra))
    assert b"<U+001B>[2J<U+202E>" in done.stdout
    assert b"\x1b" not in done.stdout


def test_metadata_that_looks_like_markup_is_shown_as_it_is(tmp_path: Path) -> None:
    extra = {"x[/red]y": MetaValue.string("use [/INST] and [bold]here")}
    done = run("inspect", "--metadata", write_tiny(tmp_path / "tiny.gguf", extra=extra))
    assert (done.returncode, b"use [/INST] and [bold]here" in done.stdout, b"x[/red]y" in done.stdout) == (
        0,
        True,
        True,
    )


def test_a_tensor_that_looks_like_markup_is_planned(tmp_path: Path) -> None:
    weights = {**tensors(), "[/b].weight": np.ones((4, 32), dtype=np.float32)}
    write_file(tmp_path / "tiny.gguf", metadata(STOCK), weights)
    done = run("quantize", tmp_path / "tiny.gguf", "--quant", "Q8_0", "--dry-run")
    assert (done.returncode, b"[/b].weight" in done.stdout) == (0, True)


def test_a_bar_shows_a_label_that_looks_like_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    with open_progress() as progress:
        progress.task("hashing a[/b].gguf", 1).advance(1)
    assert "hashing a[/b].gguf" in terminal.getvalue()


def test_serve_without_its_packages_says_what_to_install() -> None:
    code = "import sys; sys.modules['uvicorn'] = None; from strata_pack.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "serve", "x"], capture_output=True, timeout=60, check=False)
    assert done.returncode == 3
    told = done.stderr.decode()
    assert told.startswith("strata-pack: serve needs the package uvicorn; run: ")
    assert "[serve]" in told


@pytest.mark.parametrize("shell", [">&-", "2>&-", "<&-"])
def test_a_closed_stream_is_no_error(model: Path, shell: str) -> None:
    assert run("inspect", model, shell=shell).returncode == 0
