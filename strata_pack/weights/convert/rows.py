"""The rows of one output tensor, read from wherever they are stored and converted on the way."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from strata_pack.weights.convert.cast import OUT_SIZE, cast_into, is_copy
from strata_pack.weights.convert.rules import Numbers, Piece, View
from strata_pack.weights.convert.safetensors import FLOATS, Checkpoint
from strata_pack.weights.tensor_source import RowReader, SourceTensor

_SPAN = 4
"""Rows that lie scattered over up to so many times their number are read with what lies between them."""


def view_reader(checkpoint: Checkpoint, view: View, tensor: SourceTensor) -> RowReader:
    """Return a reader of the rows of ``view`` in the type of ``tensor``; safe to call from several threads."""
    ends = list(itertools.accumulate(len(piece) for piece in view.pieces))
    row = tensor.row_length * OUT_SIZE[tensor.type]
    # A squeezed or one-dimensional tensor has other rows in the GGUF than in the file; its one piece is read whole.
    same_rows = view.pieces[0].tensor.row_length == tensor.row_length

    def read(first: int, count: int, out: npt.NDArray[np.uint8]) -> None:
        if not same_rows:
            whole = np.empty(tensor.nbytes, dtype=np.uint8)
            _read_piece(checkpoint, view, view.pieces[0], 0, len(view.pieces[0]), tensor, whole)
            out[: count * row] = whole[first * row : (first + count) * row]
            return
        at, last = first, first + count
        for index in range(bisect.bisect_right(ends, first), len(view.pieces)):
            if at >= last:
                break
            start = ends[index] - len(view.pieces[index])
            stop = min(last, ends[index])
            part = out[(at - first) * row : (stop - first) * row]
            _read_piece(checkpoint, view, view.pieces[index], at - start, stop - start, tensor, part)
            at = stop

    return read


def _read_piece(
    checkpoint: Checkpoint, view: View, piece: Piece, first: int, last: int, tensor: SourceTensor, out: npt.NDArray[Any]
) -> None:
    """Fill ``out`` with rows ``first`` to ``last`` (exclusive) of a piece, converted."""
    stored = piece.tensor
    length = stored.row_length
    rows = piece.rows[first:last]
    if (
        is_copy(stored.dtype, tensor.type)
        and view.columns is None
        and view.transform == "none"
        and isinstance(rows, range)
    ):
        checkpoint.read_into(stored, rows.start * length * stored.itemsize, out)
        return
    values = np.empty((len(rows), length), dtype=FLOATS[stored.dtype])
    at = 0
    for start, count, order in _runs(rows):
        if order is None:
            checkpoint.read_into(stored, start * length * stored.itemsize, values[at : at + count])
            at += count
            continue
        span = np.empty((count, length), dtype=FLOATS[stored.dtype])
        checkpoint.read_into(stored, start * length * stored.itemsize, span)
        np.take(span, order, axis=0, out=values[at : at + len(order)])
        at += len(order)
    if view.columns is not None:
        values = values[:, view.columns]
    cast_into(values, stored.dtype, tensor.type, view.transform, out)


def _runs(rows: range | Numbers) -> Iterator[tuple[int, int, Numbers | None]]:
    """Yield (first stored row, count, order): what to read, and which of the rows read are wanted (None: all)."""
    if isinstance(rows, range):
        yield rows.start, len(rows), None
        return
    low, high = int(rows.min()), int(rows.max()) + 1
    if high - low <= _SPAN * len(rows):
        yield low, high - low, rows - low
        return
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    for run in np.split(rows, cuts):
        yield int(run[0]), len(run), None
