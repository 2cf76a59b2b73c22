"""``--dry-run``: a command says what it would do, as one object with ``ok``, and changes no byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.files import sha256_file
from tests.pack.tiny_gguf import STOCK
from tests.pack.tiny_pack import write_pack
from tests.tiny_models import write_model

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
CASE = {"name": "one", "messages": [{"role": "user", "content": "a"}], "expected": "b"}


def everything(root: Path) -> dict[str, str]:
    """Return the hash of every file under ``root``."""
    return {str(path.relative_to(root)): sha256_file(path) for path in sorted(root.rglob("*")) if path.is_file()}


def convert(root: Path) -> list[str]:
    return ["convert", str(write_model("qwen3", root / "checkpoint")), "-o", str(root / "out.gguf")]


def golden_update(root: Path) -> list[str]:
    (root / "golden").mkdir()
    (root / "golden/cases.json").write_text(json.dumps([CASE]), encoding="utf-8")
    (root / "mine.jinja").write_text(TEMPLATE, encoding="utf-8")
    return ["golden", "update", str(root / "mine.jinja"), "--golden", str(root / "golden")]


def rollback(root: Path) -> list[str]:
    pack = write_pack(root / "pack", STOCK)
    (root / "mine.jinja").write_text(TEMPLATE, encoding="utf-8")
    done = CliRunner().invoke(
        app, ["template", "install", str(pack), "--template", str(root / "mine.jinja"), "--force"]
    )
    assert done.exit_code == 0
    return ["template", "rollback", str(pack)]


def prove(root: Path) -> list[str]:
    return ["prove", str(write_pack(root / "pack", STOCK))]


def install(root: Path) -> list[str]:
    (root / "mine.jinja").write_text(TEMPLATE, encoding="utf-8")
    pack = write_pack(root / "pack", STOCK)
    return ["template", "install", str(pack), "--template", str(root / "mine.jinja"), "--force"]


@pytest.mark.parametrize("made", [convert, golden_update, rollback, prove, install], ids=lambda made: made.__name__)
def test_a_dry_run_changes_nothing_and_answers_with_one_object(
    tmp_path: Path, made: Callable[[Path], list[str]]
) -> None:
    arguments = made(tmp_path)
    before = everything(tmp_path)
    done = CliRunner().invoke(app, [*arguments, "--dry-run", "--json"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["ok"] is True
    assert everything(tmp_path) == before


def test_a_dry_run_of_a_convert_names_the_file_and_its_size(tmp_path: Path) -> None:
    arguments = convert(tmp_path)
    said = json.loads(CliRunner().invoke(app, [*arguments, "--dry-run", "--json"]).stdout)
    assert str(tmp_path / "out.gguf") in json.dumps(said)
