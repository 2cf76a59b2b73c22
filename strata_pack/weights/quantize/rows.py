"""Runs the pipeline of threads that reads, quantizes and writes rows.

Tensors are split into chunks of a few rows (2 MiB as floats, so that a chunk fits in a core's cache). Threads read,
convert, quantize and write chunks in any order; results are yielded in order, for the hash. A fixed set of buffers
bounds the memory.
"""

from __future__ import annotations

import os
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from strata_pack.errors import BadInput
from strata_pack.llama.ggml import FLOAT_TYPES, Bytes, Floats, row_nbytes
from strata_pack.llama.quantizer import LARGEST_ON_TABLES, Quantizer, differing_row, is_too_large
from strata_pack.weights.quantize.plan import PlannedTensor
from strata_pack.weights.tensor_source import RowReader, SourceTensor

RowWriter = Callable[[int, Bytes], None]
"""``write(start, data)`` writes ``data`` to the file, ``start`` bytes after the start of the tensor. Thread-safe."""
Written = tuple[dict[int, Bytes], int]
"""The bytes of a chunk by output, and the number of its non-finite values."""
CHUNK_WEIGHTS = 1 << 19
"""Number of weights in a chunk: 2 MiB as 32-bit floats."""
LARGEST_HALF = 65504.0
"""The value that replaces an infinity in a block type with a 16-bit scale."""


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class RowTarget:
    """One output of a tensor: its planned type, the importances (one row per matrix, or ``None``) and its writer."""

    planned: PlannedTensor
    importances: Floats | None
    write: RowWriter


