"""Stores a reference's logits in a file, for every model that is compared with it.

A row is stored as log probabilities: 16 bits each between the largest and 40 nats below it, and the likeliest 64
exactly, and its checksum. The error of a divergence is the small probability of the other tokens times a rounding error
of 0.0003 nats. A file has half the bytes of full logits and is written atomically.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.files import atomic_writer, free_bytes
from strata_pack.llama.logits import LogitsHeader, LogitStream
from strata_pack.progress import Progress

MAGIC = b"STRATALG"
VERSION = 3
"""The version of header and rows; part of every key."""
EXACT = 64
"""Number of tokens of a row that are stored exactly."""
DEPTH = 40.0
"""Nats below the likeliest token at which probabilities are cut off: exp(-40) is negligible."""
LEVELS = 65535
_SIZE = struct.Struct("<Q")
_HEADER_LIMIT = 256 << 20
_REMOVE = "remove it and run again"


def row_bytes(n_vocab: int) -> int:
    """Return the bytes of one row."""
    return _layout(n_vocab).itemsize


def _layout(n_vocab: int) -> np.dtype[np.void]:
    exact = min(EXACT, n_vocab)
    fields = [("scale", "<f4", 2), ("levels", "<u2", n_vocab), ("places", "<u4", exact), ("values", "<f4", exact)]
    return np.dtype([*fields, ("crc", "<u4")])


def write_logits(path: Path, stream: LogitStream, key: str, progress: Progress, label: str) -> None:
    """Write all logits of ``stream`` to ``path``; ``EnvironmentFailure`` if the disk has no room for them."""
    header = stream.header
    rows = len(header.targets)
    needed, free = rows * row_bytes(header.n_vocab), free_bytes(path.parent)
    if needed > free:
        problem = f"the logits of {rows} positions need {needed / 1e6:.0f} MB and {free / 1e6:.0f} MB are free"
        raise EnvironmentFailure(problem, where=path.parent, remedy="name another folder with --keep-logits")
    head = json.dumps({"key": key, **asdict(header)}).encode()
    task = progress.task(label, rows, "tokens")
    with atomic_writer(path) as file:
        file.write(MAGIC + _SIZE.pack(len(head)) + head)
        for block in stream.blocks():
            _write(file, block)
            task.advance(len(block))
    task.done()


def _write(file: IO[bytes], logits: npt.NDArray[np.float32]) -> None:
    logs = logits.astype(np.float64)
    if np.isnan(logs).any() or np.isposinf(logs).any():
        # NaN and infinities are stored; the comparison that reads them raises.
        logs[:, 0] = np.nan
    logs -= logs.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
        top = logs.max(axis=1, keepdims=True)
        low = np.maximum(logs.min(axis=1, keepdims=True), top - DEPTH)
        step = np.maximum(top - low, 1e-9) / LEVELS
        levels = np.nan_to_num(np.rint((np.maximum(logs, low) - low) / step)).astype("<u2")
    exact = min(EXACT, logs.shape[1])
    places = np.argpartition(-logs, exact - 1, axis=1)[:, :exact].astype("<u4")
    values = np.take_along_axis(logs, places.astype(np.int64), 1).astype("<f4")
    scales = np.hstack([low, step]).astype("<f4")
    for row in range(len(logs)):
        data = scales[row].tobytes() + levels[row].tobytes() + places[row].tobytes() + values[row].tobytes()
        file.write(data + zlib.crc32(data).to_bytes(4, "little"))


class LogitsFile:
    """Logits that ``write_logits`` has written. ``header`` is that of their source."""

    def __init__(self, path: Path, header: LogitsHeader, start: int) -> None:
        self.path, self.header, self._start = path, header, start

    @classmethod
    def open(cls, path: Path, key: str) -> LogitsFile | None:
        """Return the logits in ``path``, ``None`` if there are none or they have another ``key``."""
        try:
            with path.open("rb") as file:
                if file.read(len(MAGIC)) != MAGIC:
                    raise BadInput("is not a file of kept logits", where=path, remedy="name another folder")
                (size,) = _SIZE.unpack(file.read(_SIZE.size))
                head = json.loads(file.read(min(size, _HEADER_LIMIT)))
                start = file.tell()
            if head.pop("key") != key:
                return None
            head["windows"] = tuple(tuple(window) for window in head["windows"])
            header = LogitsHeader(**head)
            rows = len(header.targets) * row_bytes(header.n_vocab)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
            raise BadInput(f"is damaged ({error})", where=path, remedy=_REMOVE) from None
        if path.stat().st_size != start + rows:
            raise BadInput("is truncated", where=path, remedy=_REMOVE)
        return cls(path, header, start)

    def blocks(self) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the log probabilities as arrays of shape (up to 16, ``n_vocab``); ``BadInput`` for damaged rows."""
        layout = _layout(self.header.n_vocab)
        with self.path.open("rb") as file:
            file.seek(self._start)
            for size in self.header.blocks:
                rows = np.fromfile(file, layout, size)
                if len(rows) < size:
                    raise BadInput("became shorter while it was read", where=self.path)
                wrong = any(zlib.crc32(row.tobytes()[:-4]) != row["crc"] for row in rows)
                if wrong or (rows["places"] >= self.header.n_vocab).any():
                    raise BadInput("is damaged (a checksum differs)", where=self.path, remedy=_REMOVE)
                low, step = rows["scale"][:, :1], rows["scale"][:, 1:]
                logs = low + rows["levels"].astype(np.float32) * step
                np.put_along_axis(logs, rows["places"].astype(np.int64), rows["values"], 1)
                yield logs
