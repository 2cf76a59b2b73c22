"""Casts rows from a stored float type to an output type with the rounding of llama.cpp's converter.

BF16 is handled as 16-bit integers or as float32. NaNs become quiet, as in ggml.
"""

from __future__ import annotations

from typing import Any, Literal

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

Transform = Literal["none", "plus_one", "minus_exp"]
"""A transformation of values by a model class: ``plus_one`` for norms stored around 0, ``minus_exp`` for logarithms."""

Array = npt.NDArray[Any]

F32, F16, BF16 = GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16
_FLOATS = (F32, F16, BF16)
_SAME = {("F32", F32), ("F16", F16)}


def is_copy(dtype: str, target: GGMLQuantizationType) -> bool:
    """Return whether the stored bytes are also the output's bytes."""
    return (dtype, target) in _SAME


def cast_into(stored: Array, dtype: str, target: GGMLQuantizationType, transform: Transform, out: Array) -> None:
    """Convert ``stored`` (a numpy array typed as in ``safetensors.FLOATS``) into ``out``, the output's bytes (uint8,
    contiguous).

    The gguf package quantizes to block types; its bytes are those of llama.cpp's converter.
    """
    if dtype == "BF16" and target is BF16 and transform == "none":
        bits = out.view("<u2")
        bits[:] = stored.reshape(-1)
        _quiet(bits, 0x7F80, 0x0040)
        return
    if dtype == "BF16" and target is F32 and transform == "none":
        _widen(stored, out.view("<u4"))
        return
    values = _transformed(_as_float(stored, dtype), transform)
    if target not in _FLOATS:
        out[:] = gguf.quants.quantize(values.astype(np.float32, copy=False), target).reshape(-1)
    elif target is BF16:
        _narrow(values, out.view("<u2"))
    else:
        with np.errstate(over="ignore"):
            out.view("<f4" if target is F32 else "<f2")[:] = values.reshape(-1)


def _as_float(stored: Array, dtype: str) -> Array:
    """Return float32 for BF16 and F32; F16 stays F16, because its arithmetic rounds to F16."""
    if dtype != "BF16":
        return stored
    wide = np.empty(stored.size, dtype="<u4")
    _widen(stored, wide)
    return wide.view("<f4").reshape(stored.shape)


def _transformed(values: Array, transform: Transform) -> Array:
    if transform == "plus_one":
        shifted: Array = values + values.dtype.type(1)
        return shifted
    if transform == "minus_exp":
        # Correctly rounded. The converter's result differs in the last bit of a few values and depends on the machine:
        # PyTorch takes e^x from MKL, SLEEF or the compiler's library, depending on its build.
        return -np.exp(values.astype(np.float64)).astype(np.float32).astype(values.dtype)
    return values


def _widen(stored: Array, out: Array) -> None:
    np.left_shift(stored.reshape(-1), 16, out=out, dtype=np.uint32)


def _narrow(values: Array, out: Array) -> None:
    bits = np.ascontiguousarray(values, dtype="<f4").reshape(-1).view("<u4").copy()
    _quiet(bits, 0x7F800000, 0x00400000, 0xFFFF0000)
    bits += 0x7FFF + ((bits >> 16) & 1)
    np.right_shift(bits, 16, out=bits)
    out[:] = bits


def _quiet(bits: Array, infinity: int, quiet: int, keep: int | None = None) -> None:
    """Set the quiet bit of NaNs, and clear the bits that rounding must not carry."""
    magnitude = bits & bits.dtype.type(infinity | (infinity & -infinity) - 1)
    nan = magnitude > infinity
    if nan.any():
        bits[nan] = (bits[nan] & bits.dtype.type(keep if keep is not None else ~0 & 0xFFFF)) | bits.dtype.type(quiet)
