"""Importance matrices as files: both forms, merging, and what the quantizer reads from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from strata_pack.errors import BadInput
from strata_pack.llama.activations import Sums
from strata_pack.weights.imatrix.file import Collected, merge, read_collected, write_imatrix
from strata_pack.weights.imatrix.show import coverage_of
from strata_pack.weights.quantize.imatrix import read_imatrix
from tests.weights.quantize.test_imatrix import write_gguf


def collected(seed: int = 0, idle: int = 0) -> Collected:
    """Return sums of one dense weight and of one with four experts, the first ``idle`` of them never chosen."""
    random = np.random.default_rng(seed)
    counts = np.array([0] * idle + [1024] * (4 - idle))
    squares = random.random((4, 32)) * counts[:, None]
    return Collected(
        {
            "blk.0.attn_q.weight": Sums(random.random((1, 32)) * 1024, random.random((1, 32)), np.array([1024])),
            "blk.0.ffn_up_exps.weight": Sums(squares, random.random((4, 32)), counts),
        },
        chunks=2,
        chunk_size=512,
        datasets=("text.txt",),
    )


@pytest.mark.parametrize("suffix", [".gguf", ".dat"])
def test_what_is_written_is_what_the_quantizer_reads(tmp_path: Path, suffix: str) -> None:
    one = collected()
    write_imatrix(tmp_path / f"i{suffix}", one)
    read = read_imatrix(tmp_path / f"i{suffix}")
    assert (read.chunks, read.datasets) == (2, ("text.txt",))
    for name, sums in one.sums.items():
        np.testing.assert_allclose(
            read.entries[name].load(), (sums.squares / sums.counts[:, None]).reshape(-1), rtol=1e-6
        )


@pytest.mark.parametrize("suffix", [".gguf", ".dat"])
def test_an_expert_never_chosen_counts_as_one(tmp_path: Path, suffix: str) -> None:
    write_imatrix(tmp_path / f"i{suffix}", collected(idle=1))
    values = read_imatrix(tmp_path / f"i{suffix}").entries["blk.0.ffn_up_exps.weight"].load().reshape(4, 32)
    np.testing.assert_allclose(values[0], 1.0)


def test_the_gguf_form_comes_back_with_all_its_sums(tmp_path: Path) -> None:
    one = collected()
    write_imatrix(tmp_path / "i.gguf", one)
    back = read_collected(tmp_path / "i.gguf")
    assert (back.chunks, back.chunk_size, back.datasets) == (one.chunks, one.chunk_size, one.datasets)
    for name, sums in one.sums.items():
        np.testing.assert_allclose(back.sums[name].squares, sums.squares, rtol=1e-6)
        np.testing.assert_allclose(back.sums[name].plain, sums.plain, rtol=1e-6)
        assert back.sums[name].counts.tolist() == sums.counts.tolist()


def test_merging_adds_sums_and_counts() -> None:
    one, two = collected(0), collected(1, idle=2)
    both = merge([one, two])
    assert both.chunks == 4
    assert both.datasets == ("text.txt",)
    name = "blk.0.ffn_up_exps.weight"
    np.testing.assert_allclose(both.sums[name].squares, one.sums[name].squares + two.sums[name].squares)
    assert both.sums[name].counts.tolist() == [1024, 1024, 2048, 2048]


def test_merging_leaves_its_parts_as_they_were() -> None:
    one = collected()
    before = one.sums["blk.0.attn_q.weight"].squares.copy()
    merge([one, collected(1)])
    np.testing.assert_array_equal(one.sums["blk.0.attn_q.weight"].squares, before)


def test_files_of_two_models_are_not_merged() -> None:
    other = Collected({"blk.0.attn_q.weight": Sums(np.ones((1, 64)), np.ones((1, 64)), np.array([1]))}, 1, 512)
    with pytest.raises(BadInput, match="32 importances in one file and 64 in another"):
        merge([collected(), other])


def test_nothing_is_written_without_importances(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no importances"):
        write_imatrix(tmp_path / "i.gguf", Collected({}, 0, 512))
    assert not list(tmp_path.iterdir())


def test_experts_never_chosen_are_listed() -> None:
    found = coverage_of(collected(idle=2), "i.gguf")
    (weight,) = (weight for weight in found.weights if weight.matrices == 4)
    assert (weight.unseen, found.unseen, found.experts) == ((0, 1), 2, 4)


def test_a_column_that_dominates_is_an_outlier() -> None:
    one = collected()
    one.sums["blk.0.attn_q.weight"].squares[0, 7] = 1e6
    (worst,) = coverage_of(one, "i.gguf").outliers(1)
    assert worst.name == "blk.0.attn_q.weight"
    assert worst.top_share > 0.95


@pytest.mark.parametrize("count", [float("nan"), float("inf"), float("-inf")])
def test_a_count_that_is_no_number_counts_no_rows(tmp_path: Path, count: float) -> None:
    path = write_gguf(tmp_path / "i.gguf", {"w.in_sum2": ((2, 1), [1.0, 2.0]), "w.counts": ((1, 1), [count])})
    assert read_collected(path).sums["w"].counts.tolist() == [0]


@pytest.mark.parametrize(("values", "what"), [([-1.0, 2.0], "negative"), ([float("nan"), 2.0], "NaN")])
def test_an_importance_that_no_text_gives_is_refused(tmp_path: Path, values: list[float], what: str) -> None:
    path = write_gguf(tmp_path / "i.gguf", {"w.in_sum2": ((2, 1), values), "w.counts": ((1, 1), [1.0])})
    with pytest.raises(BadInput, match=what):
        read_collected(path)


def test_sums_that_overflow_are_not_written(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "i.gguf", {"w.in_sum2": ((2, 1), [3e38, 3e38]), "w.counts": ((1, 1), [1.0])})
    with pytest.raises(BadInput, match="too large"):
        write_imatrix(tmp_path / "out.gguf", merge([read_collected(path)] * 2))
    assert not (tmp_path / "out.gguf").exists()
