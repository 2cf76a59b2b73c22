"""Reads and converts the rows of one output tensor from the places where they are stored."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from strata_pack.weights.convert.cast import cast_into, is_copy
from strata_pack.weights.convert.safetensors import FLOATS, Checkpoint, StoredTensor, as_float32
from strata_pack.weights.convert.scales import read_scaled
from strata_pack.weights.convert.views import Numbers, Piece, View
from strata_pack.weights.tensor_source import RowReader, SourceTensor

_SPAN = 4
"""Scattered rows are read in one piece, with the rows between them, if that is at most this many times their number."""

_AT_ONCE = 1 << 20
"""Elements converted at a time, few enough to keep intermediate arrays small."""

Values = tuple[npt.NDArray[Any], str]
"""Stored rows (typed as in ``FLOATS``) and the name of that type; rows with a scale are float32."""


def view_reader(checkpoint: Checkpoint, view: View, tensor: SourceTensor) -> RowReader:
    """Return a reader of the rows of ``view`` in the type of ``tensor``; safe to call from several threads."""
    ends = list(itertools.accumulate(len(piece) for piece in view.pieces))
    row = tensor.nbytes // tensor.rows
    # A squeezed or one-dimensional tensor has different rows in the GGUF; its only piece is read whole.
    same_rows = bool(view.appended) or view.pieces[0].row_length == tensor.row_length

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
    plain = view.columns is None and view.transform == "none" and not view.appended
    if (
        plain
        and is_copy(stored.dtype, tensor.type)
        and stored.scale is None
        and piece.turned is None
        and isinstance(piece.rows, range)
    ):
        checkpoint.read_into(stored, piece.rows[first] * stored.row_length * stored.itemsize, out)
        return
    # Any row of a transposed matrix needs the whole matrix, so all its rows are read at once.
    step = last - first if piece.turned is not None else max(1, _AT_ONCE // max(tensor.row_length, 1))
    row = len(out) // (last - first)
    for at in range(first, last, step):
        end = min(at + step, last)
        values, dtype = _values(checkpoint, view, piece, at, end)
        cast_into(values, dtype, tensor.type, view.transform, out[(at - first) * row : (end - first) * row])


def _values(checkpoint: Checkpoint, view: View, piece: Piece, first: int, last: int) -> Values:
    values, dtype = _piece_values(checkpoint, piece, first, last)
    for other in view.appended:
        more, its = _piece_values(checkpoint, other, first, last)
        if its != dtype:
            values, more, dtype = as_float32(values, dtype), as_float32(more, its), "F32"
        values = np.hstack([values, more])
    return (values if view.columns is None else values[:, view.columns]), dtype


def _piece_values(checkpoint: Checkpoint, piece: Piece, first: int, last: int) -> Values:
    stored = piece.tensor
    if piece.turned is not None:
        assert isinstance(piece.rows, range)
        values, dtype = _stored_rows(checkpoint, stored, piece.rows.start, len(piece.rows))
        columns = piece.turned[first:last]
        return np.ascontiguousarray(values[:, columns.start : columns.stop].T), dtype
    rows = piece.rows[first:last]
    if isinstance(rows, range):
        return _stored_rows(checkpoint, stored, rows.start, len(rows))
    parts, dtype = [], stored.dtype
    for start, count, order in _runs(rows):
        values, dtype = _stored_rows(checkpoint, stored, start, count)
        parts.append(values if order is None else values[order])
    return (parts[0] if len(parts) == 1 else np.concatenate(parts)), dtype


def _stored_rows(checkpoint: Checkpoint, stored: StoredTensor, first: int, count: int) -> Values:
    if stored.scale is not None:
        return read_scaled(checkpoint, stored, first, count), "F32"
    values = np.empty((count, stored.row_length), dtype=FLOATS[stored.dtype])
    checkpoint.read_into(stored, first * stored.row_length * stored.itemsize, values)
    return values, stored.dtype


def _runs(rows: Numbers) -> Iterator[tuple[int, int, Numbers | None]]:
    """Yield (first stored row, count, order): the rows to read, and the indices of the wanted ones (None: all)."""
    low, high = int(rows.min()), int(rows.max()) + 1
    if high - low <= _SPAN * len(rows):
        yield low, high - low, rows - low
        return
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    for run in np.split(rows, cuts):
        yield int(run[0]), len(run), None
