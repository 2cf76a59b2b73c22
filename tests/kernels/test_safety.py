"""A wrong kernel is found before it is used, or while it runs: planted here in every place."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q
from hypothesis import given
from hypothesis import strategies as st

from strata_pack.errors import EnvironmentFailure
from strata_pack.files import sha256_file
from strata_pack.llama import quantizer as module
from strata_pack.llama.ggml import Bytes, Floats, Ggml, row_nbytes
from strata_pack.llama.kernels import Kernels, Missing
from strata_pack.llama.probe import PROBE_HASHES, kernel_probe
from strata_pack.llama.quantizer import RECHECK_EVERY, Quantizer, rechecked_rows
from strata_pack.progress import Silent
from strata_pack.weights.quantize.run import QuantResult, plan_quantization, run_plan
from strata_pack.weights.tensor_source import GgufSource
from tests.kernels.conftest import CASE_NAMES, CASES, GGML_CASES
from tests.weights.quantize.models import DENSE, write_model

on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="ggml is the oracle on x86-64 only")


class Planted(Kernels):
    """The kernels, with an error in one type."""

    def __init__(self, path: Path, wrong: Q, when: Callable[[Floats], bool]) -> None:
        super().__init__(path)
        self._wrong, self._when = wrong, when

    def quantize_chunk(self, type: Q, source: Floats, out: Bytes, importance: Floats | None = None) -> None:
        super().quantize_chunk(type, source, out, importance)
        if type is self._wrong and self._when(source):
            out[row_nbytes(type, source.shape[1]) - 1] ^= 1


def is_probe(source: Floats) -> bool:
    return source.shape == kernel_probe(Q.Q4_K)[0].shape


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "source.gguf", replace(DENSE, layers=1, vocab=512))


def quantize(source: Path, out: Path, preset: str, *, choice: module.KernelChoice = "auto") -> QuantResult:
    with GgufSource(source) as opened:
        return run_plan(plan_quantization(opened, preset), out, kernels=choice)


@on_x86
@pytest.mark.parametrize("case", GGML_CASES)
def test_the_recorded_hash_of_the_probe_is_that_of_ggml_on_x86(case: tuple[Q, bool], ggml: Ggml) -> None:
    type, weighed = case
    source, importance = kernel_probe(type)
    written = ggml.quantize(type, source, importance if weighed else None)
    assert hashlib.sha256(written).hexdigest() == PROBE_HASHES[type.name, weighed]


@pytest.mark.parametrize("is_oracle", [pytest.param(True, marks=on_x86), False])
@pytest.mark.parametrize("case", CASES, ids=CASE_NAMES)
def test_a_kernel_that_fails_its_probe_is_not_used(
    case: tuple[Q, bool], is_oracle: bool, kernels: Kernels, ggml: Ggml
) -> None:
    type, weighed = case
    wrong = Quantizer(ggml, Planted(kernels.path, type, is_probe), is_oracle=is_oracle)
    right = Quantizer(ggml, kernels, is_oracle=is_oracle)
    assert wrong.engine(type, weighed=weighed) == "ggml"
    assert right.engine(type, weighed=weighed) == "kernel"


@on_x86
def test_a_type_that_fails_its_probe_is_written_by_ggml_and_named(
    model: Path, tmp_path: Path, kernels: Kernels, ggml: Ggml, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = Quantizer(ggml, Planted(kernels.path, Q.Q6_K, lambda _source: True))
    expected = quantize(model, tmp_path / "ggml.gguf", "Q4_K_M", choice="ggml").files[0].sha256
    monkeypatch.setattr(Quantizer, "load", lambda _choice="auto": planted)
    assert quantize(model, tmp_path / "planted.gguf", "Q4_K_M").files[0].sha256 == expected
    types = [(Q.Q4_K, False), (Q.Q6_K, False), (Q.TQ2_0, False)]
    assert planted.entry(types) == {"version": 1, "types": {"Q4_K": "kernel", "Q6_K": "ggml", "TQ2_0": "ggml"}}
    assert planted.state().differing == ("Q6_K", "Q6_K with importances")
    assert ["Q6_K" in note for note in planted.notes(types)] == [True]


@on_x86
def test_a_kernel_that_goes_wrong_while_it_runs_stops_the_run_with_tensor_and_row(
    model: Path, tmp_path: Path, kernels: Kernels, ggml: Ggml, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = Quantizer(ggml, Planted(kernels.path, Q.Q4_K, lambda source: not is_probe(source)))
    monkeypatch.setattr(Quantizer, "load", lambda _choice="auto": planted)
    with pytest.raises(EnvironmentFailure, match=r"^\S+\.weight: .* row 0 as Q4_K; .*--kernels ggml"):
        quantize(model, tmp_path / "out.gguf", "Q4_K_S")
    assert not (tmp_path / "out.gguf").exists()


@on_x86
def test_with_ggml_asked_for_no_kernel_is_called_and_the_bytes_are_the_same(
    model: Path, tmp_path: Path, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = quantize(model, tmp_path / "auto.gguf", "IQ4_XS").files[0].sha256
    monkeypatch.setattr(Kernels, "quantize_chunk", lambda *_: pytest.fail(f"{kernels.name} was called"))
    assert quantize(model, tmp_path / "ggml.gguf", "IQ4_XS", choice="ggml").files[0].sha256 == expected


@pytest.mark.usefixtures("unloaded")
def test_without_kernels_ggml_writes_the_same_file_and_the_run_says_so(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = quantize(model, tmp_path / "before.gguf", "Q4_K_M").files[0].sha256
    Quantizer.load.cache_clear()
    monkeypatch.setattr(module, "find_kernels", lambda: Missing("they were not built"))
    notes: list[str] = []
    watcher = Silent()
    monkeypatch.setattr(Silent, "note", lambda _self, text: notes.append(text))
    with GgufSource(model) as opened:
        run_plan(plan_quantization(opened, "Q4_K_M"), tmp_path / "after.gguf", progress=watcher)
    assert sha256_file(tmp_path / "after.gguf") == expected
    assert any("they were not built" in note for note in notes)
    assert Quantizer.load().entry([(Q.Q4_K, False)]) == {"version": None, "types": {"Q4_K": "ggml"}}


@on_x86
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_go_to_ggml(
    value: float, tmp_path: Path, kernels: Kernels, ggml: Ggml, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = replace(DENSE, layers=1, vocab=512)
    path = write_model(tmp_path / "source.gguf", shape, spoil={"blk.0.ffn_up.weight": value})
    seen: list[bool] = []

    class Watched(Kernels):
        def quantize_chunk(self, type: Q, source: Floats, out: Bytes, importance: Floats | None = None) -> None:
            seen.append(bool(np.isfinite(source).all()))
            super().quantize_chunk(type, source, out, importance)

    watched = Quantizer(ggml, Watched(kernels.path))
    monkeypatch.setattr(Quantizer, "load", lambda _choice="auto": watched)
    with GgufSource(path) as opened:
        result = run_plan(plan_quantization(opened, "Q4_K_S"), tmp_path / "out.gguf", allow_nonfinite=True)
    assert dict(result.nonfinite) == {"blk.0.ffn_up.weight": 1}
    assert seen
    assert all(seen)


@given(every=st.sampled_from([64, 256]), first=st.integers(0, 5000), counts=st.lists(st.integers(1, 300), max_size=8))
def test_one_row_in_every_group_is_done_again_however_the_rows_are_cut(
    every: int, first: int, counts: list[int]
) -> None:
    cut: list[int] = []
    at = first
    for count in counts:
        cut += rechecked_rows(every, at, count)
        at += count
    if counts:
        assert cut == list(rechecked_rows(every, first, at - first))
    whole = [row for row in cut if first <= row // every * every and (row // every + 1) * every <= at]
    assert len({row // every for row in cut}) == len(cut)
    assert len(whole) == max(0, at // every - -(-first // every))


def test_the_first_row_of_a_tensor_is_always_done_again() -> None:
    assert {next(iter(rechecked_rows(every, 0, 1))) for every in (64, *RECHECK_EVERY.values())} == {0}


@on_x86
def test_a_wrong_row_in_the_middle_is_named(kernels: Kernels, ggml: Ggml) -> None:
    planted = Quantizer(ggml, Planted(kernels.path, Q.Q4_K, lambda source: not is_probe(source)))
    row = next(row for row in rechecked_rows(64, 64, 64))
    source = np.zeros((64, 256), np.float32)
    out = np.empty(64 * row_nbytes(Q.Q4_K, 256), np.uint8)
    assert planted.quantize_chunk(Q.Q4_K, source[: 128 - row], out, first_row=row) == row
    assert planted.quantize_chunk(Q.Q4_K, source[: 64 - 1], out, first_row=row + 1) is None
