"""Quantizing whole files: the reference's bytes, the plan, the header, shards, hostile and damaged sources."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q
from gguf import GGUFValueType as V
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.errors import BadInput, EnvironmentFailure, WrongUse
from strata_pack.llama.ggml import Ggml
from strata_pack.llama.ggml_types import Q2_0
from strata_pack.progress import Silent
from strata_pack.weights.gguf.file import GgufFile, MetaValue, TensorInfo, encode_header, open_shards
from strata_pack.weights.quantize.imatrix import read_imatrix
from strata_pack.weights.quantize.plan import requantize_note
from strata_pack.weights.quantize.presets import PRESETS
from strata_pack.weights.quantize.recipes import Recipe, make_recipe
from strata_pack.weights.quantize.rows import CHUNK_WEIGHTS
from strata_pack.weights.quantize.run import (
    QuantResult,
    output_headers,
    output_paths,
    output_sizes,
    plan_quantization,
    run_plan,
)
from strata_pack.weights.tensor_source import GgufSource
from tests.weights.quantize.models import DENSE, EIGHT, MOE, ODD, Shape, metadata, write_imatrix, write_model
from tests.weights.quantize.oracle import needs_oracle, reference

SMALL = replace(DENSE, layers=2, ffn=256, vocab=64)
SHAPES = {
    "dense": SMALL,
    "moe": replace(MOE, layers=1, vocab=32),
    "eight": replace(EIGHT, layers=1, vocab=32),
    "odd": replace(ODD, layers=1, vocab=96),
}
LOW = ("Q2_K_S", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "IQ3_XS")
YOUNGER = "Q2_0"
"""A preset that the oracle's llama.cpp does not know yet."""
UNWEIGHTED = [name for name in PRESETS if name not in LOW and name != YOUNGER]


def quantize(source: Path, out: Path, recipe: Recipe | str, imatrix: Path | None = None, **options: Any) -> QuantResult:
    importances = None if imatrix is None else read_imatrix(imatrix)
    runs = {key: options.pop(key) for key in ("threads", "metadata_overrides", "allow_nonfinite") if key in options}
    with GgufSource(source) as opened:
        return run_plan(plan_quantization(opened, recipe, importances, **options), out, **runs)


def oracle_parameters(preset: str) -> dict[str, Any]:
    return {"only_copy": True} if PRESETS[preset].copy else {"ftype": PRESETS[preset].file_type}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write_model(folder / f"{name}.gguf", shape) for name, shape in SHAPES.items()}


@pytest.fixture(scope="module")
def dense(models: dict[str, Path]) -> Path:
    return models["dense"]


@needs_oracle()
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SHAPES)
def test_whole_files_are_the_references_for_all_presets(name: str, models: dict[str, Path], tmp_path: Path) -> None:
    # Odd rows are no whole blocks of Q1_0: the reference stops there, ours keeps such a tensor as F16.
    presets = [preset for preset in PRESETS if preset not in ("Q1_0", YOUNGER)] if name == "odd" else UNWEIGHTED
    jobs = [(models[name], tmp_path / f"{preset}.ref.gguf", oracle_parameters(preset)) for preset in presets]
    reference(jobs)
    different = []
    for preset in presets:
        quantize(models[name], tmp_path / "ours.gguf", preset)
        if (tmp_path / "ours.gguf").read_bytes() != (tmp_path / f"{preset}.ref.gguf").read_bytes():
            different.append(preset)
    assert different == []


def compare_weighted(name: str, presets: list[str], source: Path, folder: Path) -> list[str]:
    imatrix = write_imatrix(folder / "imatrix.gguf", SHAPES[name], idle_expert=True)
    loaded = read_imatrix(imatrix)
    np.savez(folder / "imatrix.npz", **{key: entry.load() for key, entry in loaded.entries.items()})
    parameters = {"imatrix": str(folder / "imatrix.npz")}
    reference([(source, folder / f"{preset}.gguf", oracle_parameters(preset) | parameters) for preset in presets])
    different = []
    for preset in presets:
        quantize(source, folder / "ours.gguf", preset, imatrix)
        if (folder / "ours.gguf").read_bytes() != (folder / f"{preset}.gguf").read_bytes():
            different.append(preset)
    return different


@needs_oracle()
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["dense", "moe"])
def test_files_with_an_imatrix_are_the_references(name: str, models: dict[str, Path], tmp_path: Path) -> None:
    presets = ["Q4_0", "Q5_1", "Q2_K_S", "Q3_K_M", "Q4_K_M", "Q5_K_S", "Q6_K", "IQ4_XS", "IQ3_XS"]
    assert compare_weighted(name, presets, models[name], tmp_path) == []


@pytest.mark.slow
@needs_oracle()
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["dense", "moe", "eight"])
def test_files_of_all_presets_with_an_imatrix_are_the_references(
    name: str, models: dict[str, Path], tmp_path: Path
) -> None:
    presets = [name for name, preset in PRESETS.items() if preset.is_block and name not in ("IQ1_M", YOUNGER)]
    assert compare_weighted(name, presets, models[name], tmp_path) == []


