"""Building packs: the same bytes every time, and what goes into the folder."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

import jsonschema
import pytest

from strata_pack.chat.library import load_shipped
from strata_pack.chat.render.template import read_template
from strata_pack.errors import BadInput, CheckFailed
from strata_pack.files import sha256_text
from strata_pack.pack.build import BuildResult, build_pack
from strata_pack.pack.layout import Pack, gguf_template
from strata_pack.pack.manifest import schema
from strata_pack.pack.paths import GOLDEN, TEMPLATE
from strata_pack.pack.request import BuildRequest
from strata_pack.pack.template.install import install_template
from strata_pack.pack.template.source import read_pack_template
from strata_pack.pack.verification import verify
from strata_pack.weights.gguf.file import GgufFile, MetaValue
from strata_pack.weights.quantize.recipes import make_recipe
from tests.conftest import ROOT
from tests.pack.tiny_gguf import STOCK, write_shards, write_tiny
from tests.pack.tiny_pack import CASES, hashes
from tests.tiny_models import write_model


def test_a_built_pack_verifies(request_: BuildRequest) -> None:
    assert verify(build_pack(request_).path).ok


def test_the_manifest_fits_its_schema(request_: BuildRequest) -> None:
    path = build_pack(request_).path / "manifest.json"
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(json.loads(path.read_text()), schema())


def test_two_builds_in_two_places_give_the_same_bytes(request_: BuildRequest, tmp_path: Path) -> None:
    first = build_pack(request_).path
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(request_.source, elsewhere)
    moved = replace(request_, source=str(elsewhere / Path(request_.source).name), out=elsewhere / "p")
    second = build_pack(moved).path
    assert hashes(first) == hashes(second)


def test_the_manifest_names_no_place_of_this_machine(request_: BuildRequest, tmp_path: Path) -> None:
    assert str(tmp_path) not in (build_pack(request_).path / "manifest.json").read_text()


def test_nothing_else_is_left_in_the_packs_parent_folder(request_: BuildRequest) -> None:
    assert [path.name for path in build_pack(request_).path.parent.iterdir()] == ["pack"]


def test_the_model_file_is_called_after_source_and_preset(request_: BuildRequest) -> None:
    assert [path.name for path in Pack.open(build_pack(request_).path).model_files] == ["Tiny-Q8_0.gguf"]


def test_a_name_of_ones_own_wins(request_: BuildRequest) -> None:
    path = build_pack(replace(request_, name="mine")).path
    assert (path / "model/mine.gguf").is_file()


def test_a_name_keeps_the_quantization_it_says(request_: BuildRequest) -> None:
    path = build_pack(replace(request_, name="mine-Q4_K_M.gguf")).path
    assert (path / "model/mine-Q4_K_M.gguf").is_file()


def test_a_shipped_template_reaches_the_folder_and_the_gguf(request_: BuildRequest) -> None:
    shipped = load_shipped("qwen3.8-flash-next")
    path = build_pack(replace(request_, template=shipped.id, golden=None)).path
    pack = Pack.open(path)
    assert (path / TEMPLATE).read_text() == gguf_template(pack.model_files[0]) == shipped.source
    assert pack.manifest["template"]["id"] == shipped.id


def test_the_manifest_remembers_which_template_was_replaced(request_: BuildRequest) -> None:
    manifest = build_pack(replace(request_, template="qwen3.8-flash-next", golden=None)).manifest
    kept = build_pack(replace(request_, out=request_.out.with_name("kept"))).manifest
    assert manifest["template"]["replaced_sha256"] == kept["template"]["sha256"]


def test_named_variants_of_the_old_template_are_removed(request_: BuildRequest, tmp_path: Path) -> None:
    extra = {"tokenizer.chat_template.tool_use": MetaValue.string("old")}
    source = write_tiny(tmp_path / "v.gguf", extra=extra)
    path = build_pack(replace(request_, source=str(source))).path
    with GgufFile.open(Pack.open(path).model_files[0]) as gguf:
        assert [key for key in gguf.metadata if key.startswith("tokenizer.chat_template")] == [
            "tokenizer.chat_template"
        ]


def test_a_template_with_carriage_returns_and_a_byte_order_mark_is_normalised(
    request_: BuildRequest, tmp_path: Path
) -> None:
    file = tmp_path / "windows.jinja"
    file.write_bytes(b"\xef\xbb\xbf" + STOCK.replace("\n", "\r\n").encode())
    path = build_pack(replace(request_, template=str(file))).path
    assert (path / TEMPLATE).read_bytes() == STOCK.encode()


@pytest.mark.parametrize("template", ["auto", "keep"])
@pytest.mark.parametrize("windows", [STOCK.replace("\n", "\r\n"), "\ufeff" + STOCK], ids=["CRLF", "byte order mark"])
def test_the_sources_own_template_is_normalised_too(
    request_: BuildRequest, tmp_path: Path, windows: str, template: str
) -> None:
    source = write_tiny(tmp_path / "windows.gguf", windows)
    path = build_pack(replace(request_, source=str(source), template=template)).path
    assert (path / TEMPLATE).read_bytes() == STOCK.encode()
    assert verify(path).ok


def test_golden_cases_that_differ_stop_the_build(request_: BuildRequest, tmp_path: Path) -> None:
    (tmp_path / "golden.json").write_text(json.dumps([{**CASES[0], "expected": "user: Hello\n"}]))
    with pytest.raises(CheckFailed, match=r"(\d) of \1 golden renderings differ"):
        build_pack(request_)
    assert not request_.out.exists()


def test_the_golden_cases_lie_in_the_pack(request_: BuildRequest) -> None:
    assert "user: Hi" in (build_pack(request_).path / GOLDEN).read_text()


def test_the_template_that_is_there_is_not_installed_again(request_: BuildRequest) -> None:
    path = build_pack(request_).path
    before = hashes(path)
    result = install_template(path, "keep")
    assert (result.changed, hashes(path)) == (False, before)


@pytest.mark.parametrize("layout", ["pack", "gguf"])
def test_a_folder_can_hold_the_packs_that_are_built_from_it(
    request_: BuildRequest, source: Path, layout: Literal["pack", "gguf"]
) -> None:
    folder = source.parent / "folder"
    folder.mkdir()
    source.rename(folder / source.name)
    inside = replace(request_, source=str(folder), out=folder / "pack")
    leftover = folder / "other.partial/pack/model/x.gguf"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"GGUF")
    build_pack(inside)
    assert build_pack(replace(inside, out=folder / "again", layout=layout)).path.is_dir()


def test_a_folder_with_two_models_is_refused_with_a_way_on_for_a_folder(request_: BuildRequest, source: Path) -> None:
    shutil.copy(source, source.with_name("other.gguf"))
    with pytest.raises(BadInput, match=r"has 2 GGUF models .*name one: its path"):
        build_pack(replace(request_, source=str(source.parent)))


def test_a_source_whose_name_is_no_text_is_built(request_: BuildRequest, source: Path) -> None:
    odd = source.rename(os.fsdecode(os.fsencode(source.parent) + b"/t\xff.gguf"))
    assert verify(build_pack(replace(request_, source=str(odd))).path).ok


def test_a_folder_with_a_tokenizer_takes_it_along_with_the_new_template(
    request_: BuildRequest, tmp_path: Path, source: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    source.rename(folder / source.name)
    config = {"bos_token": "<s>", "chat_template": "old", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    path = build_pack(replace(request_, source=str(folder), template="qwen3.8-flash-next", golden=None)).path
    copied = json.loads((path / "tokenizer/tokenizer_config.json").read_text())
    assert copied == {**config, "chat_template": read_pack_template(path)}


@pytest.fixture(scope="module")
def repaired(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BuildResult]:
    """A tiny Qwen3 in Hugging Face layout with a stock-like template, and the pack with that template repaired."""
    folder = tmp_path_factory.mktemp("repaired")
    checkpoint = write_model("qwen3", folder / "Qwen3-Tiny")
    shutil.copy(ROOT / "tests/data/chat/stock/qwen3_like.jinja", checkpoint / "chat_template.jinja")
    return checkpoint, build_pack(BuildRequest(str(checkpoint), folder / "pack", make_recipe("Q8_0"), template="auto"))


def test_a_checkpoint_is_converted_quantized_and_its_own_template_repaired(repaired: tuple[Path, BuildResult]) -> None:
    checkpoint, built = repaired
    stock = read_template(checkpoint / "chat_template.jinja")
    assert verify(built.path).ok
    assert built.manifest["template"]["origin"] == "repaired"
    assert built.manifest["template"]["replaced_sha256"] == sha256_text(stock)
    assert read_pack_template(built.path).endswith(stock)


def test_a_template_that_cannot_be_repaired_says_what_to_do(request_: BuildRequest, tmp_path: Path) -> None:
    template = (ROOT / "tests/data/chat/stock/other_calls.jinja").read_text()
    source = write_tiny(tmp_path / "other.gguf", template)
    with pytest.raises(BadInput, match=r"cannot be repaired.*--template keep"):
        build_pack(replace(request_, source=str(source), template="auto", golden=None))


def test_a_repaired_template_brings_the_cases_it_was_proved_on(repaired: tuple[Path, BuildResult]) -> None:
    golden = repaired[1].manifest["golden"]
    assert golden is not None
    assert golden["cases"] > 100
    assert golden["engines"]["jinja2"]["failed"] == 0


def test_a_checkpoint_gives_its_tokenizer_to_the_pack(repaired: tuple[Path, BuildResult]) -> None:
    checkpoint, path = repaired[0], repaired[1].path
    assert (path / "tokenizer/tokenizer.json").read_bytes() == (checkpoint / "tokenizer.json").read_bytes()
    assert len(json.loads((path / "tokenizer/vocab.json").read_text())) > 4000


def test_a_split_source_may_stay_split(request_: BuildRequest, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, (7, 5))
    path = build_pack(replace(request_, source=str(shards[0]), keep_split=True)).path
    assert len(Pack.open(path).model_files) == 2
    assert verify(path).ok
