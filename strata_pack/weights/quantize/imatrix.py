"""Reads importance matrices: the importance of each column of a weight on a calibration text.

The formats are GGUF (``general.type`` "imatrix") and the older ``.dat``. Importances are read one tensor at a time when
it is quantized, because the file of a large mixture of experts has hundreds of megabytes. Source: ``tools/imatrix`` and
``tools/quantize`` of llama.cpp.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.files import sha256_file
from strata_pack.llama.ggml import Floats
from strata_pack.llama.ggml_types import GGMLQuantizationType as Q
from strata_pack.weights.gguf.file import MAGIC, GgufFile, TensorInfo
from strata_pack.weights.tensor_source import SourceTensor

SUMS, COUNTS = ".in_sum2", ".counts"
MAX_ENTRIES = 1 << 20
MAX_NAME = 4096
"""Maximum bytes of a name in a ``.dat`` file."""
_I32 = struct.Struct("<i")

Loader = Callable[[], Floats]
"""Reads one entry's importances as a flat array: row length times number of matrices."""


@dataclass(frozen=True)
class Entry:
    """The importances of one weight, on disk."""

    size: int
    """Number of values: row length times number of matrices."""
    matrices: int | None
    """Number of matrices, if the file has it."""
    load: Loader


@dataclass(frozen=True)
class Imatrix:
    """One imatrix file."""

    path: Path
    sha256: str
    entries: Mapping[str, Entry]
    """The entries by the name of the weight."""
    datasets: tuple[str, ...] = ()
    """The names of the calibration texts in the file."""
    chunks: int | None = None

    def check(self, tensor: SourceTensor) -> bool:
        """Return whether there are importances for ``tensor``; ``BadInput`` if their shape differs."""
        entry = self.entries.get(tensor.name)
        if entry is None:
            return False
        expected = tensor.row_length * tensor.matrices
        if entry.size == expected and entry.matrices in (None, tensor.matrices):
            return True
        if tensor.name == "token_embd.weight":
            # Some versions count them per token: unusable, and the embedding never needs importances.
            return False
        raise BadInput(
            f"has {entry.size} importances for {tensor.name}, which needs {expected}",
            where=self.path,
            remedy="use an imatrix of this model",
        )

    def importances(self, tensor: SourceTensor) -> Floats | None:
        """Return the importances (matrices, row length), or ``None``; ``BadInput`` for NaN or infinities."""
        if not self.check(tensor):
            return None
        values = self.entries[tensor.name].load()
        if not np.isfinite(values).all():
            raise BadInput(f"has a NaN or infinite importance for {tensor.name}", where=self.path)
        return np.ascontiguousarray(values.reshape(tensor.matrices, tensor.row_length))


