"""Defines one tensor of a GGUF file: its name, shape, type and offset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from strata_pack.llama.ggml_types import GGML_QUANT_SIZES, GGMLQuantizationType

MAX_TENSOR_NAME = 63
"""Maximum bytes of a name; ggml stores names in 64 bytes with a final NUL."""


@dataclass(frozen=True)
class TensorInfo:
    """One entry of the tensor directory."""

    name: str
    shape: tuple[int, ...]
    """Elements per dimension in ggml's order: ``shape[0]`` is the row length, the contiguous dimension."""
    type: GGMLQuantizationType
    offset: int
    """Offset in bytes from the start of the data section."""
    nbytes: int

    @property
    def elements(self) -> int:
        """The number of weights."""
        return math.prod(self.shape)

    @classmethod
    def make(cls, name: str, shape: Sequence[int], type: GGMLQuantizationType, offset: int = 0) -> TensorInfo:
        """Return the entry with its computed size; ``ValueError`` if a row is not a whole number of blocks."""
        return cls(name, tuple(shape), type, offset, tensor_nbytes(shape, type))


def tensor_nbytes(shape: Sequence[int], type: GGMLQuantizationType) -> int:
    """Return the bytes of a tensor of ``shape`` (ggml order); ``ValueError`` if a row is not a whole number of
    blocks."""
    block, size = GGML_QUANT_SIZES[type]
    row = shape[0] if shape else 1
    if row % block:
        raise ValueError(f"a row of {row} weights is not a whole number of {type.name} blocks of {block}")
    return math.prod(shape) // block * size


def align(size: int, alignment: int) -> int:
    """Return ``size`` rounded up to a multiple of ``alignment``."""
    return -(-size // alignment) * alignment
