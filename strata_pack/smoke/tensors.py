"""Runs ``tensors``: reads every tensor once, in pieces, and finds invalid values.

A grammar makes even a broken model write the expected text, so the weights are scanned directly: for NaN and infinite
values in plain tensors, NaN and infinite block scales in quantized ones, tensors of zeros, a row with a value far
beyond those of all other rows, and norms that are negative. The position of the scales in a block is ggml's layout
(``ggml-common.h``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from strata_pack.llama.ggml_types import GGML_QUANT_SIZES
from strata_pack.progress import Progress, Silent
from strata_pack.weights.gguf.file import GgufFile, TensorInfo

PIECE = 16 << 20
"""Bytes of a tensor that are scanned at a time."""

SHOWN = 5

BEYOND_MEDIAN, BEYOND_SECOND = 256.0, 16.0
"""A row is faulty if its largest value or scale exceeds the median of those of all rows, and the second largest of
them, by these factors. In SmolLM2-135M, the greatest are 18 and 4.4, in any of eight quantizations."""

MOSTLY = 0.9
"""The part of a norm's weights that makes it faulty if they are negative: training begins with ones."""

MANY_ROWS = 1 << 23
"""Rows above which a tensor's largest values are not compared, to keep memory small."""

FloatKind = Literal["f16", "bf16", "f32", "f64", "e8m0", "ue4m3", "iq1_m"]

_NOT_FINITE: Mapping[FloatKind, tuple[str, int]] = {
    "f16": ("<u2", 0x7C00),
    "bf16": ("<u2", 0x7F80),
    "f32": ("<u4", 0x7F800000),
    "f64": ("<u8", 0x7FF0000000000000),
}
"""For each number format, its dtype and exponent bits: if all are set, the number is NaN or infinite (IEEE 754)."""

_MAGNITUDE: Mapping[FloatKind, int] = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0x7FFFFFFFFFFFFFFF}

_WIDTHS: Mapping[FloatKind, int] = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "e8m0": 1, "ue4m3": 1, "iq1_m": 8}

_SCALES: Mapping[str, tuple[tuple[int, FloatKind], ...]] = {
    "F16": ((0, "f16"),),
    "BF16": ((0, "bf16"),),
    "F32": ((0, "f32"),),
    "F64": ((0, "f64"),),
    "Q4_0": ((0, "f16"),),
    "Q5_0": ((0, "f16"),),
    "Q8_0": ((0, "f16"),),
    "Q1_0": ((0, "f16"),),
    "Q2_0": ((0, "f16"),),
    "Q4_1": ((0, "f16"), (2, "f16")),
    "Q5_1": ((0, "f16"), (2, "f16")),
    "Q8_1": ((0, "f32"), (4, "f32")),
    "Q2_K": ((80, "f16"), (82, "f16")),
    "Q3_K": ((108, "f16"),),
    "Q6_K": ((208, "f16"),),
    "Q8_K": ((0, "f32"),),
    "Q4_K": ((0, "f16"), (2, "f16")),
    "Q5_K": ((0, "f16"), (2, "f16")),
    "IQ2_XXS": ((0, "f16"),),
    "IQ2_XS": ((0, "f16"),),
    "IQ2_S": ((0, "f16"),),
    "IQ1_S": ((0, "f16"),),
    "IQ3_XXS": ((0, "f16"),),
    "IQ3_S": ((0, "f16"),),
    "IQ4_NL": ((0, "f16"),),
    "IQ4_XS": ((0, "f16"),),
    "IQ1_M": ((48, "iq1_m"),),
    "TQ1_0": ((52, "f16"),),
    "TQ2_0": ((64, "f16"),),
    "MXFP4": ((0, "e8m0"),),
    "NVFP4": ((0, "ue4m3"), (1, "ue4m3"), (2, "ue4m3"), (3, "ue4m3")),
}
"""The block scales by type: offset in bytes from the block's start, and number format. For plain types a block is one
value."""


@dataclass(frozen=True)
class Fault:
    """The fault of one tensor. ``rows`` are the first affected rows, ``count`` the number of affected blocks or
    values."""

    tensor: str
    problem: str
    rows: tuple[int, ...] = ()
    count: int = 0

    def __str__(self) -> str:
        if not self.rows:
            return f"{self.tensor} {self.problem}"
        more = f" ({self.count:,} in all)" if self.count > 1 else ""
        return f"{self.tensor} {self.problem} in row {', '.join(map(str, self.rows))}{more}"


@dataclass(frozen=True)
class Scan:
    """The result of a scan: number of tensors and bytes, faults, and the types that it cannot read."""

    tensors: int
    size: int
    faults: tuple[Fault, ...]
    unread: tuple[str, ...]


def scan(files: list[Path], progress: Progress | None = None) -> Scan:
    """Read every tensor of ``files`` once and return the faults. Memory: a few times ``PIECE``."""
    faults: list[Fault] = []
    unread: set[str] = set()
    tensors = size = 0
    for path in files:
        with GgufFile.open(path) as gguf:
            task = (progress or Silent()).task(f"scanning {path.name}", sum(info.nbytes for info in gguf.tensors))
            for info in gguf.tensors:
                tensors, size = tensors + 1, size + info.nbytes
                if info.type.name in _SCALES:
                    data = gguf.tensor_bytes(info)
                    try:
                        faults += tensor_faults(info, data)
                    finally:
                        data.release()
                elif info.type.name not in ("I8", "I16", "I32", "I64"):
                    unread.add(info.type.name)
                task.advance(info.nbytes)
            task.done()
    return Scan(tensors, size, tuple(faults), tuple(sorted(unread)))


