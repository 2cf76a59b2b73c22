"""Passes rows of logits from a child process to its parent through memory that both share: a ring of blocks of rows.

The writer announces every block and the reader releases it, on pipes of their own (``logits``, ``logits_child``).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

ROWS = 16
"""Rows per block: 16 rows for a vocabulary of 150,000 are 10 MB."""
_RING_BYTES = 64 << 20
"""Maximum bytes of a ring, if two blocks are not more: for 50,000 tokens it holds a window of 512."""
_MOST_SLOTS = 16


def block_sizes(scored: Iterable[int]) -> Iterator[int]:
    """Yield the rows of each block: at most 16, all of one window. ``scored``: the rows of each window."""
    for rows in scored:
        yield from (min(ROWS, rows - at) for at in range(0, rows, ROWS))


@contextlib.contextmanager
def shared_file() -> Iterator[int]:
    """Create an empty file without a name, in memory where the system can, and yield its descriptor."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("strata-logits")
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    else:
        with tempfile.TemporaryFile() as file:
            yield file.fileno()


class RowRing:
    """The ring of one model, in a file whose size its writer has given it with ``create``."""

    def __init__(self, descriptor: int, n_vocab: int) -> None:
        """Map the file. Raises ``ValueError`` if it is smaller than a ring for ``n_vocab``."""
        self.slots, size = _layout(n_vocab)
        self._rows: Floats = np.frombuffer(mmap.mmap(descriptor, size), np.float32).reshape(-1, n_vocab)

    @classmethod
    def create(cls, descriptor: int, n_vocab: int) -> RowRing:
        """Give the empty file its size and map it. Raises ``OSError`` if there is no room for it."""
        _, size = _layout(n_vocab)
        if hasattr(os, "posix_fallocate"):
            # Writing to a mapped file whose blocks are not allocated ends the process when there is no room.
            os.posix_fallocate(descriptor, 0, size)
        else:
            os.ftruncate(descriptor, size)
        return cls(descriptor, n_vocab)

    def block(self, number: int, rows: int) -> Floats:
        """Return the memory of block ``number``, which it shares with each ``slots``-th block after it."""
        start = number % self.slots * ROWS
        return self._rows[start : start + rows]


def _layout(n_vocab: int) -> tuple[int, int]:
    """Return the number of slots and the bytes of a ring."""
    block = 4 * ROWS * n_vocab
    slots = max(2, min(_RING_BYTES // block, _MOST_SLOTS))
    return slots, slots * block
