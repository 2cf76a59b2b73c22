"""Weights in 8 bits: what a code stands for, and the n-gram table that has one scale for all of its shards."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from strata_pack.weights.convert.convert import SafetensorsSource
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
