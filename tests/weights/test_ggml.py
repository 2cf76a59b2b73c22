"""The native quantizers: sizes, errors of the quantization, guards against misuse, and the probe hash."""

from __future__ import annotations

import ctypes
import hashlib
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.errors import EnvironmentFailure
from strata_pack.llama.ggml import BLOCK_TYPES, QUANTIZABLE, TABLE_TYPES, Ggml, probe_pattern, row_nbytes
from strata_pack.llama.ggml_types import GGML_QUANT_SIZES, Q2_0

FAST = sorted(QUANTIZABLE - TABLE_TYPES)
LARGEST_ERROR = {
    **dict.fromkeys((Q.F32, Q.F16, Q.BF16), 0.005),
    **dict.fromkeys((Q.Q8_0, Q.Q6_K), 0.05),
    **dict.fromkeys((Q.Q5_0, Q.Q5_1, Q.Q5_K), 0.1),
    **dict.fromkeys((Q.Q4_0, Q.Q4_1, Q.Q4_K, Q.IQ4_NL, Q.IQ4_XS, Q.MXFP4), 0.2),
    **dict.fromkeys((Q.Q3_K, Q.Q2_K), 0.45),
    **dict.fromkeys((Q.TQ1_0, Q.TQ2_0, Q.Q1_0, Q2_0), 1.0),
}
"""Mean error over mean size, for random weights: loose bounds that a wrong call would break."""


KNOWN_TO_GGUF = [type for type in FAST if type not in (Q.F32, Q.BF16, Q.F16, Q.Q1_0, Q2_0)]


@pytest.fixture(scope="module")
def ggml() -> Ggml:
    return Ggml.load()


@pytest.mark.parametrize("type", FAST, ids=lambda type: type.name)
def test_quantized_weights_come_back_close(type: Q, ggml: Ggml) -> None:
    source = np.random.default_rng(3).standard_normal((5, 512), np.float32)
    data = ggml.quantize(type, source)
    assert len(data) == 5 * row_nbytes(type, 512)
    back = np.empty_like(source)
    ggml.to_f32(type, np.frombuffer(data, np.uint8), back)
    assert np.abs(back - source).mean() < LARGEST_ERROR[type] * np.abs(source).mean()


@pytest.mark.parametrize("type", KNOWN_TO_GGUF, ids=lambda type: type.name)
def test_gguf_py_dequantizes_to_the_same_floats(type: Q, ggml: Ggml) -> None:
    source = np.random.default_rng(4).standard_normal((3, 256), np.float32)
    data = np.frombuffer(ggml.quantize(type, source), np.uint8)
    back = np.empty_like(source)
    ggml.to_f32(type, data, back)
    np.testing.assert_allclose(back, dequantize(data.reshape(3, -1), type), rtol=1e-6, atol=1e-7)


def test_importances_change_the_blocks(ggml: Ggml) -> None:
    source, importance = probe_pattern()
    assert ggml.quantize(Q.Q4_K, source, importance) != ggml.quantize(Q.Q4_K, source)


def test_rows_may_be_quantized_one_by_one(ggml: Ggml) -> None:
    source, importance = probe_pattern()
    for type in (Q.Q4_K, Q.Q6_K, Q.IQ4_XS, Q.Q8_0):
        rows = b"".join(ggml.quantize(type, source[i : i + 1], importance) for i in range(len(source)))
        assert rows == ggml.quantize(type, source, importance)


def test_types_that_abort_without_importances_are_guarded(ggml: Ggml) -> None:
    source, _ = probe_pattern()
    assert {type for type in QUANTIZABLE if ggml.requires_imatrix(type)} == {Q.IQ2_XXS, Q.IQ2_XS, Q.IQ1_S}
    with pytest.raises(ValueError, match="needs importances"):
        ggml.quantize(Q.IQ2_XXS, source)


