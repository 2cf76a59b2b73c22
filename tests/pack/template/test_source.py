"""A chat template is found wherever a model keeps it, and every copy of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from strata_pack.chat.library import load_shipped
from strata_pack.errors import BadInput
from strata_pack.files import sha256_text
from strata_pack.pack.model_source import folder_template
from strata_pack.pack.template.copies import read_copies
from strata_pack.pack.template.source import find_templates, load_set, load_template, read_pack_template
from tests.hub_server import serve

TEXT = "{{ messages|length }}"
SHIPPED = load_shipped("qwen3.8-flash-next").source


def write_gguf(path: Path, template: str | None) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    if template is not None:
        writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_the_id_of_a_shipped_template_is_enough() -> None:
    assert load_template("qwen3.8-flash-next").text == load_shipped("qwen3.8-flash-next").source


def test_a_file_is_read_as_it_lies_there(tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_bytes(b"\xef\xbb\xbfa\r\nb")
    found = load_template(str(file))
    assert (found.text, found.where) == ("\ufeffa\r\nb", str(file))


def test_a_gguf_gives_its_own(tmp_path: Path) -> None:
    assert load_template(str(write_gguf(tmp_path / "m.gguf", TEXT))).text == TEXT


@pytest.mark.parametrize(
    "value",
    [
        TEXT,
        [{"name": "tool_use", "template": "x"}, {"name": "default", "template": TEXT}],
        [{"name": ["no", "text"], "template": "x"}, {"name": "default", "template": TEXT}],
        {"tool_use": "x", "default": TEXT},
    ],
    ids=["text", "named", "named by no text", "object"],
)
def test_a_tokenizers_configuration_gives_the_default_one(value: object, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}), encoding="utf-8")
    assert load_template(str(tmp_path)).text == TEXT
    assert folder_template(tmp_path) == TEXT


def test_all_copies_of_a_model_folder_are_found_and_the_file_counts_first(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("a", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "b"}), encoding="utf-8")
    write_gguf(tmp_path / "m.gguf", "c")
    write_gguf(tmp_path / "mmproj-m.gguf", "not a model's")
    assert [copy.text for copy in read_copies(tmp_path)] == ["a", "b", "c"]


def _configured(folder: Path, value: object) -> Path:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({"chat_template": value}), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "value",
    [SHIPPED, [{"name": "tool_use", "template": TEXT}, {"name": "default", "template": SHIPPED}]],
    ids=["text", "named"],
)
def test_the_template_in_a_tokenizers_configuration_has_a_status(value: object, tmp_path: Path) -> None:
    config = _configured(tmp_path, value)
    found = find_templates(tmp_path)
    assert (found.status, found.sha256, found.where) == ("repaired", sha256_text(SHIPPED), str(config))


def test_a_file_counts_before_the_tokenizers_configuration(tmp_path: Path) -> None:
    _configured(tmp_path, SHIPPED)
    file = tmp_path / "chat_template.jinja"
    file.write_text(TEXT, encoding="utf-8")
    found = find_templates(tmp_path)
    assert (found.status, found.where) == ("unknown", str(file))
    assert [copy["status"] for copy in found.copies] == ["unknown", "repaired"]


def test_templates_of_other_names_are_shown_and_do_not_count(tmp_path: Path) -> None:
    config = _configured(tmp_path, [{"name": "tool_use", "template": SHIPPED}])
    found = find_templates(tmp_path)
    assert (found.status, found.where) == ("missing", None)
    assert [(copy["place"], copy["status"]) for copy in found.copies] == [(f"{config}: 'tool_use'", "repaired")]
    assert read_copies(tmp_path) == []


def test_a_set_with_only_the_template_for_tools_has_it_as_its_main_one(tmp_path: Path) -> None:
    _configured(tmp_path, {"tool_use": TEXT})
    found = load_set(str(tmp_path))
    assert (found.main.text, found.tools) == (TEXT, None)


def test_line_ends_and_a_byte_order_mark_do_not_change_what_a_template_is(tmp_path: Path) -> None:
    _configured(tmp_path, "\ufeff" + SHIPPED.replace("\n", "\r\n"))
    assert find_templates(tmp_path).status == "repaired"
    assert read_pack_template(tmp_path) == SHIPPED


@pytest.mark.parametrize("read", [find_templates, read_pack_template])
def test_the_error_for_a_folder_without_a_template_names_the_files_searched(
    read: Callable[[Path], object], tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=r"has no chat template.*tokenizer_config\.json"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("tokenizer_config.json", b"{", "is not JSON"),
        ("tokenizer_config.json", b'{"chat_template": 5}', "has no chat template"),
        ("t.jinja", b"\xff", "is not UTF-8"),
        ("t.jinja", b"x" * (2 << 20), "is larger than"),
    ],
)
def test_what_holds_no_template_is_refused_by_name(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(data)
    with pytest.raises(BadInput, match=message):
        load_template(str(file))


@pytest.mark.parametrize("target", ["nowhere.jinja", "no such thing"])
def test_a_target_that_names_nothing_is_refused(target: str) -> None:
    with pytest.raises(BadInput, match="no such file"):
        load_template(target)


def test_a_repository_of_the_hub_gives_its_template_without_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "config.json": b"{}",
        "tokenizer_config.json": json.dumps({"chat_template": TEXT}).encode(),
        "tokenizer.json": b"{}",
        "model.safetensors": b"w" * 100_000,
    }
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    with serve({"org/model": files}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        found = load_template("hf://org/model")
        assert (found.text, found.where) == (TEXT, "hf://org/model")
        assert hub.body_hits("model.safetensors") == []
        assert hub.body_hits("tokenizer_config.json") != []


def test_a_repository_without_a_template_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"w"}
    with serve({"org/model": files}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        with pytest.raises(BadInput, match="no chat template, neither"):
            load_template("org/model")


def test_the_template_that_transformers_takes_with_tools_is_shown(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(SHIPPED, encoding="utf-8")
    named = tmp_path / "additional_chat_templates" / "tool_use.jinja"
    named.parent.mkdir()
    named.write_text(TEXT, encoding="utf-8")
    found = find_templates(tmp_path)
    assert (found.status, [copy["status"] for copy in found.copies]) == ("repaired", ["repaired", "unknown"])
    assert found.copies[1]["place"] == str(named)


def test_a_repository_gives_the_template_for_tools_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "chat_template.jinja": TEXT.encode(),
        "additional_chat_templates/tool_use.jinja": b"tools",
        "model.safetensors": b"w",
    }
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    with serve({"org/model": files}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        found = load_set("org/model")
    assert found.main.text == TEXT
    assert found.tools is not None
    assert (found.tools.text, found.tools.where) == ("tools", "hf://org/model: tool_use")