@pytest.mark.slow
@needs_oracle()
@pytest.mark.timeout(600)
def test_iq1_m_differs_from_the_reference_only_in_the_rounding_of_some_blocks(dense: Path, tmp_path: Path) -> None:
    """The two wheels' compilers add up the errors of this type's search in another order."""
    compare_weighted("dense", ["IQ1_M"], dense, tmp_path)
    with GgufFile.open(tmp_path / "ours.gguf") as ours, GgufFile.open(tmp_path / "IQ1_M.gguf") as theirs:
        assert ours.tensors == theirs.tensors
        assert dict(ours.metadata) == dict(theirs.metadata)
        for info in ours.tensors:
            pair = [np.frombuffer(file.tensor_bytes(info), np.uint8) for file in (ours, theirs)]
            if info.type is not Q.IQ1_M:
                assert (pair[0] == pair[1]).all()
            else:
                blocks = (pair[0] != pair[1]).reshape(-1, 56).any(axis=1)
                assert blocks.mean() < 0.1


@needs_oracle()
@pytest.mark.timeout(600)
def test_a_real_quantized_model_is_requantized_to_the_references_bytes(smollm2: Path, tmp_path: Path) -> None:
    reference([(smollm2, tmp_path / "ref.gguf", {"ftype": 15, "allow_requantize": True, "nthread": 2})])
    result = quantize(smollm2, tmp_path / "ours.gguf", "Q4_K_M", allow_requantize=True)
    assert result.files[0].sha256 == hashlib.sha256((tmp_path / "ref.gguf").read_bytes()).hexdigest()


@pytest.mark.slow
@needs_oracle()
@pytest.mark.timeout(1200)
def test_a_real_model_is_the_references_for_all_presets(smollm2: Path, tmp_path: Path) -> None:
    different = []
    for preset in UNWEIGHTED:
        parameters = oracle_parameters(preset) | {"allow_requantize": True, "nthread": 2}
        reference([(smollm2, tmp_path / "ref.gguf", parameters)])
        result = quantize(smollm2, tmp_path / "ours.gguf", preset, allow_requantize=True)
        if result.files[0].sha256 != hashlib.sha256((tmp_path / "ref.gguf").read_bytes()).hexdigest():
            different.append(preset)
    assert different == []


FLAGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pure": ({"pure": True}, {"pure": True}),
    "output type": ({"output": "Q5_K"}, {"output_tensor_type": int(Q.Q5_K)}),
    "embedding type": ({"embedding": "Q8_0"}, {"token_embedding_type": int(Q.Q8_0)}),
    "left output": ({"leave_output": True}, {"quantize_output_tensor": False}),
}


@needs_oracle()
@pytest.mark.parametrize("flag", FLAGS)
def test_flags_give_the_references_file(flag: str, dense: Path, tmp_path: Path) -> None:
    ours, theirs = FLAGS[flag]
    reference([(dense, tmp_path / "ref.gguf", {"ftype": 15} | theirs)])
    quantize(dense, tmp_path / "ours.gguf", make_recipe("Q4_K_M", **ours))
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "ref.gguf").read_bytes()