def tensor_faults(info: TensorInfo, data: memoryview) -> Iterator[Fault]:
    """Yield the faults of one tensor: non-finite values, with their rows, or only zeros."""
    elements, block_size = GGML_QUANT_SIZES[info.type]
    row_blocks = max(info.shape[0] // elements, 1) if info.shape else 1
    blocks = np.frombuffer(data, np.uint8).reshape(-1, block_size)
    step = max(PIECE // block_size, 1)
    rows: list[int] = []
    count, alive = 0, False
    largest: list[npt.NDArray[np.float32]] = []
    for start in range(0, len(blocks), step):
        piece = blocks[start : start + step]
        for offset, kind in _SCALES[info.type.name]:
            bad, nonzero = _look(piece[:, offset : offset + _WIDTHS[kind]], kind)
            alive = alive or nonzero
            if bad.any():
                found = np.flatnonzero(bad)
                count += len(found)
                rows += sorted({int(start + place) // row_blocks for place in found[:1000]})
        largest.append(_magnitudes(piece, info.type.name))
    what = "values" if elements == 1 else "block scales"
    if count:
        yield Fault(info.name, f"has {what} that are NaN or infinite", tuple(sorted(set(rows)))[:SHOWN], count)
    elif not alive and len(blocks) and not _may_be_zero(info):
        yield Fault(info.name, f"is zero in all its {info.elements:,} weights")
    elif len(info.shape) > 1 and len(blocks) // row_blocks <= MANY_ROWS:
        yield from _outlier(info.name, np.concatenate(largest).reshape(-1, row_blocks).max(axis=1), what)
    elif len(info.shape) == 1 and info.name.endswith("norm.weight") and info.type.name == "F32":
        negative = int((blocks.view("<f4") < 0).sum())
        if negative > MOSTLY * info.elements:
            yield Fault(info.name, f"is negative in {negative:,} of its {info.elements:,} weights")


def _magnitudes(blocks: npt.NDArray[np.uint8], kind: str) -> npt.NDArray[np.float32]:
    """Return the absolute value of each block's first scale (of a plain type: of each value); 1 if it is not read."""
    offset, number = _SCALES[kind][0]
    field = np.ascontiguousarray(blocks[:, offset : offset + _WIDTHS[number]])
    if number == "bf16":
        field = (field.view("<u2").astype("<u4") << 16).view(np.uint8)
    dtype = {"f16": "<f2", "bf16": "<f4", "f32": "<f4", "f64": "<f8"}.get(number)
    if dtype is None:
        return np.ones(len(blocks), np.float32)
    values: npt.NDArray[np.float32] = np.abs(field.view(dtype)[:, 0]).astype(np.float32)
    return values


def _outlier(tensor: str, rows: npt.NDArray[np.float32], what: str) -> Iterator[Fault]:
    """Yield the row whose largest value is far beyond those of all other ``rows``."""
    if len(rows) < 8:
        return
    second, first = np.partition(rows, -2)[-2:]
    median = float(np.median(rows))
    if median > 0 and first > BEYOND_MEDIAN * median and first > BEYOND_SECOND * second:
        row = int(rows.argmax())
        yield Fault(tensor, f"has {what} {first / median:,.0f} times those of other rows", (row,), 1)


def _look(field: npt.NDArray[np.uint8], kind: FloatKind) -> tuple[npt.NDArray[np.bool_], bool]:
    """Return which of the numbers in ``field`` (rows of bytes) are not finite, and whether any is nonzero."""
    if kind == "e8m0":  # a power of two, never zero
        return field[:, 0] == 0xFF, True
    if kind == "ue4m3":
        return (field[:, 0] & 0x7F) == 0x7F, bool((field[:, 0] & 0x7F).any())
    if kind == "iq1_m":  # the scale is spread over the upper four bits of four numbers
        parts = np.ascontiguousarray(field).view("<u2")
        scale = (parts[:, 0] >> 12) | ((parts[:, 1] >> 8) & 0x00F0) | ((parts[:, 2] >> 4) & 0x0F00)
        return _exponent(scale | (parts[:, 3] & 0xF000), "f16")
    return _exponent(np.ascontiguousarray(field).view(_NOT_FINITE[kind][0])[:, 0], kind)


def _exponent(numbers: npt.NDArray[Any], kind: FloatKind) -> tuple[npt.NDArray[np.bool_], bool]:
    mask = numbers.dtype.type(_NOT_FINITE[kind][1])
    return (numbers & mask) == mask, bool((numbers & numbers.dtype.type(_MAGNITUDE[kind])).any())


def _may_be_zero(info: TensorInfo) -> bool:
    """Return whether all zeros are valid: for biases, and for a tensor with one weight."""
    return info.name.endswith(".bias") or info.elements == 1
