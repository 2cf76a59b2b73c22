"""Checkpoints in NVFP4: values are those of the codes and both scales, as llama.cpp computes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from strata_pack.errors import BadInput
from strata_pack.weights.convert.convert import SafetensorsSource
from tests.tiny_models import MODELS, encode, weights, write_model, write_safetensors

MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {}}
NAME = "model.layers.0.mlp.down_proj.weight"
HALVES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
SECOND = np.float32(0.0375)


def e4m3(code: int) -> float:
    """The value of an 8-bit float whose sign does not count."""
    exponent, mantissa = code >> 3 & 15, code & 7
    return (1 + mantissa / 8) * 2.0 ** (exponent - 7) if exponent else mantissa / 8 * 2.0**-6


def write_fours(folder: Path, config: dict[str, Any], drop: str = "") -> npt.NDArray[np.float32]:
    """Write the tiny Qwen3 with four-bit matrices in ``folder``; return the values of the one called ``NAME``."""
    write_model("qwen3", folder)
    for old in folder.glob("model*safetensors*"):
        old.unlink()
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**raw, "quantization_config": config}), encoding="utf-8")
    compressed = config is COMPRESSED
    dice = np.random.default_rng(4)
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    expected = np.empty(0, dtype=np.float32)
    for name, values in weights(MODELS["qwen3"]):
        if not name.endswith("_proj.weight"):
            tensors[name] = ("BF16", values.shape, encode(values, "BF16"))
            continue
        rows, columns = values.shape
        codes = dice.integers(0, 256, (rows, columns // 2), dtype=np.uint8)
        scales = dice.integers(0, 0x7F, (rows, columns // 16), dtype=np.uint8)
        base = name.removesuffix(".weight")
        tensors[f"{base}.weight_packed" if compressed else name] = ("U8", codes.shape, codes.tobytes())
        tensors[f"{base}.weight_scale"] = ("F8_E4M3", scales.shape, scales.tobytes())
        second = np.float32(1) / SECOND if compressed else SECOND
        called = "weight_global_scale" if compressed else "weight_scale_2"
        tensors[f"{base}.{called}"] = ("F32", (1,) if compressed else (), second.tobytes())
        called = "input_global_scale" if compressed else "input_scale"
        tensors[f"{base}.{called}"] = ("F32", (), np.float32(1).tobytes())
        if name == NAME:
            signed = np.array([*HALVES, *(-one for one in HALVES)], dtype=np.float32)
            plain = np.stack([signed[codes & 15], signed[codes >> 4]], axis=-1).reshape(rows, -1, 16)
            blocks = np.array([e4m3(code) for code in range(128)], dtype=np.float32)[scales]
            factor = np.float32(1) / second if compressed else second
            expected = (plain * blocks[..., None] * factor).reshape(rows, columns)
    tensors.pop(drop, None)
    write_safetensors(folder / "model.safetensors", tensors)
    return expected


@pytest.mark.parametrize("config", [MODELOPT, COMPRESSED], ids=["modelopt", "compressed-tensors"])
def test_a_weight_is_its_codes_times_both_scales(config: dict[str, Any], tmp_path: Path) -> None:
    expected = write_fours(tmp_path / "m", config)
    with SafetensorsSource.open(tmp_path / "m", "f32") as source:
        tensor = next(one for one in source.tensors if one.name == "blk.0.ffn_down.weight")
        found = np.empty(tensor.nbytes, dtype=np.uint8)
        source.rows(tensor)(0, tensor.rows, found)
    assert (found.view(np.float32).reshape(expected.shape) == expected).all()


def test_what_older_exports_say_next_to_the_configuration_counts(tmp_path: Path) -> None:
    write_fours(tmp_path / "m", {})
    text = json.dumps({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}})
    (tmp_path / "m/hf_quant_config.json").write_text(text, encoding="utf-8")
    with SafetensorsSource.open(tmp_path / "m") as source:
        assert source.outtype == "bf16"


@pytest.mark.parametrize(
    ("drop", "sentence"),
    [
        (NAME, "scales a weight that is not there"),
        (f"{NAME}_scale", "scales a weight that is not there"),
    ],
)
def test_half_a_weight_is_refused(drop: str, sentence: str, tmp_path: Path) -> None:
    write_fours(tmp_path / "m", MODELOPT, drop)
    with pytest.raises(BadInput, match=sentence):
        SafetensorsSource.open(tmp_path / "m")
