"""Every kernel writes what ggml writes, byte for byte, whatever the weights."""

from __future__ import annotations

import platform

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.llama.ggml import TABLE_TYPES, Ggml, row_nbytes
from strata_pack.llama.ggml_types import GGML_QUANT_SIZES
from strata_pack.llama.kernels import Kernels, find_kernels
from tests.kernels.conftest import CASE_NAMES, CASES, GGML_CASES
from tests.kernels.distributions import DISTRIBUTIONS, Floats, distributions_of, importances, weights

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="ggml writes other bytes here than on x86-64: see test_everywhere.py"
)

SLOW_WEIGHTS = 10_000_000


def written(kernels: Kernels, type: Q, source: Floats, importance: Floats | None) -> bytes:
    out = np.full(source.shape[0] * row_nbytes(type, source.shape[1]), 0xA5, np.uint8)
    kernels.quantize_chunk(type, source, out, importance)
    return out.tobytes()


def first_difference(type: Q, ours: bytes, theirs: bytes) -> str | None:
    """Name the first block of 256 weights that differs, and how many do."""
    size = row_nbytes(type, 256)
    blocks = [np.frombuffer(data, np.uint8).reshape(-1, size) for data in (ours, theirs)]
    differs = (blocks[0] != blocks[1]).any(axis=1)
    return f"block {np.argmax(differs)} first, {differs.sum()} of {differs.size}" if differs.any() else None


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("case", GGML_CASES)
def test_a_kernel_writes_ggmls_bytes(case: tuple[Q, bool], distribution: str, kernels: Kernels, ggml: Ggml) -> None:
    type, weighed = case
    if distribution not in distributions_of(type):
        pytest.skip("ggml ends the process")
    source = weights(distribution, 3, 768)
    importance = importances(768) if weighed else None
    theirs = ggml.quantize(type, source, importance)
    assert first_difference(type, written(kernels, type, source, importance), theirs) is None


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("case", CASES, ids=CASE_NAMES)
def test_a_kernel_writes_ggmls_bytes_for_ten_million_weights(
    case: tuple[Q, bool], kernels: Kernels, ggml: Ggml
) -> None:
    type, weighed = case
    columns = 2048
    rows = -(-SLOW_WEIGHTS // len(DISTRIBUTIONS) // columns)
    for name in distributions_of(type):
        source = weights(name, rows, columns, seed=2)
        importance = importances(columns, seed=2) if weighed else None
        theirs = ggml.quantize(type, source, importance)
        assert first_difference(type, written(kernels, type, source, importance), theirs) is None, name


@pytest.mark.parametrize("case", CASES, ids=CASE_NAMES)
def test_every_width_of_lanes_writes_the_same_bytes(case: tuple[Q, bool], variants: list[Kernels]) -> None:
    type, weighed = case
    source = np.concatenate([weights(name, 1, 1024, seed=3) for name in distributions_of(type)])
    importance = importances(1024, seed=3) if weighed else None
    assert len({written(kernels, type, source, importance) for kernels in variants}) == 1


@given(
    case=st.sampled_from([case for case in CASES if case[0] not in TABLE_TYPES or case[0] is Q.IQ3_S]),
    rows=st.integers(1, 5),
    blocks=st.integers(1, 9),
    name=st.sampled_from(sorted(DISTRIBUTIONS)),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_any_number_of_rows_and_blocks_gives_ggmls_bytes(
    case: tuple[Q, bool], rows: int, blocks: int, name: str, seed: int
) -> None:
    kernels = find_kernels()
    if not isinstance(kernels, Kernels):
        pytest.skip(f"no kernels: {kernels.reason}")
    type, weighed = case
    name = name if name in distributions_of(type) else "normal"
    columns = blocks * GGML_QUANT_SIZES[type][0]
    source = weights(name, rows, columns, seed)
    importance = importances(columns, seed) if weighed else None
    theirs = Ggml.load().quantize(type, source, importance)
    assert written(kernels, type, source, importance) == theirs


@pytest.mark.parametrize("case", CASES, ids=CASE_NAMES)
def test_nothing_is_written_outside_the_output(case: tuple[Q, bool], kernels: Kernels) -> None:
    type, weighed = case
    source = weights("normal", 3, 768)
    size = 3 * row_nbytes(type, 768)
    room = np.full(size + 256, 0xA5, np.uint8)
    kernels.quantize_chunk(type, source, room[128:-128], importances(768) if weighed else None)
    assert set(room[:128]) | set(room[-128:]) == {0xA5}


def test_buffers_that_do_not_fit_are_refused(kernels: Kernels) -> None:
    source = weights("normal", 2, 512)
    room = np.empty(2 * row_nbytes(Q.Q4_K, 512), np.uint8)
    for bad in (
        (Q.Q4_K, source, room[:-1]),
        (Q.Q4_K, source[:, :300].copy(), room),
        (Q.Q4_K, source[:, ::2], room),
        (Q.Q4_K, source.astype(np.float64), room),
        (Q.Q4_0, source, room),
        (Q.Q4_K, source, room, importances(256)),
    ):
        with pytest.raises(ValueError):
            kernels.quantize_chunk(*bad)  # type: ignore[arg-type]
