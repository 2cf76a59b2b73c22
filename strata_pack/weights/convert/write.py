"""Writes a ``TensorSource`` as one GGUF file without changing types: several threads read ahead, one hashes and
writes."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from strata_pack.outputs import check_file_output, check_outputs
from strata_pack.progress import Progress, Silent
from strata_pack.weights.gguf.file import DEFAULT_ALIGNMENT, TensorInfo, align, encode_header
from strata_pack.weights.partial_file import partial_path, partial_writer
from strata_pack.weights.preflight import Stage, check_disk
from strata_pack.weights.tensor_source import RowReader, SourceTensor, TensorSource

CHUNK = 4 << 20
"""Bytes of output converted at a time: enough to amortize a call, few enough for the CPU's cache."""

_AHEAD = 2
"""Maximum number of chunks per thread that wait for the writer."""


class WrittenDict(TypedDict):
    """A ``ConvertResult`` as JSON; ``tensors`` is their number."""

    file: str
    size: int
    sha256: str
    tensors: int


@dataclass(frozen=True)
class ConvertResult:
    """The written file: ``size`` in bytes, ``tensor_types`` by tensor name in the order of the file."""

    path: Path
    size: int
    sha256: str
    tensor_types: Mapping[str, str]

    def to_dict(self) -> WrittenDict:
        return {"file": str(self.path), "size": self.size, "sha256": self.sha256, "tensors": len(self.tensor_types)}


@dataclass(frozen=True)
class _Chunk:
    data: npt.NDArray[np.uint8]
    padding: int


def write_gguf(
    source: TensorSource, out_path: Path, *, progress: Progress | None = None, threads: int | None = None
) -> ConvertResult:
    """Write all tensors of ``source`` in its order, atomically, after a check of the free disk space.

    Files of an interrupted run with the same output are removed first.
    """
    directory, offset = [], 0
    for tensor in source.tensors:
        directory.append(TensorInfo(tensor.name, tensor.shape, tensor.type, offset, tensor.nbytes))
        offset += align(tensor.nbytes, DEFAULT_ALIGNMENT)
    header = encode_header(source.metadata, directory)
    digest = hashlib.sha256()
    check_outputs((out_path, partial_path(out_path)), source.inputs.paths)
    check_file_output(out_path, force=True)
    with partial_writer(out_path) as file:
        check_disk([Stage("converted file", out_path, len(header) + offset)])
        task = (progress or Silent()).task(f"convert to {out_path.name}", total=len(header) + offset)
        for data in _pieces(source, header, threads or len(os.sched_getaffinity(0))):
            file.write(data)
            digest.update(data)
            task.advance(len(data))
        source.inputs.check_unchanged()
    task.done()
    types = {tensor.name: tensor.type.name for tensor in source.tensors}
    return ConvertResult(out_path, len(header) + offset, digest.hexdigest(), types)


def _pieces(source: TensorSource, header: bytes, threads: int) -> Iterator[Any]:
    yield header
    waiting: deque[Future[_Chunk]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for job in _jobs(source):
                waiting.append(pool.submit(_read, *job))
                if len(waiting) > threads * _AHEAD:
                    yield from _bytes_of(waiting.popleft().result())
            while waiting:
                yield from _bytes_of(waiting.popleft().result())
        finally:
            for future in waiting:
                future.cancel()


def _bytes_of(chunk: _Chunk) -> Iterator[Any]:
    yield chunk.data
    if chunk.padding:
        yield bytes(chunk.padding)


def _jobs(source: TensorSource) -> Iterator[tuple[RowReader, SourceTensor, int, int]]:
    for tensor in source.tensors:
        reader = source.rows(tensor)
        step = max(1, CHUNK * tensor.rows // max(tensor.nbytes, 1))
        for first in range(0, tensor.rows, step):
            yield reader, tensor, first, min(step, tensor.rows - first)


def _read(reader: RowReader, tensor: SourceTensor, first: int, count: int) -> _Chunk:
    data = np.empty(tensor.nbytes // tensor.rows * count, dtype=np.uint8)
    reader(first, count, data)
    last = first + count == tensor.rows
    return _Chunk(data, align(tensor.nbytes, DEFAULT_ALIGNMENT) - tensor.nbytes if last else 0)
