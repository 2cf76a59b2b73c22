"""Rows in, quantized rows out: the pipeline of threads between the source and the file.

Work is cut into chunks of a few rows (2 MiB as floats, so that a chunk stays in a core's cache). Threads read, convert,
quantize and write chunks in any order; the results come out in order, for the hash. A fixed set of buffers bounds the
memory.
"""

from __future__ import annotations

import os
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from strata_pack.errors import BadInput
from strata_pack.llama.ggml import FLOAT_TYPES, Bytes, Floats, row_nbytes
from strata_pack.llama.quantizer import Quantizer, differing_row
from strata_pack.weights.quantize.plan import PlannedTensor
from strata_pack.weights.tensor_source import RowReader

RowWriter = Callable[[int, Bytes], None]
"""``write(start, data)`` puts ``data`` into the file, ``start`` bytes into the tensor. Safe to call from several
threads."""
CHUNK_WEIGHTS = 1 << 19
"""Weights in a chunk: 2 MiB as 32-bit floats."""
LARGEST_HALF = 65504.0
"""What an infinity counts as when it has to go into a block type with a 16-bit scale."""


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class TensorJob:
    """One tensor to be written, with what its rows need."""

    planned: PlannedTensor
    read: RowReader
    importances: Floats | None
    """One row a matrix, or ``None``."""
    write: RowWriter

    def chunks(self) -> Iterator[Chunk]:
        """Cut the tensor into chunks; none reaches over two matrices that have different importances."""
        tensor = self.planned.source
        most = max(1, CHUNK_WEIGHTS // tensor.row_length)
        span = tensor.rows if self.importances is None else tensor.rows // tensor.matrices
        for start in range(0, tensor.rows, span):
            for first in range(start, start + span, most):
                yield Chunk(self, first, min(most, start + span - first), start // span)


@dataclass(frozen=True)
class Chunk:
    """A few rows of one tensor."""

    job: TensorJob
    first: int
    rows: int
    matrix: int

    @property
    def source_bytes(self) -> int:
        return self.rows * row_nbytes(self.job.planned.source.type, self.job.planned.source.row_length)

    @property
    def is_last(self) -> bool:
        """Whether the tensor ends with it."""
        return self.first + self.rows == self.job.planned.source.rows


class _Buffers:
    """The memory of one chunk under way; grows to the longest row and is used again and again."""

    def __init__(self) -> None:
        self._arrays = [np.empty(0, np.uint8) for _ in range(3)]

    def take(self, index: int, size: int) -> Bytes:
        if self._arrays[index].size < size:
            self._arrays[index] = np.empty(size, np.uint8)
        return self._arrays[index][:size]


class Pipeline:
    """A pool of threads that turns chunks into bytes. Counts the NaN and infinities it was allowed to pass."""

    def __init__(self, quantizer: Quantizer, threads: int, *, allow_nonfinite: bool, where: str) -> None:
        """``threads`` do the work with ``quantizer``; ``where`` names the source in errors."""
        self._quantizer, self._ggml = quantizer, quantizer.ggml
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="quantize")
        self._allow, self._where = allow_nonfinite, where
        self._free: queue.SimpleQueue[_Buffers] = queue.SimpleQueue()
        self._slots = threads + 2
        for _ in range(self._slots):
            self._free.put(_Buffers())
        self.nonfinite: dict[str, int] = {}

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def run(self, jobs: Iterable[TensorJob]) -> Iterator[tuple[Chunk, Bytes]]:
        """Yield every chunk with its bytes, in order, when they are written; valid until the next one is asked for.

        Raises ``BadInput`` for a NaN or an infinity, naming its place.
        """
        waiting: deque[tuple[Chunk, _Buffers, Future[tuple[Bytes, int]]]] = deque()
        for job in jobs:
            for chunk in job.chunks():
                if len(waiting) == self._slots:
                    yield from self._oldest(waiting)
                buffers = self._free.get()
                waiting.append((chunk, buffers, self._pool.submit(self._work, chunk, buffers)))
        while waiting:
            yield from self._oldest(waiting)

    def _oldest(
        self, waiting: deque[tuple[Chunk, _Buffers, Future[tuple[Bytes, int]]]]
    ) -> Iterator[tuple[Chunk, Bytes]]:
        chunk, buffers, future = waiting.popleft()
        data, nonfinite = future.result()
        if nonfinite:
            name = chunk.job.planned.name
            self.nonfinite[name] = self.nonfinite.get(name, 0) + nonfinite
        yield chunk, data
        self._free.put(buffers)

    def _work(self, chunk: Chunk, buffers: _Buffers) -> tuple[Bytes, int]:
        """Write the chunk; return its bytes in the planned type, and how many values were not finite."""
        data, nonfinite = self._convert(chunk, buffers)
        chunk.job.write(chunk.first * row_nbytes(chunk.job.planned.type, chunk.job.planned.source.row_length), data)
        return data, nonfinite

    def _convert(self, chunk: Chunk, buffers: _Buffers) -> tuple[Bytes, int]:
        planned, ggml = chunk.job.planned, self._ggml
        tensor, target = planned.source, planned.type
        raw = buffers.take(0, chunk.source_bytes)
        chunk.job.read(chunk.first, chunk.rows, raw)
        weights = self._finite_floats(chunk, raw, buffers) if planned.changed else None
        sound, nonfinite = True, 0
        if weights is None:
            sound = not ggml.can_dequantize(tensor.type) or ggml.is_finite(tensor.type, raw)
            if not sound and not self._allow:
                raise self._refusal(chunk, self._floats(chunk, raw, buffers), tensor.type.name)
            if not planned.changed:
                return raw, 0 if sound else _count_nonfinite(self._floats(chunk, raw, buffers))
            weights = self._floats(chunk, raw, buffers)
            # Sound blocks of a type with 8-bit exponents may stand for infinities still.
            sound = sound and (tensor.type in FLOAT_TYPES or bool(np.isfinite(weights).all()))
        if not sound:
            nonfinite = _count_nonfinite(weights)
            if target not in FLOAT_TYPES:
                np.nan_to_num(weights, copy=False, nan=0.0, posinf=LARGEST_HALF, neginf=-LARGEST_HALF)
        out = buffers.take(2, chunk.rows * row_nbytes(target, tensor.row_length))
        importance = None if chunk.job.importances is None else chunk.job.importances[chunk.matrix]
        if sound:
            row = self._quantizer.quantize_chunk(target, weights, out, importance, first_row=chunk.first)
            if row is not None:
                raise differing_row(planned.name, target, row)
        else:
            ggml.quantize_chunk(target, weights, out, importance)
        if not self._allow and not ggml.is_finite(target, out):
            result = np.empty(weights.shape, np.float32)
            ggml.to_f32(target, out, result)
            raise self._refusal(chunk, result, f"{target.name}, which cannot hold it")
        return out, nonfinite

    def _finite_floats(self, chunk: Chunk, raw: Bytes, buffers: _Buffers) -> Floats | None:
        """Return the chunk's weights if a kernel can turn them into floats and all are finite."""
        tensor = chunk.job.planned.source
        if not self._quantizer.reads(tensor.type):
            return None
        weights = self._room(chunk, buffers)
        return weights if self._quantizer.finite_floats(tensor.type, raw, weights) else None

    def _room(self, chunk: Chunk, buffers: _Buffers) -> Floats:
        shape = (chunk.rows, chunk.job.planned.source.row_length)
        return buffers.take(1, 4 * shape[0] * shape[1]).view(np.float32).reshape(shape)

    def _floats(self, chunk: Chunk, raw: Bytes, buffers: _Buffers) -> Floats:
        tensor = chunk.job.planned.source
        if planned_is_f32(chunk):
            return raw.view(np.float32).reshape(chunk.rows, tensor.row_length)
        weights = self._room(chunk, buffers)
        self._ggml.to_f32(tensor.type, raw, weights)
        return weights

    def _refusal(self, chunk: Chunk, weights: Floats, type_name: str) -> BadInput:
        row, column = np.argwhere(~np.isfinite(weights))[0] if not np.isfinite(weights).all() else (0, 0)
        kind = "a NaN" if np.isnan(weights[row, column]) else "an infinity"
        return BadInput(
            f"{chunk.job.planned.name} has {kind} in row {chunk.first + int(row)}, column {int(column)} "
            f"(as {type_name})",
            where=self._where,
            remedy="the weights are damaged; fetch them again, or go on with --allow-nonfinite",
        )


def planned_is_f32(chunk: Chunk) -> bool:
    """Return whether the chunk's source bytes are floats already."""
    return chunk.job.planned.source.type.name == "F32"


def _count_nonfinite(weights: Floats) -> int:
    return int(weights.size - np.count_nonzero(np.isfinite(weights)))