def read_imatrix(path: Path) -> Imatrix:
    """Read the directory of an imatrix file and check every value once; ``BadInput`` describes the fault."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
        sha256 = sha256_file(path)
    except FileNotFoundError:
        raise BadInput("no such file", where=path) from None
    except IsADirectoryError:
        raise BadInput("is a folder, not an imatrix file", where=path) from None
    except OSError as error:
        raise EnvironmentFailure(f"cannot be read ({error.strerror})", where=path) from error
    imatrix = _read_gguf(path, sha256) if magic == MAGIC else _read_dat(path, sha256)
    for name, entry in imatrix.entries.items():
        values = entry.load()
        if not np.isfinite(values).all():
            raise BadInput(f"has a NaN or infinite importance for {name}", where=path)
        if (values < 0).any():
            raise BadInput(f"has a negative importance for {name}", where=path)
    return imatrix


def _read_gguf(path: Path, sha256: str) -> Imatrix:
    with GgufFile.open(path) as file:
        kind = file.text("general.type")
        if kind != "imatrix":
            told = "without a type" if kind is None else f"of type {kind!r}"
            raise BadInput(f"is a GGUF {told}, not an imatrix", where=path)
        tensors = {info.name: info for info in file.tensors}
        entries: dict[str, Entry] = {}
        for name, info in tensors.items():
            if not name.endswith((SUMS, COUNTS)):
                continue
            if name.endswith(COUNTS):
                if name.removesuffix(COUNTS) + SUMS not in tensors:
                    raise BadInput(f"has {name} without its {SUMS}", where=path)
                continue
            counts = tensors.get(name.removesuffix(SUMS) + COUNTS)
            rows = info.elements // (info.shape[0] if info.shape else 1)
            if counts is None or counts.elements != rows or {info.type, counts.type} != {Q.F32}:
                raise BadInput(f"has {name} without fitting F32 {COUNTS}", where=path)
            loader = _gguf_loader(path, file.data_offset + info.offset, file.data_offset + counts.offset, info, rows)
            entries[name.removesuffix(SUMS)] = Entry(info.elements, rows, loader)
        datasets = file.metadata.get("imatrix.datasets")
        named = datasets.value if datasets is not None and isinstance(datasets.value, list) else []
        chunks = file.integer("imatrix.chunk_count")
    if not entries:
        raise BadInput("has no importances", where=path)
    return Imatrix(path, sha256, entries, tuple(map(str, named)), chunks)


def _floats(path: Path, offset: int, count: int) -> Floats:
    values = np.fromfile(path, "<f4", count, offset=offset).astype(np.float32, copy=False)
    if values.size != count:
        raise BadInput("became shorter while it was read", where=path)
    return values


def _gguf_loader(path: Path, sums_at: int, counts_at: int, sums: TensorInfo, rows: int) -> Loader:
    def load() -> Floats:
        count = _floats(path, counts_at, rows).reshape(-1, 1)
        values = _floats(path, sums_at, sums.elements).reshape(rows, -1)
        with np.errstate(all="ignore"):
            # A matrix without any input (an expert never chosen) gets equal importances for all columns.
            return np.where(count > 0, values / np.where(count > 0, count, 1), np.float32(1)).reshape(-1)

    return load


def _read_dat(path: Path, sha256: str) -> Imatrix:
    """Read the old format: a count, then name, number of calls, number of values and values of each weight."""
    size = path.stat().st_size
    entries: dict[str, Entry] = {}
    datasets: tuple[str, ...] = ()
    chunks = None
    with path.open("rb") as file:

        def number(what: str, most: int, least: int = 0) -> int:
            data = file.read(_I32.size)
            value = _I32.unpack(data)[0] if len(data) == _I32.size else -1
            if not least <= value <= most:
                raise BadInput(
                    f"is not an imatrix: {what} at byte {file.tell()} is missing or invalid",
                    where=path,
                    remedy="give a file made by llama-imatrix",
                )
            return int(value)

        for _ in range(number("the number of weights", MAX_ENTRIES, 1)):
            name = file.read(number("a name's length", MAX_NAME, 1)).decode("utf-8", "replace")
            calls = number("a number of calls", (1 << 31) - 1)
            count = number("a number of values", (1 << 31) - 1, 1)
            start = file.tell()
            if start + 4 * count > size:
                raise BadInput(f"is truncated: the values of {name!r} run past the end of the file", where=path)
            if name in entries:
                raise BadInput(f"has the weight {name!r} twice", where=path)
            entries[name] = Entry(count, None, _dat_loader(path, start, count, calls))
            file.seek(start + 4 * count)
        if file.tell() < size:
            chunks = number("the number of chunks", (1 << 31) - 1)
            datasets = (file.read(number("the data set's length", MAX_NAME)).decode("utf-8", "replace"),)
    return Imatrix(path, sha256, entries, datasets, chunks)


def _dat_loader(path: Path, start: int, count: int, calls: int) -> Loader:
    def load() -> Floats:
        values = _floats(path, start, count)
        return values / np.float32(calls) if calls > 0 else values

    return load
