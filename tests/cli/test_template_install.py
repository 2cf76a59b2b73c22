"""``template install``, ``rollback`` and ``status`` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from strata_pack.chat.library import list_templates
from strata_pack.cli.app import app
from strata_pack.pack.layout import gguf_template
from tests.pack.tiny_gguf import write_tiny
from tests.pack.tiny_pack import hashes, write_pack

SHIPPED = list_templates()[0].id
SHORT = "{% for m in messages %}{{ m.content }}{% endfor %}"


def run(*arguments: str | Path) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["template", *map(str, arguments)])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def short(tmp_path: Path) -> Path:
    path = tmp_path / "short.jinja"
    path.write_text(SHORT)
    return path


def test_install_then_status_then_rollback(tmp_path: Path) -> None:
    root = write_pack(tmp_path / "pack")
    before = hashes(root)
    code, stdout, _ = run("install", root, "--template", SHIPPED, "--force")
    assert code == 0
    assert "tokenizer/chat_template.jinja" in stdout
    assert "manifest.json" in stdout
    assert "--chat-template-file" in stdout
    code, stdout, _ = run("status", root)
    assert code == 0
    assert f"repaired, {SHIPPED}" in stdout
    assert "1 earlier template can" in stdout
    code, stdout, _ = run("rollback", root)
    assert code == 0
    assert hashes(root) == before


def test_an_unknown_template_ends_with_exit_code_1_and_the_diff(tmp_path: Path, short: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    code, stdout, stderr = run("install", path, "--template", short)
    assert code == 1
    assert f"+{SHORT}" in stdout
    assert "--force" in stderr
    assert gguf_template(path) != SHORT


def test_json_is_one_object(tmp_path: Path, short: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    code, stdout, _ = run("install", path, "--template", short, "--force", "--json")
    assert code == 0
    value = json.loads(stdout)
    assert value["ok"]
    assert value["plan"]["method"] == "in place"
    assert json.loads(run("status", path, "--json")[1])["previous"] == 1


def test_a_dry_run_is_labelled_as_one(tmp_path: Path, short: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    code, stdout, _ = run("install", path, "--template", short, "--force", "--dry-run")
    assert code == 0
    assert "would be installed" in stdout
    assert gguf_template(path) != SHORT


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rollback",), "no earlier template"),
        (("install", "--template", "no-such-id"), "neither a file nor one of"),
    ],
)
def test_wrong_use_is_exit_code_2(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    code, _, stderr = run(arguments[0], path, *arguments[1:])
    assert code == 2
    assert words in stderr


def test_a_model_that_is_not_there_is_exit_code_2(tmp_path: Path) -> None:
    assert run("install", tmp_path / "none.gguf")[0] == 2
    assert run("status", tmp_path / "none.gguf")[0] == 2


def test_status_of_a_folder_says_where_the_template_was_found(tmp_path: Path) -> None:
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": list_templates()[0].source}))
    code, stdout, _ = run("status", tmp_path)
    assert code == 0
    assert f"{tmp_path}: repaired (sha256 " in stdout
    assert f"  {config}: repaired (" in stdout
    assert json.loads(run("status", tmp_path, "--json")[1])["where"] == str(config)
