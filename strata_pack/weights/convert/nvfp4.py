"""Floats of four bits with a scale for each 16 and one for all, as NVFP4 checkpoints store them.

A weight is the value times the scale of its block (an 8-bit float whose sign does not count), times the scale of the
whole, each product in float32: what llama.cpp computes with the blocks that its converter copies.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from strata_pack.errors import BadInput
from strata_pack.weights.convert.safetensors import FLOATS, Checkpoint, Nvfp4, Scale, StoredTensor, as_float32

BLOCK = 16
VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)
"""What the 16 codes stand for (E2M1 of the OCP microscaling specification)."""


def whole_weight(
    name: str, codes: StoredTensor, scale: StoredTensor, second: StoredTensor | None, *, inverse: bool
) -> StoredTensor:
    """Return a weight of four bits as the tensor ``name``; ``inverse``: ``second`` divides."""
    rows, columns = (codes.shape[0], codes.shape[-1] * 2) if len(codes.shape) == 2 else (0, 0)
    if codes.dtype != "U8" or scale.dtype != "F8_E4M3" or scale.shape != (rows, columns // BLOCK) or columns % BLOCK:
        problem = f"is {codes.dtype} {list(codes.shape)} with {scale.dtype} {list(scale.shape)} as its scale"
        raise BadInput(f"{codes.name} {problem}, no weight of four bits", where=codes.file)
    if second is not None and (second.elements != 1 or second.dtype not in FLOATS):
        raise BadInput(f"{second.name} is {second.dtype} {list(second.shape)}, not one number", where=second.file)
    # The logical weight: its values are one byte or less, and nothing reads them but ``read_scaled``.
    nvfp4 = Nvfp4(codes, second, inverse)
    return StoredTensor(name, "I8", (rows, columns), codes.file, codes.start, Scale(scale, (1, BLOCK), nvfp4))


def read_nvfp4(checkpoint: Checkpoint, nvfp4: Nvfp4, first: int, count: int) -> npt.NDArray[np.float32]:
    """Return rows of a weight before its scales, float32 of shape (``count``, row length)."""
    width = nvfp4.codes.shape[1]
    codes = np.empty((count, width), dtype=np.uint8)
    checkpoint.read_into(nvfp4.codes, first * width, codes)
    pairs = np.stack([codes & 0x0F, codes >> 4], axis=-1)
    values: npt.NDArray[np.float32] = np.take(VALUES, pairs.reshape(count, 2 * width))
    return values


def second_factor(checkpoint: Checkpoint, nvfp4: Nvfp4) -> np.float32:
    """Return what every value of a weight is multiplied with at the end."""
    if nvfp4.second is None:
        return np.float32(1)
    raw = np.empty(1, dtype=FLOATS[nvfp4.second.dtype])
    checkpoint.read_into(nvfp4.second, 0, raw)
    (factor,) = as_float32(raw, nvfp4.second.dtype)
    if not np.isfinite(factor) or (nvfp4.inverse and factor == 0):
        raise BadInput(f"{nvfp4.second.name} is {factor}", where=nvfp4.second.file)
    return np.float32(1) / factor if nvfp4.inverse else np.float32(factor)
