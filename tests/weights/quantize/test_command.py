"""The command ``strata-pack quantize``: what it prints, writes and refuses."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from strata_pack.cli.app import app
from strata_pack.weights.gguf.file import open_shards
from tests.pack.tiny_pack import hashes, write_pack
from tests.tiny_models import write_model as write_checkpoint
from tests.weights.quantize.models import DENSE, write_imatrix, write_model

SMALL = replace(DENSE, layers=2, ffn=256, vocab=64)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model.gguf", SMALL)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["quantize", *map(str, arguments)])


def test_it_writes_the_file_and_prints_its_hash(model: Path, tmp_path: Path) -> None:
    result = call(model, tmp_path / "q.gguf", "--quant", "Q4_K_M")
    assert result.exit_code == 0, result.output
    assert hashlib.sha256((tmp_path / "q.gguf").read_bytes()).hexdigest() in result.stdout


def test_json_holds_files_and_types(model: Path, tmp_path: Path) -> None:
    result = call(model, tmp_path / "q.gguf", "--quant", "Q8_0", "--json")
    answer = json.loads(result.stdout)
    assert answer["ok"] is True
    assert answer["files"][0]["size"] == (tmp_path / "q.gguf").stat().st_size
    assert answer["tensor_types"]["blk.0.ffn_up.weight"] == "Q8_0"


def test_a_dry_run_shows_every_tensor_and_writes_nothing(model: Path, tmp_path: Path) -> None:
    result = call(model, "--dry-run", "--tensor-type", r"blk\.1\.ffn_down=Q8_0", tmp_path / "q.gguf")
    assert result.exit_code == 0, result.output
    line = next(line for line in result.stdout.splitlines() if "blk.1.ffn_down" in line)
    assert line.split() == ["blk.1.ffn_down.weight", "256", "x", "256", "F16", "Q8_0", "0.066", "8.50", "Q6_K", "there"]
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_the_sizes_of_a_dry_run_are_those_of_the_file(model: Path, tmp_path: Path) -> None:
    planned = json.loads(call(model, "--dry-run", "--quant", "Q5_K_S", "--json").stdout)
    call(model, tmp_path / "q.gguf", "--quant", "Q5_K_S")
    assert planned["file_bytes"] == [(tmp_path / "q.gguf").stat().st_size]
    assert planned["data_bytes"] == sum(tensor["bytes"] for tensor in planned["tensors"])
    assert planned["bits_per_weight"] == round(8 * planned["data_bytes"] / planned["parameters"], 4)


def test_an_imatrix_is_used(model: Path, tmp_path: Path) -> None:
    imatrix = write_imatrix(tmp_path / "i.gguf", SMALL)
    planned = json.loads(call(model, "--dry-run", "--quant", "Q2_K_S", "--imatrix", imatrix, "--json").stdout)
    assert planned["imatrix"] == {"sha256": hashlib.sha256(imatrix.read_bytes()).hexdigest()}
    assert {t["name"]: t["imatrix"] for t in planned["tensors"]}["blk.0.ffn_up.weight"] is True


def test_a_split_source_may_stay_split(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model.gguf", SMALL, shards=2)
    result = call(source, tmp_path / "q.gguf", "--keep-split")
    assert result.exit_code == 0, result.output
    assert len(open_shards(tmp_path / "q-00001-of-00002.gguf")) == 2


def test_a_folder_with_one_model_is_a_source(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    write_model(tmp_path / "folder" / "model.gguf", SMALL)
    assert call(tmp_path / "folder", tmp_path / "q.gguf").exit_code == 0


def test_an_existing_file_is_replaced_only_by_force(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "q.gguf"
    out.write_bytes(b"mine")
    refused = call(model, out)
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert out.read_bytes() == b"mine"
    assert call(model, out, "--force").exit_code == 0


def _itself(model: Path) -> Path:
    return model


def _another_spelling(model: Path) -> Path:
    (model.parent / "x").mkdir()
    return model.parent / "x" / ".." / model.name


def _link(model: Path) -> Path:
    (model.parent / "link.gguf").symlink_to(model.name)
    return model.parent / "link.gguf"


def _linked_folder(model: Path) -> Path:
    (model.parent / "here").symlink_to(".")
    return model.parent / "here" / model.name


def _hard_link(model: Path) -> Path:
    os.link(model, model.parent / "hard.gguf")
    return model.parent / "hard.gguf"


@pytest.mark.parametrize("spell", [_itself, _another_spelling, _link, _linked_folder, _hard_link])
def test_a_model_is_never_quantized_onto_itself(model: Path, spell: Callable[[Path], Path]) -> None:
    before = model.read_bytes()
    result = call(model, spell(model), "--force")
    assert result.exit_code == 2
    assert "which this command reads" in result.stderr
    assert model.read_bytes() == before


def test_a_relative_name_of_the_source_is_the_source(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    assert call(model, model.name, "--force").exit_code == 2


def test_a_split_model_is_never_quantized_onto_itself(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model.gguf", SMALL, shards=2)
    before = source.read_bytes()
    assert call(source, tmp_path / "model.gguf", "--keep-split", "--force").exit_code == 2
    assert source.read_bytes() == before


def test_the_imatrix_is_never_written_over(model: Path, tmp_path: Path) -> None:
    imatrix = write_imatrix(tmp_path / "i.gguf", SMALL)
    assert call(model, imatrix, "--imatrix", imatrix, "--force").exit_code == 2


def test_the_recipe_is_never_written_over(model: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.gguf"
    recipe.write_text('base = "Q8_0"\n')
    assert call(model, recipe, "--recipe", recipe, "--force").exit_code == 2
    assert recipe.read_text() == 'base = "Q8_0"\n'


def test_a_source_that_would_be_the_growing_output_is_refused(model: Path, tmp_path: Path) -> None:
    hidden = model.rename(tmp_path / ".q.gguf.partial")
    before = hidden.read_bytes()
    assert call(hidden, tmp_path / "q.gguf").exit_code == 2
    assert hidden.read_bytes() == before


def test_a_folder_in_the_place_of_the_output_is_refused_before_any_work(model: Path, tmp_path: Path) -> None:
    (tmp_path / "q.gguf").mkdir()
    result = call(model, tmp_path / "q.gguf", "--force")
    assert (result.exit_code, "is a folder" in result.stderr) == (2, True)


def test_the_model_of_a_finished_pack_is_never_written_over(model: Path, tmp_path: Path) -> None:
    pack = write_pack(tmp_path / "pack")
    before = hashes(pack)
    result = call(model, pack / "model/tiny.gguf", "--force")
    assert (result.exit_code, "belongs to the pack" in result.stderr) == (2, True)
    assert hashes(pack) == before


def test_nonfinite_weights_are_refused_and_allowed(tmp_path: Path) -> None:
    model = write_model(tmp_path / "bad.gguf", SMALL, spoil={"blk.1.ffn_up.weight": float("nan")})
    refused = call(model, tmp_path / "q.gguf")
    assert refused.exit_code == 2
    assert "blk.1.ffn_up.weight has a NaN" in refused.stderr
    allowed = call(model, tmp_path / "q.gguf", "--allow-nonfinite", "--json")
    assert json.loads(allowed.stdout)["nonfinite"] == {"blk.1.ffn_up.weight": 1}


REFUSED = {
    "unknown preset": (["{model}", "{out}", "--quant", "Q4_X"], "no preset is called 'Q4_X'"),
    "no file to write": (["{model}"], "no FILE to write"),
    "wrong ending": (["{model}", "{out}.bin"], "must end in .gguf"),
    "missing source": (["{folder}/none.gguf", "{out}"], "none.gguf"),
    "empty folder": (["{folder}/empty", "{out}"], "has no safetensors and no GGUF"),
    "hub id": (["org/name", "{out}"], "quantize reads local files"),
    "missing imatrix": (["{model}", "{out}", "--imatrix", "{folder}/none"], "no such file"),
    "missing recipe": (["{model}", "{out}", "--recipe", "{folder}/none"], "no such file"),
    "idle rule": (["{model}", "{out}", "--tensor-type", "nothing=Q8_0"], "matches no tensor"),
    "needs an imatrix": (["{model}", "{out}", "--quant", "IQ2_XXS"], "needs an imatrix"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_use_is_one_sentence_and_exit_code_2(case: str, model: Path, tmp_path: Path) -> None:
    arguments, words = REFUSED[case]
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.iterdir())
    filled = [a.format(model=model, out=tmp_path / "q.gguf", folder=tmp_path) for a in arguments]
    result = call(*filled)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


def test_a_disk_that_is_too_small_is_noticed_before_the_first_byte(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata_pack.weights.preflight.free_bytes", lambda _path: 1000)
    result = call(model, tmp_path / "q.gguf")
    assert result.exit_code == 3
    assert "not enough disk space" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize("variant", ["qwen3", "qwen3moe"])
def test_a_checkpoint_is_quantized_to_the_file_of_the_converted_model(variant: str, tmp_path: Path) -> None:
    folder, converted = tmp_path / "checkpoint", tmp_path / "converted.gguf"
    write_checkpoint(variant, folder)
    assert CliRunner().invoke(app, ["convert", str(folder), "-o", str(converted)]).exit_code == 0
    assert call(folder, tmp_path / "direct.gguf", "--quant", "Q4_K_M").exit_code == 0
    assert call(converted, tmp_path / "in-two-steps.gguf", "--quant", "Q4_K_M").exit_code == 0
    assert (tmp_path / "direct.gguf").read_bytes() == (tmp_path / "in-two-steps.gguf").read_bytes()
