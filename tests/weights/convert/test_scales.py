"""Weights in 8 bits: what a code stands for, and the n-gram table that has one scale for all of its shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata_pack.errors import BadInput
from strata_pack.weights.convert.convert import SafetensorsSource, convert_checkpoint
from strata_pack.weights.convert.scales import EIGHT_BITS
from tests.tiny_models import MODELS, weights, write_json, write_model, write_weights

TABLE = "per_layer_token_embd.weight"
SCALE = 0.015625


@pytest.mark.parametrize(
    ("dtype", "code", "value"),
    [
        ("F8_E4M3", 0x00, 0.0),
        ("F8_E4M3", 0x01, 2.0**-9),
        ("F8_E4M3", 0x38, 1.0),
        ("F8_E4M3", 0x7E, 448.0),
        ("F8_E4M3", 0xB9, -1.125),
        ("F8_E5M2", 0x01, 2.0**-16),
        ("F8_E5M2", 0x3C, 1.0),
        ("F8_E5M2", 0x7B, 57344.0),
        ("F8_E5M2", 0x7C, np.inf),
        ("I8", 0xFF, -1.0),
    ],
)
def test_code_stands_for_its_value(dtype: str, code: int, value: float) -> None:
    assert EIGHT_BITS[dtype][code] == value


@pytest.mark.parametrize(("dtype", "codes"), [("F8_E4M3", [0x7F, 0xFF]), ("F8_E5M2", [0x7D, 0x7F, 0xFE])])
def test_other_codes_are_no_numbers(dtype: str, codes: list[int]) -> None:
    assert np.isnan(EIGHT_BITS[dtype][codes]).all()


def test_one_scale_serves_all_shards_of_the_n_gram_table(tmp_path: Path) -> None:
    folder = write_model("flash", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    write_json(folder / "config.json", {**config, "quantization_config": {"quant_method": "fp8"}})
    dice = np.random.default_rng(5)
    found = dict(weights(MODELS["flash"]))
    shards = [name for name in found if ".ngram_embedding.shard_" in name]
    for name in shards:
        found[name] = dice.integers(0, 0x7F, found[name].shape, dtype=np.uint8)
    found[shards[0].partition("shard_")[0] + "weight_scale"] = np.array(SCALE, dtype=np.float32)
    write_weights(folder, found, "BF16", 2)
    in_order = sorted(shards, key=lambda name: int(name.split("shard_")[1].split(".")[0]))
    expected = EIGHT_BITS["F8_E4M3"][np.concatenate([found[name] for name in in_order])] * np.float32(SCALE)
    with SafetensorsSource.open(folder, "f32") as source:
        tensor = next(tensor for tensor in source.tensors if tensor.name == TABLE)
        rows = np.empty(tensor.nbytes, dtype=np.uint8)
        source.rows(tensor)(0, tensor.rows, rows)
    assert (rows.view(np.float32).reshape(expected.shape) == expected).all()


# Packed integers


def packed_model(folder: Path, change: Any) -> Path:
    """Write a model of packed integers whose tensors ``change`` has altered."""
    folder = write_model("qwen3-int4", folder / "model")
    found = dict(weights(MODELS["qwen3-int4"]))
    change(found)
    write_weights(folder, found, "BF16", 1)
    return folder


AT = "model.layers.0.mlp.up_proj.weight"
FAULTS: dict[str, tuple[Any, str]] = {
    "no scale": (lambda found: found.pop(f"{AT}_scale"), "has no scale"),
    "no words": (lambda found: found.pop(f"{AT}_packed"), "belongs to no packed weight"),
    "floats": (lambda found: found.update({f"{AT}_packed": np.zeros((512, 32), np.float32)}), "as its scale"),
    "too few words": (lambda found: found.update({f"{AT}_packed": found[f"{AT}_packed"][:, :-1].copy()}), "its words"),
    "too few rows of scales": (lambda found: found.update({f"{AT}_scale": found[f"{AT}_scale"][:-1].copy()}), "scale"),
    "zero points of another shape": (
        lambda found: found.update({f"{AT}_zero_point": found[f"{AT}_zero_point"][:-1].copy()}),
        "its zero points",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_packed_weight_that_is_not_whole_is_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    change, words = FAULTS[name]
    with pytest.raises(BadInput, match=words):
        SafetensorsSource.open(packed_model(tmp_path, change), "f32")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: found.update({f"{AT}_shape": np.array([512, 255], np.int64)}), "is .512, 255."),
        (lambda found: found.pop(f"{AT}_shape"), "has no stored shape"),
    ],
    ids=["another", "missing"],
)
def test_shape_that_is_stored_with_packed_values_must_be_theirs(change: Any, words: str, tmp_path: Path) -> None:
    folder = packed_model(tmp_path, change)
    with SafetensorsSource.open(folder, "f32") as source, pytest.raises(BadInput, match=words):
        convert_checkpoint(source, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize(
    "change",
    [{"num_bits": 3}, {"strategy": "channel"}, {"type": "float"}, {"group_size": 0}, {"group_size": None}],
    ids=str,
)
def test_other_packings_are_refused_by_name(change: dict[str, Any], tmp_path: Path) -> None:
    folder = write_model("qwen3-int4", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"]["config_groups"]["group_0"]["weights"].update(change)
    write_json(folder / "config.json", config)
    with pytest.raises(BadInput, match=r"compressed-tensors|group of a scale"):
        SafetensorsSource.open(folder, "f32")
