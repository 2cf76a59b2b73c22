"""One tensor of a GGUF file: its name, shape, type and place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from strata_pack.llama.ggml_types import GGML_QUANT_SIZES, GGMLQuantizationType

MAX_TENSOR_NAME = 63
"""Bytes; ggml keeps names in 64 with a final NUL."""


@dataclass(frozen=True)
class TensorInfo:
    """One entry of the tensor directory."""

    name: str
    shape: tuple[int, ...]
    """Elements per dimension in ggml's order: ``shape[0]`` is the row length, the dimension that lies together."""
    type: GGMLQuantizationType
    offset: int
    """Bytes from the start of the data section."""
    nbytes: int

    @property
    def elements(self) -> int:
        """The number of weights."""
        return math.prod(self.shape)

    @classmethod
    def make(cls, name: str, shape: Sequence[int], type: GGMLQuantizationType, offset: int = 0) -> TensorInfo:
        """Return the entry with its size worked out; ``ValueError`` if a row is no whole number of blocks."""
        return cls(name, tuple(shape), type, offset, tensor_nbytes(shape, type))


def tensor_nbytes(shape: Sequence[int], type: GGMLQuantizationType) -> int:
    """Return the bytes of a tensor of ``shape`` (ggml order); ``ValueError`` if a row is no whole number of blocks."""
    block, size = GGML_QUANT_SIZES[type]
    row = shape[0] if shape else 1
    if row % block:
        raise ValueError(f"a row of {row} weights is no whole number of {type.name} blocks of {block}")
    return math.prod(shape) // block * size


def align(size: int, alignment: int) -> int:
    """Return ``size`` rounded up to a multiple of ``alignment``."""
    return -(-size // alignment) * alignment
