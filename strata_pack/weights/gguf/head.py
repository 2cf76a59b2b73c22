"""Reads the header of a GGUF that is not on this disk, from its first bytes on, and hardly more than the header."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from strata_pack.errors import BadInput
from strata_pack.weights.gguf.cursor import TruncatedHeader
from strata_pack.weights.gguf.file import GgufFile

FIRST = 1 << 9
"""Bytes that are read at first: no header that names a model is much shorter."""

LARGEST = 128 << 20
"""Bytes of the largest header; a vocabulary of 250,000 tokens takes about 12 MB."""


def read_header(read: Callable[[int], bytes], size: int, where: str) -> GgufFile:
    """Return the header of the GGUF of ``size`` bytes whose next bytes ``read`` returns, from the first on.

    What was read says each time how long the header is at least; twice that is read then, so that never more than
    twice the header is read in all. Raises ``BadInput`` that names ``where`` for a file that is no GGUF, or one whose
    header is larger than 128 MiB.
    """
    data = read(min(FIRST, size))
    while True:
        try:
            return GgufFile(Path(where), memoryview(data), size)
        except TruncatedHeader as error:
            if error.needed > min(size, LARGEST) or len(data) >= size:
                raise
            data += read(min(2 * max(error.needed, len(data)), size) - len(data))
            if len(data) < error.needed:
                raise BadInput("ends before its header does", where=where, remedy="try again later") from None
