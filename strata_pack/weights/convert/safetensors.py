"""Reads safetensors files and sharded checkpoints: validated headers, and tensor data by rows.

Every header is validated against the size of the file: offsets must be inside, must not overlap, and must match shape
and type. Format: https://github.com/huggingface/safetensors (8 bytes of header length, JSON, the bodies).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.files import read_bytes
from strata_pack.weights.checkpoint_index import INDEX, INDEX_LIMIT, SINGLE, find_index, read_index, unindexed_files

MAX_HEADER = 100_000_000
"""Maximum bytes of a header; the limit of the format's own library."""

FLOATS: Mapping[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
"""The possible types of weights and their numpy types: BF16 as 16-bit integers, because numpy lacks it."""

_SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I64": 8, "I32": 4, "I16": 2,
    "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """The scale of an 8-bit weight: one number for each ``block`` (rows, columns).

    Without a block there is one number for each row, or one for the whole weight. ``packed``: the weight's values are
    packed.
    """

    tensor: StoredTensor
    block: tuple[int, int] | None
    packed: Packed | Nvfp4 | None = None


@dataclass(frozen=True)
class Nvfp4:
    """Floats of four bits, two in a byte of ``codes``, the lower half first (NVFP4).

    ``second`` is the one number of the whole weight, by which values are multiplied or, with ``inverse``, divided.
    """

    codes: StoredTensor
    second: StoredTensor | None
    inverse: bool


@dataclass(frozen=True)
class Packed:
    """Values of ``bits`` each, several in a 32-bit word of ``words``, lowest bits first (compressed-tensors).

    ``zeros`` are the zero points of the groups, packed along the rows; without them, the zero point is the middle of
    the range. ``stated`` is the tensor with the weight's shape.
    """

    bits: int
    words: StoredTensor
    zeros: StoredTensor | None
    stated: StoredTensor | None

    @property
    def in_a_word(self) -> int:
        """Number of values in one word."""
        return 32 // self.bits


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a checkpoint: ``shape`` in PyTorch's order (the last dimension is contiguous)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    """Offset in bytes from the start of the file."""
    scale: Scale | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def row_length(self) -> int:
        """Elements of the last dimension (1 for a scalar)."""
        return self.shape[-1] if self.shape else 1

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _SIZES[self.dtype]

    @property
    def nbytes(self) -> int:
        return self.elements * self.itemsize


def as_float32(raw: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    """Return stored floats (``FLOATS`` types them) as float32, exactly."""
    if dtype == "BF16":
        wide: npt.NDArray[np.uint32] = np.left_shift(raw, 16, dtype=np.uint32)
        return wide.view(np.float32)
    return raw.astype(np.float32)


class Checkpoint:
    """All tensors of a folder, in the order of its shards and by name within each. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        """Read and validate all headers; ``BadInput`` if a shard is damaged or contradicts the index."""
        self.folder = folder
        self.tensors: dict[str, StoredTensor] = {}
        self._descriptors: dict[Path, int] = {}
        index = _read_index(folder)
        names = sorted(set(index.values())) if index is not None else _single(folder)
        for name in names:
            path = folder / name
            for tensor in read_header(path):
                if tensor.name in self.tensors:
                    other = self.tensors[tensor.name].file.name
                    raise BadInput(f"the tensor {tensor.name} is in {other} too", where=path)
                if index is not None and index.get(tensor.name) != name:
                    stated = index.get(tensor.name)
                    said = f"lies in {stated}" if stated else "does not exist"
                    raise BadInput(f"holds {tensor.name}, which {said} by {INDEX}", where=path)
                self.tensors[tensor.name] = tensor
        for name, file in (index or {}).items():
            if name not in self.tensors:
                raise BadInput(
                    f"lacks {name[:80]}, which {INDEX} says it holds", where=folder / file, remedy="fetch it again"
                )
        self.files: tuple[Path, ...] = tuple(folder / name for name in names)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def read_into(self, tensor: StoredTensor, offset: int, out: npt.NDArray[Any]) -> None:
        """Fill ``out`` (contiguous) with the bytes of ``tensor`` from byte ``offset`` on. Thread-safe."""
        descriptor = self._descriptors.get(tensor.file)
        if descriptor is None:
            descriptor = self._open(tensor.file)
        wanted, at = out.data.cast("B"), tensor.start + offset
        while wanted:
            try:
                got = os.preadv(descriptor, [wanted], at)
            except OSError as error:
                raise EnvironmentFailure(f"cannot be read ({error.strerror})", where=tensor.file) from error
            if not got:
                raise BadInput(f"the file became shorter while {tensor.name} was read", where=tensor.file)
            wanted, at = wanted[got:], at + got

    def _open(self, path: Path) -> int:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # Two threads may get here at the same time; the second descriptor must not leak.
        kept = self._descriptors.setdefault(path, descriptor)
        if kept != descriptor:
            os.close(descriptor)
        return kept


def read_header(path: Path) -> list[StoredTensor]:
    """Return the tensors of one file, by name; ``BadInput`` describes the fault."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            return parse_header(file.read, size, path)
    except FileNotFoundError:
        raise BadInput("no such file", where=path, remedy="fetch it") from None
    except OSError as error:
        raise EnvironmentFailure(f"cannot be read ({error.strerror})", where=path) from error


def parse_header(read: Callable[[int], bytes], size: int, path: Path) -> list[StoredTensor]:
    """Return the tensors of a file of ``size`` bytes at ``path``; ``read`` returns its bytes sequentially.

    Only the header is read, so the file need not be complete. ``BadInput`` describes the fault.
    """
    length = int.from_bytes(read(8), "little") if size >= 8 else 0
    if size < 8 or length > size - 8:
        raise BadInput(f"is truncated: its header does not fit in {size} bytes", where=path, remedy="fetch it again")
    if length > MAX_HEADER:
        raise BadInput(f"its header is {length} bytes long and at most {MAX_HEADER} are allowed", where=path)
    try:
        header = json.loads(read(length))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        tensors = [_tensor(name, entry, path, 8 + length) for name, entry in sorted(entries.items())]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"its header is malformed ({error})", where=path, remedy="fetch it again") from error
    _check_layout(tensors, path, 8 + length, size)
    return tensors


def _tensor(name: str, entry: Any, path: Path, base: int) -> StoredTensor:
    dtype, shape = entry["dtype"], tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    if not name or not name.isprintable() or len(name) > 1024:
        raise ValueError(f"a tensor has the name {name[:80]!r}")
    if dtype not in _SIZES:
        raise ValueError(f"{name} has the unknown type {str(dtype)[:80]!r}")
    if len(shape) > 8 or any(type(n) is not int or not 0 <= n < 1 << 48 for n in shape):
        raise ValueError(f"{name} has the impossible shape {list(shape)[:9]}")
    if type(begin) is not int or type(end) is not int or end - begin != math.prod(shape) * _SIZES[dtype] or begin < 0:
        raise ValueError(f"{name} has the offsets {begin} to {end}, which do not fit {dtype} {list(shape)}")
    return StoredTensor(name, dtype, shape, path, base + begin)


def _check_layout(tensors: list[StoredTensor], path: Path, base: int, size: int) -> None:
    end, previous = base, ""
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.nbytes)):
        if tensor.start < end:
            raise BadInput(f"the tensors {previous} and {tensor.name} overlap", where=path, remedy="fetch it again")
        end, previous = tensor.start + tensor.nbytes, tensor.name
    if end > size:
        raise BadInput(
            f"is truncated: {previous} ends at byte {end} and the file at {size}", where=path, remedy="fetch it again"
        )


def _read_index(folder: Path) -> dict[str, str] | None:
    name = find_index((path.name for path in folder.iterdir()), str(folder)) if folder.is_dir() else None
    return None if name is None else read_index(read_bytes(folder / name, INDEX_LIMIT), folder / name)


def _single(folder: Path) -> list[str]:
    names = unindexed_files((path.name for path in folder.iterdir()), str(folder)) if folder.is_dir() else ()
    if not names:
        raise BadInput(f"has no {SINGLE}", where=folder, remedy="give the folder of a safetensors checkpoint")
    return list(names)