@dataclass(frozen=True)
class TensorJob:
    """One tensor of the source, and the outputs that still lack it, by index."""

    source: SourceTensor
    read: RowReader
    targets: Mapping[int, RowTarget]

    def chunks(self) -> Iterator[Chunk]:
        """Split the tensor into chunks; none spans two matrices with different importances."""
        tensor = self.source
        most = max(1, CHUNK_WEIGHTS // tensor.row_length)
        whole = all(target.importances is None for target in self.targets.values())
        span = tensor.rows if whole else tensor.rows // tensor.matrices
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
        return self.rows * row_nbytes(self.job.source.type, self.job.source.row_length)

    @property
    def is_last(self) -> bool:
        """Whether it is the tensor's last chunk."""
        return self.first + self.rows == self.job.source.rows


class _Buffers:
    """The buffers of one chunk in progress; they grow to the longest row and are reused.

    Buffer 0 has the source's bytes, 1 the floats, 2 and up the outputs.
    """

    def __init__(self, outputs: int) -> None:
        self._arrays = [np.empty(0, np.uint8) for _ in range(2 + outputs)]

    def take(self, index: int, size: int) -> Bytes:
        if self._arrays[index].size < size:
            self._arrays[index] = np.empty(size, np.uint8)
        return self._arrays[index][:size]


class Pipeline:
    """A pool of threads that quantizes chunks. It counts the allowed NaN and infinite values."""

    def __init__(
        self, quantizer: Quantizer, threads: int, *, outputs: int = 1, allow_nonfinite: bool, where: str
    ) -> None:
        """``threads`` do the work with ``quantizer``; ``where`` names the source in errors."""
        self._quantizer, self._ggml = quantizer, quantizer.ggml
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="quantize")
        self._allow, self._where = allow_nonfinite, where
        self._free: queue.SimpleQueue[_Buffers] = queue.SimpleQueue()
        self._slots = threads + 2
        for _ in range(self._slots):
            self._free.put(_Buffers(outputs))
        self.nonfinite: list[dict[str, int]] = [{} for _ in range(outputs)]

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def run(self, jobs: Iterable[TensorJob]) -> Iterator[tuple[Chunk, Mapping[int, Bytes]]]:
        """Yield every chunk with its bytes by output, in order, after they are written; the bytes are valid until the
        next iteration.

        Raises ``BadInput`` for a NaN or an infinity, with its position.
        """
        waiting: deque[tuple[Chunk, _Buffers, Future[Written]]] = deque()
        for job in jobs:
            for chunk in job.chunks():
                if len(waiting) == self._slots:
                    yield from self._oldest(waiting)
                buffers = self._free.get()
                waiting.append((chunk, buffers, self._pool.submit(self._work, chunk, buffers)))
        while waiting:
            yield from self._oldest(waiting)

    def _oldest(
        self, waiting: deque[tuple[Chunk, _Buffers, Future[Written]]]
    ) -> Iterator[tuple[Chunk, Mapping[int, Bytes]]]:
        chunk, buffers, future = waiting.popleft()
        data, nonfinite = future.result()
        if nonfinite:
            name = chunk.job.source.name
            for output in data:
                counts = self.nonfinite[output]
                counts[name] = counts.get(name, 0) + nonfinite
        yield chunk, data
        self._free.put(buffers)

    def _work(self, chunk: Chunk, buffers: _Buffers) -> Written:
        """Write the chunk to every output; return its bytes by output, and the number of non-finite values."""
        data, nonfinite = self._convert(chunk, buffers)
        for output, written in data.items():
            target = chunk.job.targets[output]
            target.write(chunk.first * row_nbytes(target.planned.type, chunk.job.source.row_length), written)
        return data, nonfinite

    def _convert(self, chunk: Chunk, buffers: _Buffers) -> Written:
        tensor, ggml, targets = chunk.job.source, self._ggml, chunk.job.targets
        raw = buffers.take(0, chunk.source_bytes)
        chunk.job.read(chunk.first, chunk.rows, raw)
        data = {output: raw for output, target in targets.items() if not target.planned.changed}
        weights = self._finite_floats(chunk, raw, buffers) if len(data) < len(targets) else None
        sound, nonfinite = True, 0
        if weights is None:
            sound = not ggml.can_dequantize(tensor.type) or ggml.is_finite(tensor.type, raw)
            if not sound and not self._allow:
                raise self._refusal(chunk, self._floats(chunk, raw, buffers), tensor.type.name)
            if len(data) < len(targets) or not sound:
                weights = self._floats(chunk, raw, buffers)
                # Valid blocks of a type with 8-bit exponents may still represent infinities.
                sound = sound and (tensor.type in FLOAT_TYPES or bool(np.isfinite(weights).all()))
                nonfinite = 0 if sound else _count_nonfinite(weights)
        if weights is not None:
            # Float types first, because NaN and infinities are then replaced for block types.
            for blocks in (False, True):
                chosen = [
                    (output, target)
                    for output, target in targets.items()
                    if target.planned.changed and (target.planned.type not in FLOAT_TYPES) is blocks
                ]
                if blocks and chosen and not sound:
                    # A copy, because an output that keeps the source's floats has not been written yet.
                    weights = np.nan_to_num(weights, nan=0.0, posinf=LARGEST_HALF, neginf=-LARGEST_HALF)
                for output, target in chosen:
                    size = chunk.rows * row_nbytes(target.planned.type, tensor.row_length)
                    out = buffers.take(2 + output, size)
                    self._quantize(chunk, target, weights, out, sound=sound)
                    data[output] = out
        return data, nonfinite

    def _quantize(self, chunk: Chunk, target: RowTarget, weights: Floats, out: Bytes, *, sound: bool) -> None:
        type, ggml = target.planned.type, self._ggml
        importance = None if target.importances is None else target.importances[chunk.matrix]
        if is_too_large(type, weights, importance):
            raise BadInput(
                f"{chunk.job.source.name} has weights or importances above {LARGEST_ON_TABLES:g}, which ggml cannot "
                f"quantize as {type.name}",
                where=self._where,
                remedy="look for damage in model and imatrix, or choose another type for this tensor",
            )
        if sound:
            row = self._quantizer.quantize_chunk(type, weights, out, importance, first_row=chunk.first)
            if row is not None:
                raise differing_row(chunk.job.source.name, type, row)
        else:
            ggml.quantize_chunk(type, weights, out, importance)
        if not self._allow and not ggml.is_finite(type, out):
            result = np.empty(weights.shape, np.float32)
            ggml.to_f32(type, out, result)
            raise self._refusal(chunk, result, f"{type.name}, which cannot hold it")

    def _finite_floats(self, chunk: Chunk, raw: Bytes, buffers: _Buffers) -> Floats | None:
        """Return the chunk's weights if a kernel can convert them to floats and all are finite."""
        tensor = chunk.job.source
        if not self._quantizer.reads(tensor.type):
            return None
        weights = self._room(chunk, buffers)
        return weights if self._quantizer.finite_floats(tensor.type, raw, weights) else None

    def _room(self, chunk: Chunk, buffers: _Buffers) -> Floats:
        shape = (chunk.rows, chunk.job.source.row_length)
        return buffers.take(1, 4 * shape[0] * shape[1]).view(np.float32).reshape(shape)

    def _floats(self, chunk: Chunk, raw: Bytes, buffers: _Buffers) -> Floats:
        tensor = chunk.job.source
        if planned_is_f32(chunk):
            return raw.view(np.float32).reshape(chunk.rows, tensor.row_length)
        weights = self._room(chunk, buffers)
        self._ggml.to_f32(tensor.type, raw, weights)
        return weights

    def _refusal(self, chunk: Chunk, weights: Floats, type_name: str) -> BadInput:
        row, column = np.argwhere(~np.isfinite(weights))[0] if not np.isfinite(weights).all() else (0, 0)
        kind = "a NaN" if np.isnan(weights[row, column]) else "an infinity"
        return BadInput(
            f"{chunk.job.source.name} has {kind} in row {chunk.first + int(row)}, column {int(column)} "
            f"(as {type_name})",
            where=self._where,
            remedy="the weights are damaged; fetch them again, or accept them with --allow-nonfinite",
        )


def planned_is_f32(chunk: Chunk) -> bool:
    """Return whether the chunk's source bytes are floats already."""
    return chunk.job.source.type.name == "F32"


def _count_nonfinite(weights: Floats) -> int:
    return int(weights.size - np.count_nonzero(np.isfinite(weights)))
