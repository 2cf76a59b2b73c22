"""Describes one output tensor: its rows among the stored tensors, and the transformation of their values.

Conversion only selects rows, selects columns, concatenates rows, or applies a function to each value, so a view can be
read a few rows at a time, in any order, from any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from strata_pack.weights.convert.cast import Transform
from strata_pack.weights.convert.safetensors import StoredTensor

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Piece:
    """Rows of one stored tensor (all dimensions but the last, flattened), in the order of ``rows``.

    With ``turned`` the piece's rows are these columns of the stored rows (a transposed matrix).
    """

    tensor: StoredTensor
    rows: range | Numbers
    turned: range | None = None

    def __len__(self) -> int:
        return len(self.rows if self.turned is None else self.turned)

    @property
    def row_length(self) -> int:
        return self.tensor.row_length if self.turned is None else len(self.rows)


@dataclass(frozen=True)
class View:
    """One output tensor: its Hugging Face ``name``, and its ``shape`` in PyTorch's order.

    The columns of ``appended`` extend the rows of the first piece, which is then the only one.
    """

    name: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    columns: Numbers | None = None
    transform: Transform = "none"
    appended: tuple[Piece, ...] = ()

    @classmethod
    def whole(cls, name: str, tensor: StoredTensor) -> View:
        rows = tensor.elements // max(tensor.row_length, 1)
        return cls(name, tensor.shape, (Piece(tensor, range(rows)),))

    def take(self, rows: Numbers) -> View:
        """Return the view of these rows; this view must be of one whole tensor."""
        (piece,) = self.pieces
        return replace(self, shape=(len(rows), *self.shape[1:]), pieces=(Piece(piece.tensor, rows),))
