"""Quantizing whole files: the plan, the header, shards, values that are not finite, any shape."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q
from gguf import GGUFValueType as V
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.llama.ggml import Ggml
from strata_pack.llama.ggml_types import Q2_0
from strata_pack.weights.gguf.file import GgufFile, MetaValue, TensorInfo, encode_header
from strata_pack.weights.quantize.plan import requantize_note
from strata_pack.weights.quantize.rows import CHUNK_WEIGHTS
from strata_pack.weights.quantize.run import (
    output_headers,
    output_paths,
    output_sizes,
    plan_quantization,
    run_plan,
)
from strata_pack.weights.tensor_source import GgufSource
from tests.weights.quantize.models import Shape, metadata, write_model
from tests.weights.quantize.whole_files import SHAPES, SMALL, UNWEIGHTED, YOUNGER, quantize


def test_a_split_model_becomes_the_file_of_the_whole_model(dense: Path, tmp_path: Path) -> None:
    source = write_model(tmp_path / "model.gguf", SMALL, shards=3)
    quantize(source, tmp_path / "merged.gguf", "Q4_K_M")
    quantize(dense, tmp_path / "whole.gguf", "Q4_K_M")
    assert (tmp_path / "merged.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()


@settings(max_examples=10, deadline=None, derandomize=True)
@given(threads=st.integers(1, 9))
def test_the_number_of_threads_does_not_change_a_byte(
    threads: int, dense: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("threads")
    one = quantize(dense, folder / "one.gguf", "Q4_K_M", threads=1)
    many = quantize(dense, folder / "many.gguf", "Q4_K_M", threads=threads)
    assert one.files[0].sha256 == many.files[0].sha256


@pytest.mark.parametrize("name", SHAPES)
def test_sizes_and_hashes_of_the_result_are_those_of_the_file(
    name: str, models: dict[str, Path], tmp_path: Path
) -> None:
    with GgufSource(models[name]) as source:
        plan = plan_quantization(source, "Q5_K_M")
        result = run_plan(plan, tmp_path / "out.gguf")
        planned = output_sizes(plan)
    data = (tmp_path / "out.gguf").read_bytes()
    assert (result.files[0].size, result.files[0].sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert planned == [result.size] == [len(data)]
    with GgufFile.open(tmp_path / "out.gguf") as file:
        assert {t.name: t.type.name for t in file.tensors} == dict(result.tensor_types)
    assert [p.name for p in tmp_path.iterdir()] == ["out.gguf"]


def test_rows_longer_than_a_chunk_are_quantized_whole(tmp_path: Path) -> None:
    columns = CHUNK_WEIGHTS + 256
    values = np.random.default_rng(0).standard_normal((2, columns), np.float32)
    info = TensorInfo.make("blk.0.ffn_up.weight", (columns, 2), Q.F32)
    path = tmp_path / "wide.gguf"
    path.write_bytes(encode_header(metadata(SMALL), [info]) + values.tobytes())
    quantize(path, tmp_path / "out.gguf", "Q8_0")
    with GgufFile.open(tmp_path / "out.gguf") as file:
        assert bytes(file.tensor_bytes(file.tensors[0])) == Ggml.load().quantize(Q.Q8_0, values)


def test_overrides_set_replace_and_remove_keys(dense: Path, tmp_path: Path) -> None:
    overrides = {
        "tokenizer.chat_template": MetaValue.string("new"),
        "tokenizer.ggml.merges": None,
        "strata.pad": MetaValue.string(" " * 100),
        "not.there": None,
    }
    with GgufSource(dense) as source:
        before = [key for key in source.metadata if key not in ("general.file_type", "general.quantization_version")]
    quantize(dense, tmp_path / "out.gguf", "Q4_K_M", metadata_overrides=overrides)
    with GgufFile.open(tmp_path / "out.gguf") as file:
        assert file.text("tokenizer.chat_template") == "new"
        kept = [key for key in before if key not in overrides]
        last = ["general.quantization_version", "general.file_type", "tokenizer.chat_template", "strata.pad"]
        assert list(file.metadata) == [*kept, *last]


def test_a_header_override_does_not_touch_the_tensors(dense: Path, tmp_path: Path) -> None:
    quantize(dense, tmp_path / "a.gguf", "Q4_K_M")
    quantize(dense, tmp_path / "b.gguf", "Q4_K_M", metadata_overrides={"x": MetaValue.string("y" * 5000)})
    with GgufFile.open(tmp_path / "a.gguf") as a, GgufFile.open(tmp_path / "b.gguf") as b:
        assert a.tensors == b.tensors
        assert [bytes(a.tensor_bytes(t)) for t in a.tensors] == [bytes(b.tensor_bytes(t)) for t in b.tensors]


@pytest.mark.parametrize("preset", ["Q4_K_M", "Q4_0", "IQ4_XS", "F32"])
def test_allowed_nonfinite_values_are_counted_and_spoil_nothing_else(preset: str, tmp_path: Path) -> None:
    spoil = {"blk.1.ffn_up.weight": float("nan"), "blk.0.attn_q.weight": float("-inf")}
    source = write_model(tmp_path / "bad.gguf", SMALL, spoil=spoil)
    result = quantize(source, tmp_path / "out.gguf", preset, allow_nonfinite=True)
    assert dict(result.nonfinite) == dict.fromkeys(("blk.0.attn_q.weight", "blk.1.ffn_up.weight"), 1)
    quantize(write_model(tmp_path / "good.gguf", SMALL), tmp_path / "good-out.gguf", preset)
    with GgufFile.open(tmp_path / "out.gguf") as bad, GgufFile.open(tmp_path / "good-out.gguf") as good:
        differing = [
            t.name for t in bad.tensors if bytes(bad.tensor_bytes(t)) != bytes(good.tensor_bytes(good.tensor(t.name)))
        ]
        assert differing == ["blk.0.attn_q.weight", "blk.1.ffn_up.weight"]
        if preset != "F32":
            assert all(Ggml.load().is_finite(t.type, np.frombuffer(bad.tensor_bytes(t), np.uint8)) for t in bad.tensors)


def test_quantizing_twice_says_what_is_lost(dense: Path, tmp_path: Path) -> None:
    quantize(dense, tmp_path / "q8.gguf", "Q8_0")
    with GgufSource(tmp_path / "q8.gguf") as source:
        note = requantize_note(plan_quantization(source, "Q4_K_S", allow_requantize=True))
    assert note is not None
    assert "Q8_0 (8.50 bits) to Q4_K (4.50)" in note


def test_a_quantized_source_is_copied_by_the_same_preset(dense: Path, tmp_path: Path) -> None:
    quantize(dense, tmp_path / "a.gguf", "Q8_0")
    quantize(tmp_path / "a.gguf", tmp_path / "b.gguf", "Q8_0")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


@pytest.mark.parametrize("preset", ["F16", "Q8_0"])
def test_quantizing_does_not_wait_for_the_hash_of_the_library(
    preset: str, dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unused(_ggml: Ggml) -> str:
        raise AssertionError("hashed")

    monkeypatch.setattr(Ggml, "library_sha256", property(unused))
    quantize(dense, tmp_path / "a.gguf", preset)
    assert (tmp_path / "a.gguf").is_file()


def test_a_planned_file_has_its_headers_before_anything_is_read(dense: Path) -> None:
    with GgufSource(dense) as source:
        plan = plan_quantization(source, "Q4_K_M")
        header = output_headers(plan, {})[0]
        assert output_paths(plan, Path("x.gguf")) == [Path("x.gguf")]
    parsed = GgufFile(Path("x"), memoryview(header + bytes(plan.padded_bytes)))
    assert [t.name for t in parsed.tensors] == [t.name for t in plan.tensors]
    assert parsed.metadata["general.file_type"] == MetaValue(V.UINT32, 15)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    hidden=st.integers(1, 9),
    ffn=st.integers(1, 9),
    tied=st.booleans(),
    preset=st.sampled_from([name for name in UNWEIGHTED if name != "COPY"]),
    experts=st.sampled_from([0, 3]),
)
def test_any_shape_can_be_quantized_and_read_again(
    hidden: int, ffn: int, tied: bool, preset: str, experts: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    arch = "qwen3moe" if experts else "llama"
    shape = Shape(arch, 1, hidden * 16, ffn * 40, 2, 1, experts, 7, tied)
    result = quantize(write_model(folder / "m.gguf", shape), folder / "q.gguf", preset)
    with GgufFile.open(folder / "q.gguf") as file:
        assert file.file_size == result.size
        for info in file.tensors:
            floats = np.empty(info.elements, np.float32)
            Ggml.load().to_f32(info.type, np.frombuffer(file.tensor_bytes(info), np.uint8), floats)
            assert np.isfinite(floats).all()


def test_the_youngest_preset_writes_ggmls_bytes_in_the_types_of_the_reference(dense: Path, tmp_path: Path) -> None:
    # The reference gives the embedding Q4_K and the output Q6_K, as with the ternary presets (src/llama-quant.cpp).
    result = quantize(dense, tmp_path / "out.gguf", YOUNGER)
    assert {result.tensor_types[name] for name in ("token_embd.weight", "output.weight")} == {"Q4_K", "Q6_K"}
    with GgufSource(dense) as source, GgufFile.open(tmp_path / "out.gguf") as file:
        assert file.metadata["general.file_type"].value == 41
        tensor = next(tensor for tensor in source.tensors if tensor.name == "blk.0.ffn_up.weight")
        raw = np.empty(tensor.nbytes, np.uint8)
        source.rows(tensor)(0, tensor.rows, raw)
        weights = np.empty((tensor.rows, tensor.row_length), np.float32)
        Ggml.load().to_f32(tensor.type, raw, weights)
        stored = next(one for one in file.tensors if one.name == tensor.name)
        assert bytes(file.tensor_bytes(stored)) == Ggml.load().quantize(Q2_0, weights)
