"""All copies of a template in a tree or repository are looked at, and those that differ are named."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.errors import BadInput
from strata_pack.pack.template.survey import survey
from tests.hub_server import folder_files, serve


def model(path: Path, template: str | None = "a", name: str | None = None, **named: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    if name is not None:
        writer.add_name(name)
    if template is not None:
        writer.add_chat_template(template)
    for key, text in named.items():
        writer.add_string(f"tokenizer.chat_template.{key}", text)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def differing(target: Path | str) -> list[tuple[str, str]]:
    return [(copy.place, copy.name) for copy in survey(str(target)).differing]


def check(target: Path | str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["template", "check", str(target), "--json"])
    return result.exit_code, result.stdout, result.stderr


def test_copies_that_agree_are_fine(tmp_path: Path) -> None:
    model(tmp_path / "m-Q4_K_M.gguf", "a\n")
    model(tmp_path / "UD" / "m-Q8_0.gguf", "a")
    (tmp_path / "chat_template.jinja").write_text("\ufeffa\r\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "a"}), encoding="utf-8")
    code, out, _ = check(tmp_path)
    assert (code, json.loads(out)["ok"], len(json.loads(out)["copies"])) == (0, True, 4)


def test_the_copy_that_is_unlike_most_is_named(tmp_path: Path) -> None:
    for quant in ("Q2_K", "Q4_K_M", "Q8_0"):
        model(tmp_path / f"m-{quant}.gguf", "old" if quant == "Q8_0" else "new")
    code, _, err = check(tmp_path)
    assert (code, differing(tmp_path)) == (1, [("m-Q8_0.gguf", "default")])
    assert "1 of 3 copies differ" in err


def test_a_quantization_without_a_template_differs_from_one_with_it(tmp_path: Path) -> None:
    model(tmp_path / "a.gguf")
    model(tmp_path / "b.gguf", None)
    assert differing(tmp_path) == [("b.gguf", "default")]


def test_templates_of_other_names_are_compared_with_their_own_kind(tmp_path: Path) -> None:
    model(tmp_path / "a.gguf", tool_use="t")
    (tmp_path / "additional_chat_templates").mkdir()
    other = tmp_path / "additional_chat_templates" / "tool_use.jinja"
    other.write_text("t", encoding="utf-8")
    assert differing(tmp_path) == []
    other.write_text("changed", encoding="utf-8")
    assert [name for _, name in differing(tmp_path)] == ["tool_use"]


def test_a_folder_of_several_models_compares_each_with_itself(tmp_path: Path) -> None:
    for folder, name, text in (("x-Q4", "X", "x"), ("x-Q8", "X", "x"), ("y", "Y", "y")):
        model(tmp_path / folder / "m.gguf", text, name)
    assert differing(tmp_path) == []
    model(tmp_path / "x-Q8" / "m.gguf", "changed", "X")
    assert differing(tmp_path) == [("x-Q8/m.gguf", "default")]


def test_snapshots_of_the_hub_cache_are_models_of_their_own(tmp_path: Path) -> None:
    for name, text in (("one", "a"), ("two", "b")):
        blob = model(tmp_path / f"models--org--{name}" / "blobs" / "b.gguf", text)
        blob = blob.rename(blob.with_name("0" * 64))
        link = tmp_path / f"models--org--{name}" / "snapshots" / "c" / "m.gguf"
        link.parent.mkdir(parents=True)
        link.symlink_to(blob)
    (tmp_path / "models--org--one/snapshots/c/chat_template.jinja").write_text("a", encoding="utf-8")
    found = survey(str(tmp_path))
    assert (len(found.copies), found.differing) == (3, [])


def test_projectors_and_later_shards_are_no_copies(tmp_path: Path) -> None:
    model(tmp_path / "m-00001-of-00002.gguf")
    model(tmp_path / "m-00002-of-00002.gguf", None)
    writer = gguf.GGUFWriter(tmp_path / "mmproj.gguf", "clip")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert [copy.place for copy in survey(str(tmp_path)).copies] == ["m-00001-of-00002.gguf"]


def test_a_damaged_file_is_shown_and_refused(tmp_path: Path) -> None:
    model(tmp_path / "a.gguf")
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    code, out, err = check(tmp_path)
    assert (code, [one["status"] for one in json.loads(out)["copies"]].count("unreadable")) == (2, 1)
    assert "b.gguf" in err


@pytest.mark.parametrize("name", ["", "no such/place/here"])
def test_nothing_to_look_at_is_one_sentence(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        survey(name or str(tmp_path))


def test_of_a_repository_every_copy_is_read_and_no_weights_travel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model(tmp_path / "r" / "m-Q4_K_M.gguf", "old")
    model(tmp_path / "r" / "m-Q8_0.gguf", "new")
    (tmp_path / "r" / "chat_template.jinja").write_text("new", encoding="utf-8")
    files = folder_files(tmp_path / "r")
    files["m-Q4_K_M.gguf"] += b"w" * (4 << 20)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    with serve({"org/model": files}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        found = survey("org/model")
    assert [(copy.model, copy.place) for copy in found.differing] == [("org/model", "m-Q4_K_M.gguf")]
    assert len(found.copies) == 3


def test_of_an_organisation_each_repository_is_compared_with_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    config = json.dumps({"chat_template": "b"}).encode()
    repos = {
        "org/one": {"chat_template.jinja": b"a", "tokenizer_config.json": config},
        "org/two": {"chat_template.jinja": b"b", "tokenizer_config.json": config},
        "other/three": {"chat_template.jinja": b"c"},
    }
    with serve(repos) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        found = survey("org")
    assert {copy.model for copy in found.copies} == {"org/one", "org/two"}
    assert {copy.model for copy in found.differing} == {"org/one"}
