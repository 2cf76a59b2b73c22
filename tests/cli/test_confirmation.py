"""Before something is destroyed: a terminal is asked, ``--yes`` answers, off a terminal the command line decides."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.files import sha256_file
from strata_pack.resources import cache_dir
from tests.cli.test_every_command import ALL
from tests.pack.tiny_gguf import STOCK, write_tiny
from tests.pack.tiny_pack import write_pack
from tests.tiny_models import write_model

MINE = "{% for m in messages %}{{ m.content }}{% endfor %}"
WRONG = {"name": "one", "messages": [{"role": "user", "content": "a"}], "expected": "b"}
RESTORABLE = {("template", "install"): "the earlier template is kept for rollback"}
"""Commands whose ``--force`` destroys nothing."""


def quantize(root: Path) -> str:
    write_tiny(root / "model.gguf")
    (root / "lost.gguf").write_bytes(b"mine")
    return "quantize model.gguf lost.gguf --quant Q8_0 --force"


def convert(root: Path) -> str:
    write_model("qwen3", root / "checkpoint")
    (root / "lost.gguf").write_bytes(b"mine")
    return "convert checkpoint --out lost.gguf --force"


def build(root: Path) -> str:
    write_tiny(root / "model.gguf")
    write_pack(root / "lost", STOCK)
    return "build model.gguf --quant F16 --template keep --out lost --force"


def release_init(root: Path) -> str:
    write_tiny(root / "model.gguf")
    (root / "lost.toml").write_text("mine")
    return "release init model.gguf --out lost.toml --force"


def export(root: Path) -> str:
    write_pack(root / "pack", STOCK)
    (root / "lost").mkdir()
    (root / "lost/llama-swap.yaml").write_text("mine")
    return "export llama-swap pack --out lost --force"


def rollback(root: Path) -> str:
    write_pack(root / "lost", STOCK)
    (root / "mine.jinja").write_text(MINE)
    with contextlib.chdir(root):
        CliRunner().invoke(app, ["template", "install", "lost", "--template", "mine.jinja", "--force"])
    return "template rollback lost"


def publish(root: Path) -> str:
    write_pack(root / "pack", STOCK)
    with contextlib.chdir(root):
        CliRunner().invoke(app, ["publish", "pack", "--to", "lost", "--accept-licence"])
    (root / "lost/README.md").write_text("mine")
    return "publish pack --to lost --accept-licence"


def golden_update(root: Path) -> str:
    (root / "mine.jinja").write_text(MINE)
    (root / "lost.json").write_text(json.dumps([WRONG]))
    return "golden update mine.jinja --golden lost.json"


def cache_clean(_: Path) -> str:
    (cache_dir() / "runtimes/lost").mkdir(parents=True, exist_ok=True)
    (cache_dir() / "runtimes/lost/file").write_bytes(b"x")
    return "cache clean runtimes/lost"


CASES: dict[Callable[[Path], str], bool] = {
    quantize: True,
    convert: True,
    build: True,
    release_init: True,
    export: True,
    rollback: True,
    publish: True,
    golden_update: False,
    cache_clean: False,
}
"""What destroys something, and whether its command line names that: consent off a terminal."""

every = pytest.mark.parametrize("made", CASES, ids=lambda made: made.__name__)


def invoke(root: Path, arguments: str, answer: str | None = None) -> tuple[int, str]:
    with contextlib.chdir(root):
        done = CliRunner().invoke(app, arguments.split(), input=answer)
    return done.exit_code, done.stderr


def everything(root: Path) -> dict[str, str]:
    """Return the hash of every file under ``root`` and of the entry in the cache."""
    files = [*root.rglob("*"), cache_dir() / "runtimes/lost/file"]
    return {str(path): sha256_file(path) for path in files if path.is_file() and path.name != "lock"}


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata_pack.cli.confirm.can_ask", lambda: True)


@pytest.mark.usefixtures("terminal")
@every
def test_a_no_on_a_terminal_keeps_everything(tmp_path: Path, made: Callable[[Path], str]) -> None:
    arguments = made(tmp_path)
    before = everything(tmp_path)
    code, said = invoke(tmp_path, arguments, "n\n")
    assert (code, everything(tmp_path)) == (130, before)
    assert "lost" in said
    assert said.endswith("strata-pack: stopped at the question; nothing was replaced or removed\n")


@pytest.mark.usefixtures("terminal")
@every
def test_yes_goes_on_without_a_question(tmp_path: Path, made: Callable[[Path], str]) -> None:
    arguments = made(tmp_path)
    before = everything(tmp_path)
    code, said = invoke(tmp_path, f"{arguments} --yes")
    assert (code, "Go on?" in said) == (0, False), said
    assert everything(tmp_path) != before


@every
def test_off_a_terminal_what_the_line_does_not_name_needs_yes(tmp_path: Path, made: Callable[[Path], str]) -> None:
    arguments = made(tmp_path)
    code, said = invoke(tmp_path, arguments)
    assert (code, "run again with --yes" in said) == ((0, False) if CASES[made] else (2, True)), said


@pytest.mark.usefixtures("terminal")
def test_an_end_of_the_input_at_the_question_is_an_interrupt(tmp_path: Path) -> None:
    code, said = invoke(tmp_path, quantize(tmp_path), "")
    assert (code, (tmp_path / "lost.gguf").read_bytes()) == (130, b"mine"), said


@pytest.mark.parametrize(
    "words", [words for words, command in ALL.items() if any("--force" in one.opts for one in command.params)], ids=str
)
def test_a_command_with_force_has_yes(words: tuple[str, ...]) -> None:
    assert words in RESTORABLE or any("--yes" in one.opts for one in ALL[words].params)
