"""Measures how far a stored tensor is from its source's: as a whole, in its worst row, and in its worst block.

Both are read a few rows at a time and turned into floats. All errors are relative: the square root of the squared
differences over the source's squared weights. Damage changes them by far more than any quantization: rows or tensors
in each other's place give about 1.4, another sign 2, a wrong factor that factor.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strata_pack.llama.ggml import Bytes, Floats, Ggml, row_nbytes
from strata_pack.llama.ggml_types import GGML_QUANT_SIZES
from strata_pack.weights.tensor_source import RowReader, SourceTensor

SMALLEST_BLOCK = 32
"""Weights in a row that are measured together in types without blocks."""
CHUNK_WEIGHTS = 1 << 19
"""Number of weights that are read at a time: 2 MiB as floats."""
SMALL_ROW = 0.01
"""Share of its neighbours' size below which a row is measured by theirs: nothing depends on it."""
SMALLEST = 1e-4
"""Size of weights (root mean square) below which errors are measured by it: the scales of blocks, 16-bit floats, have
few digits there."""


@dataclass(frozen=True)
class Deviation:
    """The relative errors of one tensor, and where the largest are. ``column`` is the first one of the worst block."""

    whole: float
    row: float
    worst_row: int
    block: float
    block_row: int
    column: int


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: its shape and type, and how to read its rows."""

    tensor: SourceTensor
    read: RowReader

    def floats(self, first: int, count: int) -> Floats:
        """Return ``count`` rows as floats."""
        raw: Bytes = np.empty(count * row_nbytes(self.tensor.type, self.tensor.row_length), np.uint8)
        self.read(first, count, raw)
        out: Floats = np.empty((count, self.tensor.row_length), np.float32)
        Ggml.load().to_f32(self.tensor.type, raw, out)
        return out


@dataclass(frozen=True)
class _Part:
    """The sums and the largest errors of a few rows."""

    error: float
    energy: float
    found: Deviation


def deviation(stored: Stored, source: Stored, pool: ThreadPoolExecutor) -> Deviation:
    """Compare two tensors of the same shape. Threads of ``pool`` read and compare a few rows each."""
    parts = list(pool.map(lambda span: _compare(stored, source, *span), _spans(source.tensor)))
    rows = max(parts, key=lambda part: part.found.row).found
    blocks = max(parts, key=lambda part: part.found.block).found
    whole = _relative(sum(part.error for part in parts), sum(part.energy for part in parts))
    return Deviation(whole, rows.row, rows.worst_row, blocks.block, blocks.block_row, blocks.column)


def _spans(tensor: SourceTensor) -> Iterator[tuple[int, int]]:
    most = max(1, CHUNK_WEIGHTS // tensor.row_length)
    for first in range(0, tensor.rows, most):
        yield first, min(most, tensor.rows - first)


def _compare(stored: Stored, source: Stored, first: int, count: int) -> _Part:
    weights, difference = source.floats(first, count), stored.floats(first, count)
    columns = weights.shape[1]
    size = min(max(GGML_QUANT_SIZES[stored.tensor.type][0], SMALLEST_BLOCK), columns)
    with np.errstate(over="ignore", invalid="ignore"):
        np.subtract(difference, weights, out=difference)
        if not np.isfinite(weights).all():  # accepted by --allow-nonfinite; the stored value is another one
            difference[~np.isfinite(weights)] = 0
            weights[~np.isfinite(weights)] = 0
        energy, error = _block_sums(weights, size), _block_sums(difference, size)
    error[np.isnan(error)] = np.inf
    row_energy, row_error = energy.sum(axis=1), error.sum(axis=1)
    least = max(float(row_energy.mean()) * SMALL_ROW**2, columns * SMALLEST**2)
    rows = row_error / np.maximum(row_energy, least)
    by_row = np.maximum(row_energy, least) * (size / columns)
    blocks = error / np.maximum(energy, by_row[:, None])
    worst, (row, block) = int(rows.argmax()), np.unravel_index(int(blocks.argmax()), blocks.shape)
    found = Deviation(
        whole=0.0,
        row=float(np.sqrt(rows[worst])),
        worst_row=first + worst,
        block=float(np.sqrt(blocks[row, block])),
        block_row=first + int(row),
        column=int(block) * size,
    )
    least_sum = weights.size * SMALLEST**2
    return _Part(float(row_error.sum()), max(float(row_energy.sum()), least_sum), found)


def _block_sums(values: Floats, size: int) -> npt.NDArray[np.float64]:
    """Return the sums of squares of every ``size`` weights of a row (its last block may be shorter)."""
    rows, columns = values.shape
    whole = columns // size * size
    blocks = values[:, :whole].reshape(rows, -1, size)
    sums = np.einsum("ijk,ijk->ij", blocks, blocks)
    if whole < columns:
        rest = values[:, whole:]
        sums = np.concatenate([sums, np.einsum("ij,ij->i", rest, rest)[:, None]], axis=1)
    doubles: npt.NDArray[np.float64] = sums.astype(np.float64)
    return doubles


def _relative(error: float, energy: float) -> float:
    return float(np.sqrt(error / energy))
