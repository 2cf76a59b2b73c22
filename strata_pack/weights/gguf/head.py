"""Reads the header of a remote GGUF from its first bytes, with little more than the header."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from strata_pack.errors import BadInput
from strata_pack.weights.gguf.cursor import TruncatedHeader
from strata_pack.weights.gguf.file import GgufFile

FIRST = 1 << 9
"""Bytes of the first read: the header of a model is seldom shorter."""

LARGEST = 128 << 20
"""Maximum bytes of a header; a vocabulary of 250,000 tokens takes about 12 MB."""


def read_header(read: Callable[[int], bytes], size: int, where: str) -> GgufFile:
    """Return the header of a GGUF of ``size`` bytes; ``read`` returns its bytes sequentially.

    The bytes read so far give a lower bound of the header's size; then twice that is read, so in total at most twice
    the header. Raises ``BadInput``, which names ``where``, for a file that is not a GGUF or has a header over 128 MiB.
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
