"""Reads integers of a few bits, packed into 32-bit words, as compressed-tensors stores INT4 weights.

A row's values are in consecutive words, lowest bits first; zero points are packed along the rows. Order and arithmetic
are those of llama.cpp's converter: integers up to the product with the scale, which is float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from strata_pack.errors import BadInput
from strata_pack.weights.convert.safetensors import Checkpoint, Packed, StoredTensor

_INTEGERS: Mapping[str, np.dtype[Any]] = {"I32": np.dtype("<i4"), "I64": np.dtype("<i8")}


def read_packed(
    checkpoint: Checkpoint, tensor: StoredTensor, packed: Packed, first: int, count: int
) -> npt.NDArray[np.float32]:
    """Return rows of a packed weight before its scale, float32 of shape (``count``, row length).

    Raises ``BadInput`` if the shape stored with the weight differs.
    """
    if not first:
        _check_shape(checkpoint, tensor, packed)
    words = np.empty((count, packed.words.shape[1]), dtype="<i4")
    checkpoint.read_into(packed.words, first * packed.words.shape[1] * 4, words)
    values = _unpacked(words, packed.bits)[:, : tensor.row_length]
    if packed.zeros is None:
        return (values - (1 << (packed.bits - 1))).astype(np.float32)
    zeros = _zeros(checkpoint, packed, packed.zeros, first, count)
    size = tensor.row_length // zeros.shape[1]
    grouped = values.reshape(count, -1, size) - zeros[:, :, None]
    return grouped.reshape(count, tensor.row_length).astype(np.float32)


def _unpacked(words: npt.NDArray[np.int32], bits: int) -> npt.NDArray[np.int32]:
    """Return ``words`` with the last dimension unpacked to values."""
    shifts = np.arange(0, 32, bits, dtype=np.int32)
    values: npt.NDArray[np.int32] = (words[..., None] >> shifts) & np.int32((1 << bits) - 1)
    return values.reshape(*words.shape[:-1], -1)


def _zeros(
    checkpoint: Checkpoint, packed: Packed, stored: StoredTensor, first: int, count: int
) -> npt.NDArray[np.int32]:
    """Return the zero points of rows, of shape (``count``, groups)."""
    start, stop = first // packed.in_a_word, -(-(first + count) // packed.in_a_word)
    words = np.empty((stop - start, stored.shape[1]), dtype="<i4")
    checkpoint.read_into(stored, start * stored.shape[1] * 4, words)
    rows = _unpacked(np.ascontiguousarray(words.T), packed.bits).T
    skipped = first - start * packed.in_a_word
    return rows[skipped : skipped + count]


def _check_shape(checkpoint: Checkpoint, tensor: StoredTensor, packed: Packed) -> None:
    stated = packed.stated
    if stated is None or stated.dtype not in _INTEGERS or stated.elements != 2:
        raise BadInput(f"{packed.words.name} has no stored shape", where=packed.words.file)
    shape = np.empty(2, dtype=_INTEGERS[stated.dtype])
    checkpoint.read_into(stated, 0, shape)
    if tuple(shape) != tensor.shape:
        raise BadInput(f"{stated.name} is {shape.tolist()}, but the weight is {list(tensor.shape)}", where=stated.file)
