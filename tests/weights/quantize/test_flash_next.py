"""Qwen3.8-Flash-Next in its true size, planned from weights that are holes: types, sizes and time."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strata_pack.weights.convert.convert import SafetensorsSource, convert_checkpoint
from strata_pack.weights.gguf.file import GgufFile
from strata_pack.weights.quantize.recipes import make_recipe
from strata_pack.weights.quantize.run import plan_quantization, run_plan
from strata_pack.weights.tensor_source import GgufSource
from tests.conftest import ROOT
from tests.real_flash import write_real
from tests.tiny_models import write_model
from tests.weights.quantize.oracle import needs_oracle, reference

CASES: dict[str, Any] = json.loads((ROOT / "tests/data/weights/flash_next_presets.json").read_text(encoding="utf-8"))
TABLE = "per_layer_token_embd.weight"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SafetensorsSource]:
    with SafetensorsSource.open(write_real(tmp_path_factory.mktemp("real")), "bf16") as real:
        yield real


def test_true_size_is_that_of_the_release(source: SafetensorsSource) -> None:
    assert len(source.tensors) == 1256
    assert round(sum(tensor.nbytes for tensor in source.tensors) / 1e9, 1) == 359.2


@pytest.mark.parametrize("pair", CASES["types"])
def test_types_and_size_are_those_of_llama_quantize(source: SafetensorsSource, pair: str) -> None:
    plan = plan_quantization(source, pair.rsplit(" ", 1)[1])
    types: dict[str, Counter[str]] = defaultdict(Counter)
    for tensor in plan.tensors:
        types[tensor.name.split(".", 2)[2] if tensor.name.startswith("blk.") else tensor.name][tensor.type.name] += 1
    assert {name: dict(types[name]) for name in CASES["types"][pair]} == CASES["types"][pair]
    mebibytes, bits = CASES["size_mib_bpw"][pair]
    assert (round(plan.data_bytes / 2**20, 2), round(plan.bits_per_weight, 2)) == (mebibytes, bits)


@pytest.mark.parametrize(
    ("options", "type_"),
    [
        ({}, "Q5_0"),
        ({"embedding": "Q8_0"}, "Q8_0"),
        ({"tensor_types": (f"{TABLE}=Q4_0",)}, "Q4_0"),
        ({"embedding": "Q8_0", "tensor_types": ("per_layer_token_embd=Q4_0",)}, "Q4_0"),
    ],
)
def test_rule_that_names_the_table_wins_over_the_type_of_embeddings(
    source: SafetensorsSource, options: dict[str, Any], type_: str
) -> None:
    plan = plan_quantization(source, make_recipe("Q4_K_M", None, **options))
    assert plan.types[TABLE] == type_


def test_ones_at_the_end_of_a_shape_are_dropped(tmp_path: Path) -> None:
    with SafetensorsSource.open(write_model("qwen35moe", tmp_path / "model"), "bf16") as tiny:
        run_plan(plan_quantization(tiny, "Q8_0"), tmp_path / "x.gguf")
    with GgufFile.open(tmp_path / "x.gguf") as file:
        shapes = {tensor.name: tensor.shape for tensor in file.tensors}
    assert shapes["blk.0.ffn_gate_inp_shexp.weight"] == (256,)


@needs_oracle()
@pytest.mark.parametrize("name", ["qwen35moe", "qwen3next"])
def test_whole_file_is_the_reference_s(tmp_path: Path, name: str) -> None:
    with SafetensorsSource.open(write_model(name, tmp_path / name), "bf16", part="trunk") as tiny:
        convert_checkpoint(tiny, tmp_path / "bf16.gguf")
    reference([(tmp_path / "bf16.gguf", tmp_path / "theirs.gguf", {"ftype": 7})])
    with GgufSource(tmp_path / "bf16.gguf") as between:
        run_plan(plan_quantization(between, "Q8_0"), tmp_path / "ours.gguf")
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()
