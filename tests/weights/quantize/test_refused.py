"""Sources, imatrices and outputs that quantizing refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Q

from strata_pack.errors import BadInput, EnvironmentFailure, WrongUse
from strata_pack.progress import Silent
from strata_pack.weights.gguf.file import MetaValue, encode_header
from strata_pack.weights.quantize.run import (
    plan_quantization,
    run_plan,
)
from strata_pack.weights.tensor_source import GgufSource
from tests.weights.quantize.models import write_imatrix, write_model
from tests.weights.quantize.whole_files import LOW, SMALL, quantize

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


def test_a_value_that_would_end_ggmls_search_on_a_grid_is_refused(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf", replace(SMALL, type=Q.F32), spoil={"blk.1.ffn_up.weight": 1e30})
    with pytest.raises(BadInput, match=r"blk\.1\.ffn_up\.weight has weights or importances above 1e\+12"):
        quantize(source, tmp_path / "out.gguf", "IQ3_S")


def test_a_quantized_source_is_refused_with_the_remedy(dense: Path, tmp_path: Path) -> None:
    quantize(dense, tmp_path / "q8.gguf", "Q8_0")
    with pytest.raises(BadInput, match=r"already quantized.*Q8_0.*--allow-requantize"):
        quantize(tmp_path / "q8.gguf", tmp_path / "q4.gguf", "Q4_K_M")


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


def test_shards_need_a_name_that_ends_in_gguf(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model.gguf", SMALL, shards=2)
    with GgufSource(source) as opened, pytest.raises(WrongUse, match=r"ends in \.gguf"):
        run_plan(plan_quantization(opened, "Q8_0", keep_split=True), tmp_path / "out.bin")
