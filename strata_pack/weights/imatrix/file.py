"""Writes importance matrices as GGUF or ``.dat`` from raw sums, and reads them back for merging.

Source: ``save_imatrix``, ``save_imatrix_legacy`` and ``load_imatrix`` of llama.cpp's ``tools/imatrix``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from strata_pack.errors import BadInput
from strata_pack.files import atomic_writer
from strata_pack.llama.activations import Sums
from strata_pack.llama.ggml_types import GGMLQuantizationType, GGUFValueType
from strata_pack.weights.gguf.file import DEFAULT_ALIGNMENT, GgufFile, MetaValue, TensorInfo, align
from strata_pack.weights.gguf.file import encode_header as encode_gguf_header
from strata_pack.weights.gguf.tensor_info import MAX_TENSOR_NAME
from strata_pack.weights.quantize.imatrix import COUNTS, SUMS, read_imatrix

PLAIN = ".in_sum"
"""Suffix of the plain sums, which only statistics use."""
CHUNK = 512
"""Default tokens per chunk for files without that value."""
MOST = (1 << 31) - 1
"""Largest number of rows or chunks that is believed; ``.dat`` files count in 32 bits."""
_F32 = GGMLQuantizationType.F32


@dataclass(frozen=True)
class Collected:
    """The content of an imatrix file. ``datasets`` are file names without folders."""

    sums: Mapping[str, Sums]
    chunks: int
    chunk_size: int
    datasets: Sequence[str] = field(default=())


def write_imatrix(path: Path, collected: Collected) -> None:
    """Write ``collected`` atomically: in the old format if ``path`` ends in ``.dat``, else as GGUF."""
    if not collected.sums:
        raise BadInput("has no importances", where=path)
    parts = _dat_parts(collected) if path.suffix == ".dat" else _gguf_parts(collected)
    with atomic_writer(path) as file:
        file.writelines(parts)


def _gguf_parts(collected: Collected) -> list[bytes]:
    infos: list[TensorInfo] = []
    data: list[bytes] = []
    offset = 0
    for name, sums in sorted(collected.sums.items()):
        if len(name + SUMS) > MAX_TENSOR_NAME:
            raise BadInput(f"the name {name} is too long for an imatrix", remedy="write a .dat file")
        columns = sums.squares.size // sums.counts.size
        # A weight of several matrices with one count is written as one long row, as by llama-imatrix.
        for suffix, values, width in (
            (SUMS, sums.squares, columns),
            (COUNTS, sums.counts, 1),
            (PLAIN, sums.plain, columns),
        ):
            if values.size == 0:
                continue
            raw = _single(name, values)
            infos.append(TensorInfo.make(name + suffix, (width, values.size // width), _F32, offset))
            data.append(raw.ljust(align(len(raw), DEFAULT_ALIGNMENT), b"\0"))
            offset += len(data[-1])
    keys = {
        "general.type": MetaValue.string("imatrix"),
        "imatrix.datasets": MetaValue.array(GGUFValueType.STRING, list(collected.datasets)),
        "imatrix.chunk_count": MetaValue.uint32(collected.chunks),
        "imatrix.chunk_size": MetaValue.uint32(collected.chunk_size),
    }
    return [encode_gguf_header(keys, infos), *data]


def _dat_parts(collected: Collected) -> list[bytes]:
    """Return the old format: means times calls; an expert without any row counts as 1."""
    seen = {name: sums for name, sums in sorted(collected.sums.items()) if sums.counts.any()}
    parts = [struct.pack("<i", len(seen))]
    for name, sums in seen.items():
        calls = -(-int(sums.counts.max()) // collected.chunk_size)
        counts = np.repeat(sums.counts, sums.squares.size // sums.counts.size)
        means = np.where(counts > 0, sums.squares.reshape(-1) / np.maximum(counts, 1), 1.0)
        values = _single(name, means * calls)
        encoded = name.encode()
        parts.append(struct.pack("<i", len(encoded)) + encoded + struct.pack("<ii", calls, means.size) + values)
    dataset = ", ".join(collected.datasets).encode()
    parts.append(struct.pack("<ii", collected.chunks, len(dataset)) + dataset)
    return parts


def _single(name: str, values: npt.NDArray[Any]) -> bytes:
    """Return ``values`` in single precision; ``BadInput`` if one is too large for it."""
    with np.errstate(over="ignore"):
        single = values.astype("<f4")
    if not np.isfinite(single).all():
        raise BadInput(f"the sums of {name} are too large for an imatrix", remedy="leave out the damaged file")
    return single.tobytes()


def read_collected(path: Path) -> Collected:
    """Read an imatrix file back into sums; ``BadInput`` describes the fault.

    The old format has only means: its sums are those of ``chunks`` calls of 512 rows, without plain sums.
    """
    imatrix = read_imatrix(path)
    empty = np.zeros(0)
    if path.suffix != ".gguf" and not _is_gguf(path):
        calls = imatrix.chunks or 1
        sums = {
            name: Sums(entry.load().astype(np.float64).reshape(1, -1) * calls * CHUNK, empty, np.array([calls * CHUNK]))
            for name, entry in imatrix.entries.items()
        }
        return Collected(sums, calls, CHUNK, imatrix.datasets)
    sums = {}
    with GgufFile.open(path) as file:
        names = {info.name for info in file.tensors}
        for name in imatrix.entries:
            squares, counts = (_values(file, name + suffix) for suffix in (SUMS, COUNTS))
            plain = _values(file, name + PLAIN) if name + PLAIN in names else empty
            if plain.size not in (0, squares.size) or not np.isfinite(plain).all():
                plain = empty
            known = np.nan_to_num(counts.reshape(-1), nan=0.0, posinf=0.0, neginf=0.0)
            rows = np.rint(np.clip(known, 0, MOST)).astype(np.int64)
            sums[name] = Sums(squares, plain.reshape(squares.shape) if plain.size else plain, rows)
        chunk_size = file.integer("imatrix.chunk_size") or CHUNK
    return Collected(sums, imatrix.chunks or 0, chunk_size, imatrix.datasets)


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _values(file: GgufFile, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    info = file.tensor(name)
    values = np.frombuffer(file.tensor_bytes(info), "<f4").astype(np.float64)
    return values.reshape(-1, info.shape[0]) if len(info.shape) > 1 else values.reshape(1, -1)


def merge(parts: Sequence[Collected]) -> Collected:
    """Add several collections of one model; ``BadInput`` if shapes of a weight differ.

    Plain sums are kept for a weight if all parts have them.
    """
    total: dict[str, Sums] = {}
    for part in parts:
        for name, sums in part.sums.items():
            if name not in total:
                total[name] = Sums(sums.squares.copy(), sums.plain.copy(), sums.counts.copy())
                continue
            kept = total[name]
            if kept.squares.size != sums.squares.size:
                problem = f"{name} has {kept.squares.size} importances in one file and {sums.squares.size} in another"
                raise BadInput(problem, remedy="merge imatrix files of one model")
            kept.squares += sums.squares.reshape(kept.squares.shape)
            kept.plain = kept.plain + sums.plain if kept.plain.size == sums.plain.size else np.zeros(0)
            if kept.counts.size != sums.counts.size:
                # One of them has a single count for all experts.
                most = max(kept.counts.size, sums.counts.size)
                kept.counts, other = (np.broadcast_to(c, most).copy() for c in (kept.counts, sums.counts))
                kept.counts += other
            else:
                kept.counts += sums.counts
    names = [name for part in parts for name in part.datasets]
    chunks = min(sum(part.chunks for part in parts), MOST)
    return Collected(total, chunks, parts[0].chunk_size, tuple(dict.fromkeys(names)))
