"""Two templates are compared by their prompts, and a pack's with what its source's repository holds now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from strata_pack.chat.repair.prelude import prelude
from strata_pack.cli.app import app
from strata_pack.files import dump_json
from strata_pack.pack.paths import MANIFEST
from tests.conftest import ROOT
from tests.hub_server import serve
from tests.pack.tiny_pack import write_pack

TEXT = (ROOT / "tests/data/chat/stock/qwen38_like.jinja").read_text(encoding="utf-8")


def diff(*args: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["template", "diff", *map(str, args)])
    return result.exit_code, result.stdout, result.stderr


def files(folder: Path, first: str, second: str) -> tuple[Path, Path]:
    paths = folder / "a.jinja", folder / "b.jinja"
    for path, text in zip(paths, (first, second), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def test_the_same_text_is_the_same(tmp_path: Path) -> None:
    code, out, _ = diff(*files(tmp_path, TEXT, TEXT.replace("\n", "\r\n")))
    assert (code, "the texts are the same" in out) == (0, True)


def test_a_change_that_changes_no_prompt_is_shown_and_fine(tmp_path: Path) -> None:
    code, out, _ = diff(*files(tmp_path, TEXT, "{# a remark #}" + TEXT))
    assert code == 0
    assert "+{# a remark #}" in out
    assert "0 of " in out


def test_a_change_of_the_prompts_fails_and_shows_where(tmp_path: Path) -> None:
    code, out, err = diff(*files(tmp_path, TEXT, TEXT.replace("</tool_response>", "</tool_reply>")))
    assert code == 1
    assert "conversations render differently" in err
    assert "reply" in out


def test_a_repaired_template_is_known_as_the_others_repair(tmp_path: Path) -> None:
    code, out, _ = diff(*files(tmp_path, TEXT, prelude("xml") + TEXT), "--json")
    (found,) = json.loads(out)["templates"]
    assert (code, 0 < len(found["renderings"]) < found["compared"]) == (1, True)
    assert "with history repair in front" in found["note"]


def test_templates_for_tools_are_compared_too(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    (folder / "additional_chat_templates").mkdir(parents=True)
    (folder / "chat_template.jinja").write_text(TEXT, encoding="utf-8")
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools", encoding="utf-8")
    file, _ = files(tmp_path, TEXT, TEXT)
    code, out, _ = diff(file, folder, "--json")
    assert (code, [one["name"] for one in json.loads(out)["templates"]]) == (1, ["default", "tool_use"])


def from_hub(root: Path) -> Path:
    pack = write_pack(root, TEXT)
    manifest = json.loads((pack / MANIFEST).read_text(encoding="utf-8"))
    manifest["source"] = {"kind": "hub", "repo": "org/model", "commit": "0" * 40, "files": []}
    (pack / MANIFEST).write_bytes(dump_json(manifest))
    return pack


def test_the_vendors_present_template_is_fetched_for_a_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    pack = from_hub(tmp_path / "pack")
    with serve({"org/model": {"chat_template.jinja": TEXT.encode()}}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        assert diff(pack, "--vendor")[0] == 0
        hub.repo("org/model", {"chat_template.jinja": TEXT.replace("<tool_response>", "<tool_reply>").encode()})
        code, out, _ = diff(pack, "--vendor")
    assert (code, "hf://org/model" in out) == (1, True)


def test_without_a_second_template_the_base_model_of_the_card_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "tuned"
    folder.mkdir()
    (folder / "chat_template.jinja").write_text(TEXT, encoding="utf-8")
    card = b"---\nbase_model:\n- org/base\n---\n"
    (folder / "README.md").write_bytes(card)
    other = TEXT.replace("<tool_response>", "<tool_reply>").encode()
    repos = {"org/base": {"chat_template.jinja": other}, "org/tuned": {"chat_template.jinja": other, "README.md": card}}
    with serve(repos) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        code, _, err = diff(folder)
        assert diff("hf://org/tuned")[0] == 0
    assert (code, "hf://org/base" in err) == (1, True)


@pytest.mark.parametrize("args", [("qwen3.8-flash-next",), ("a", "b", "--vendor")])
def test_two_templates_are_needed(args: tuple[str, ...]) -> None:
    assert diff(*args)[0] == 2


def test_a_pack_from_a_file_has_no_vendor(tmp_path: Path) -> None:
    code, _, err = diff(write_pack(tmp_path / "pack", TEXT), "--vendor")
    assert (code, "was not built from a repository" in err) == (2, True)