def test_c_is_never_called_with_buffers_that_do_not_fit(ggml: Ggml) -> None:
    source, importance = probe_pattern()
    out = np.empty(1 << 16, np.uint8)
    with pytest.raises(ValueError, match="cannot be quantized"):
        ggml.quantize_chunk(Q.Q4_K, source[:, :100].copy(), out)
    with pytest.raises(ValueError, match="too small"):
        ggml.quantize_chunk(Q.F32, source, out[:100])
    with pytest.raises(ValueError, match="contiguous"):
        ggml.quantize_chunk(Q.Q4_K, source[:, :256], out)
    with pytest.raises(ValueError, match="one float32 a column"):
        ggml.quantize_chunk(Q.Q4_K, source, out, importance[:256])
    with pytest.raises(ValueError, match="cannot be quantized"):
        ggml.quantize_chunk(Q.Q8_K, source, out)
    with pytest.raises(ValueError, match="do not fit"):
        ggml.to_f32(Q.F16, out[:10], np.empty(100, np.float32))
    with pytest.raises(ValueError, match="cannot be turned into floats"):
        ggml.to_f32(Q.I32, out[:400], np.empty(100, np.float32))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("type", [Q.F32, Q.F16, Q.BF16], ids=lambda type: type.name)
def test_a_value_that_is_not_finite_is_noticed(type: Q, value: float, ggml: Ggml) -> None:
    source = np.zeros((1, 301), np.float32)
    assert ggml.is_finite(type, np.frombuffer(ggml.quantize(type, source), np.uint8))
    for column in (0, 150, 300):
        spoiled = source.copy()
        spoiled[0, column] = value
        assert not ggml.is_finite(type, np.frombuffer(ggml.quantize(type, spoiled), np.uint8))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.sampled_from([t for t in BLOCK_TYPES if t not in TABLE_TYPES]), st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_quantizing_what_was_quantized_keeps_scales_sound(type: Q, seed: int, rows: int) -> None:
    ggml = Ggml.load()
    source = np.random.default_rng(seed).standard_normal((rows, 256), np.float32) * np.float32(10.0 ** (seed % 9 - 4))
    data = np.frombuffer(ggml.quantize(type, source), np.uint8)
    assert ggml.is_finite(type, data)


def test_the_probe_pattern_is_fixed() -> None:
    source, importance = probe_pattern()
    digest = hashlib.sha256(source.tobytes() + importance.tobytes()).hexdigest()
    assert digest == "83ac8bd89b0ae36d848c971d1ac9710ae37b03ee3dafb4027626ce6d3a007f7f"
    assert (source.shape, importance.shape) == ((6, 512), (512,))


def test_the_probe_hash_depends_on_what_is_quantized(ggml: Ggml) -> None:
    plain = ggml.probe_hash()
    assert plain == ggml.probe_hash() == ggml.probe_hash([Q.Q4_K, Q.F32])
    assert ggml.probe_hash([Q.IQ3_S]) != plain
    assert len(plain) == 64


def test_the_probe_hash_notices_one_other_bit(ggml: Ggml, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, quantize = ggml.probe_hash(), Ggml.quantize

    def flipped(self: Ggml, type: Q, *rest: object) -> bytes:
        data = bytearray(quantize(self, type, *rest))  # type: ignore[arg-type]
        data[-1] ^= type is Q.Q3_K
        return bytes(data)

    monkeypatch.setattr(Ggml, "quantize", flipped)
    assert ggml.probe_hash() != plain


def test_the_library_is_identified_by_version_and_hash(ggml: Ggml) -> None:
    assert ggml.library_sha256 == hashlib.sha256(ggml.path.read_bytes()).hexdigest()
    assert ggml.version.count(".") == 2


def test_a_library_without_quantizers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="reinstall the package xllamacpp"):
        Ggml(Path(ctypes.pythonapi._name or "libc.so.6"))
    with pytest.raises(EnvironmentFailure, match="cannot be used to quantize"):
        Ggml(tmp_path / "none.so")


def test_a_type_that_the_package_gguf_lacks_is_one_of_its_types_all_the_same() -> None:
    assert Q(42) is Q["Q2_0"] is Q2_0 is getattr(Q, "Q2_0")  # noqa: B009
    assert [type.name for type in Q].count("Q2_0") == 1
    assert GGML_QUANT_SIZES[Q2_0] == (64, 18)
