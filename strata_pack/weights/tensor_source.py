"""Defines the quantizer's input: tensors, their header, and rows on demand.

A GGUF model (split or not) is one kind of ``TensorSource``, a safetensors checkpoint that is converted on the fly
another. The quantizer reads a few rows at a time, from several threads, and never a whole tensor.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.llama.ggml_types import GGMLQuantizationType
from strata_pack.weights.gguf.file import (
    GgufFile,
    MetaValue,
    TensorInfo,
    encode_header,
    open_shards,
    shard_paths,
    tensor_nbytes,
)
from strata_pack.weights.input_files import InputFiles

RowReader = Callable[[int, int, npt.NDArray[np.uint8]], None]
"""``read(first, count, out)`` fills ``out`` with the bytes of ``count`` rows from row ``first`` on, in the tensor's
own type. Rows are counted over all higher dimensions. Thread-safe; raises ``BadInput`` or
``EnvironmentFailure`` if the bytes are missing."""


@dataclass(frozen=True)
class SourceTensor:
    """One tensor: its final name and shape in the GGUF, and the present type of its bytes."""

    name: str
    shape: tuple[int, ...]
    """Elements in ggml's order: ``shape[0]`` is the row length."""
    type: GGMLQuantizationType
    shard: int = 0
    """The index (from 0) of its file in a split model."""
    position: int = 0
    """Its rank by position in the file: a split model keeps this order."""

    @property
    def row_length(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def rows(self) -> int:
        """The number of rows over all higher dimensions."""
        return math.prod(self.shape[1:])

    @property
    def matrices(self) -> int:
        """The number of two-dimensional slices: the experts of a stacked MoE tensor, else 1."""
        return math.prod(self.shape[2:])

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return tensor_nbytes(self.shape, self.type)


class TensorSource(Protocol):
    """A source of weights. Attributes are read-only."""

    @property
    def label(self) -> str:
        """Its name in messages: a path or a hub id."""

    @property
    def fingerprint(self) -> str:
        """A value that changes if any byte may have changed: interrupted work is resumed only with the same
        fingerprint."""

    @property
    def inputs(self) -> InputFiles:
        """The files it reads, with their states before the first read."""

    @property
    def metadata(self) -> Mapping[str, MetaValue]:
        """The GGUF header of the unquantized model, without ``split.*`` keys."""

    @property
    def tensors(self) -> Sequence[SourceTensor]:
        """All tensors, in any order."""

    @property
    def shards(self) -> int:
        """Number of files of the model, 1 if it is not split."""

    def rows(self, tensor: SourceTensor) -> RowReader:
        """Return the reader of one tensor's rows; it may keep resources until it is garbage-collected."""


class GgufSource:
    """A GGUF model, split or not, as a ``TensorSource``. Use as a context manager."""

    def __init__(self, path: Path | str) -> None:
        """Open and check all files of the model; raises as ``open_shards``."""
        self.inputs = InputFiles.of(shard_paths(path))
        self.files: list[GgufFile] = open_shards(path)
        first = self.files[0]
        self.label = str(path)
        self.metadata: Mapping[str, MetaValue] = {
            key: value for key, value in first.metadata.items() if not key.startswith("split.")
        }
        self.shards = len(self.files)
        self._places: dict[str, tuple[int, int]] = {}
        self._descriptors = [os.open(file.path, os.O_RDONLY) for file in self.files]
        tensors: list[SourceTensor] = []
        for shard, file in enumerate(self.files):
            for position, info in enumerate(sorted(file.tensors, key=lambda t: t.offset)):
                tensors.append(SourceTensor(info.name, info.shape, info.type, shard, position))
                self._places[info.name] = (shard, file.data_offset + info.offset)
        self.tensors: Sequence[SourceTensor] = tuple(tensors)
        self.fingerprint = _fingerprint(self.files, self.inputs)

    def __enter__(self) -> GgufSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; readers handed out stop working."""
        while self._descriptors:
            os.close(self._descriptors.pop())
        for file in self.files:
            file.close()

    def rows(self, tensor: SourceTensor) -> RowReader:
        """Return a reader that reads from the file, not the memory mapping, which would count as this process's
        memory."""
        shard, start = self._places[tensor.name]
        descriptor, path = self._descriptors[shard], self.files[shard].path
        row = TensorInfo.make(tensor.name, (tensor.row_length,), tensor.type).nbytes

        def read(first: int, count: int, out: npt.NDArray[np.uint8]) -> None:
            wanted, at = out.data[: count * row], start + first * row
            while wanted:
                try:
                    got = os.preadv(descriptor, [wanted], at)
                except OSError as error:
                    raise EnvironmentFailure(f"cannot be read ({error.strerror})", where=path) from error
                if not got:
                    raise BadInput(f"the file became shorter while {tensor.name} was read", where=path)
                wanted, at = wanted[got:], at + got

        return read


def _fingerprint(files: Sequence[GgufFile], inputs: InputFiles) -> str:
    """Return a hash of the headers and file states; hashing all weights would need a separate pass."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(encode_header(file.metadata, file.tensors, file.alignment))
    digest.update(inputs.fingerprint())
    return digest.hexdigest()