@needs_oracle()
def test_a_split_model_stays_split_as_the_reference_splits_it(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model.gguf", SMALL, shards=3)
    reference([(source, tmp_path / "ref", {"ftype": 15, "keep_split": True})])
    result = quantize(source, tmp_path / "ours.gguf", "Q4_K_M", keep_split=True)
    assert [file.path.name for file in result.files] == [f"ours-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    for index, file in enumerate(result.files, 1):
        assert file.path.read_bytes() == (tmp_path / f"ref-0000{index}-of-00003.gguf").read_bytes()
    assert len(open_shards(result.files[0].path)) == 3


def test_a_split_model_becomes_the_file_of_the_whole_model(dense: Path, tmp_path: Path) -> None:
    source = write_model(tmp_path / "model.gguf", SMALL, shards=3)
    quantize(source, tmp_path / "merged.gguf", "Q4_K_M")
    quantize(dense, tmp_path / "whole.gguf", "Q4_K_M")
    assert (tmp_path / "merged.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()


@needs_oracle()
def test_another_alignment_is_kept_as_the_reference_keeps_it(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf", SMALL, extra={"general.alignment": MetaValue.uint32(64)})
    reference([(source, tmp_path / "ref.gguf", {"ftype": 15})])
    quantize(source, tmp_path / "ours.gguf", "Q4_K_M")
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "ref.gguf").read_bytes()


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


BAD_VALUES = {
    "nan in a matrix": ("blk.1.ffn_up.weight", float("nan"), "blk.1.ffn_up.weight has a NaN in row 128, column 0"),
    "infinity in a matrix": ("blk.0.attn_q.weight", float("inf"), "blk.0.attn_q.weight has an infinity in row 128"),
    "nan in a norm that is copied": ("blk.0.attn_norm.weight", float("nan"), "attn_norm.weight has a NaN in row 0"),
    "minus infinity in the output": ("output.weight", float("-inf"), "output.weight has an infinity in row 32"),
}


@pytest.mark.parametrize("case", BAD_VALUES)
def test_a_value_that_is_not_finite_is_named_and_refused(case: str, tmp_path: Path) -> None:
    tensor, value, words = BAD_VALUES[case]
    source = write_model(tmp_path / "bad.gguf", SMALL, spoil={tensor: value})
    with pytest.raises(BadInput, match=words):
        quantize(source, tmp_path / "out.gguf", "Q4_K_M")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.gguf"]


def test_a_value_too_large_for_the_target_type_is_refused(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf", replace(SMALL, type=Q.F32), spoil={"blk.1.ffn_up.weight": 1e6})
    with pytest.raises(BadInput, match=r"blk\.1\.ffn_up\.weight has an infinity in row 128, column 0 \(as F16"):
        quantize(source, tmp_path / "out.gguf", "F16")


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


def test_a_quantized_source_is_refused_with_the_remedy(dense: Path, tmp_path: Path) -> None:
    quantize(dense, tmp_path / "q8.gguf", "Q8_0")
    with pytest.raises(BadInput, match=r"quantized already.*Q8_0.*--allow-requantize"):
        quantize(tmp_path / "q8.gguf", tmp_path / "q4.gguf", "Q4_K_M")


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


@pytest.mark.parametrize("preset", [*LOW])
def test_a_preset_that_needs_an_imatrix_is_refused_before_the_first_byte(
    preset: str, dense: Path, tmp_path: Path
) -> None:
    with pytest.raises(WrongUse, match=r"needs an imatrix and there is none; give one with --imatrix"):
        quantize(dense, tmp_path / "out.gguf", preset)
    assert list(tmp_path.iterdir()) == []


def test_an_imatrix_without_a_needed_weight_is_refused(dense: Path, tmp_path: Path) -> None:
    imatrix = write_imatrix(tmp_path / "i.gguf", replace(SMALL, layers=1))
    with pytest.raises(WrongUse, match=r"blk\.1\.attn_k\.weight as IQ2_XXS .* has no values for it"):
        quantize(dense, tmp_path / "out.gguf", "IQ2_XXS", imatrix)


def test_an_imatrix_of_another_model_is_refused(dense: Path, tmp_path: Path) -> None:
    imatrix = write_imatrix(tmp_path / "i.gguf", replace(SMALL, hidden=512))
    with pytest.raises(BadInput, match=r"has 512 importances for blk\.0\.attn_k\.weight, which needs 256"):
        quantize(dense, tmp_path / "out.gguf", "Q4_K_M", imatrix)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(encode_header({"a": MetaValue.uint32(1)}, []))
    with pytest.raises(BadInput, match=r"no general\.architecture"):
        quantize(path, tmp_path / "out.gguf", "Q4_K_M")


def test_a_source_cut_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SMALL)
    with GgufSource(path) as source:
        plan = plan_quantization(source, "Q8_0")
        with path.open("r+b") as file:
            file.truncate(source.files[0].data_offset + 100)
        with pytest.raises(BadInput, match="became shorter"):
            run_plan(plan, tmp_path / "out.gguf")


def test_two_runs_cannot_write_the_same_file(dense: Path, tmp_path: Path) -> None:
    with GgufSource(dense) as source:
        plan = plan_quantization(source, "Q8_0")

        class Nosy(Silent):
            """A progress that starts a second run in the middle of the first."""

            seen: str | None = None

            def task(self, label: str, total: int | None = None, unit: str = "bytes") -> Nosy:  # noqa: ARG002
                return self

            def advance(self, amount: int) -> None:  # noqa: ARG002
                if self.seen is None:
                    with pytest.raises(EnvironmentFailure) as caught:
                        run_plan(plan, tmp_path / "out.gguf")
                    self.seen = str(caught.value)

            def done(self) -> None:
                pass

        watcher = Nosy()
        run_plan(plan, tmp_path / "out.gguf", progress=watcher)
        assert watcher.seen is not None
        assert "being written by another run" in watcher.seen
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


def test_a_planned_file_has_its_headers_before_anything_is_read(dense: Path) -> None:
    with GgufSource(dense) as source:
        plan = plan_quantization(source, "Q4_K_M")
        header = output_headers(plan, {})[0]
        assert output_paths(plan, Path("x.gguf")) == [Path("x.gguf")]
    parsed = GgufFile(Path("x"), memoryview(header + bytes(plan.padded_bytes)))
    assert [t.name for t in parsed.tensors] == [t.name for t in plan.tensors]
    assert parsed.metadata["general.file_type"] == MetaValue(V.UINT32, 15)


def test_shards_need_a_name_that_ends_in_gguf(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model.gguf", SMALL, shards=2)
    with GgufSource(source) as opened, pytest.raises(WrongUse, match=r"ends in \.gguf"):
        run_plan(plan_quantization(opened, "Q8_0", keep_split=True), tmp_path / "out.bin")


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
