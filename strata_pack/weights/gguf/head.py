"""Reads the metadata of a remote GGUF from its first bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from strata_pack.errors import BadInput
from strata_pack.weights.gguf.file import MAGIC, MetaValue, parse_metadata

STEPS = (1 << 20, 16 << 20, 64 << 20)
"""Bytes that are read before it is given up; a vocabulary of 250,000 tokens takes about 12 MB."""


def read_metadata(read: Callable[[int], bytes], size: int, where: str) -> Mapping[str, MetaValue]:
    """Return the metadata of the GGUF of ``size`` bytes whose next bytes ``read`` returns, from the first on.

    Raises ``BadInput`` that names ``where`` for a file that is no GGUF, or one whose metadata do not end within 64 MiB.
    """
    data = b""
    for step in STEPS:
        data += read(min(step, size) - len(data))
        try:
            return parse_metadata(Path(where), memoryview(data))
        except BadInput:
            if len(data) >= min(size, STEPS[-1]) or data[:4] != MAGIC:
                raise
    raise AssertionError("the last step returns or raises")
