"""Quantizes each type with the fastest verified code: a kernel of this project, or ggml.

A kernel is used for a type only after it has written the same bytes as ggml for a probe: on x86-64 compared with the
embedded library at run time; elsewhere, and for types with search tables, which take that library seconds, with its
recorded hashes from x86-64 (builds for other processors fuse multiplications and additions and write other bytes).
During a run, ggml checks a sample of the rows.
"""

from __future__ import annotations

import hashlib
import platform
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypedDict

import numpy as np

from strata_pack.errors import EnvironmentFailure
from strata_pack.llama.ggml import EXPONENT_BITS, TABLE_TYPES, Bytes, Floats, Ggml, row_nbytes
from strata_pack.llama.ggml_types import GGMLQuantizationType as Q
from strata_pack.llama.kernels import PLAIN, VERSION, WEIGHED, Kernels, Missing, find_kernels
from strata_pack.llama.probe import PROBE_HASHES, kernel_probe

KernelChoice = Literal["auto", "ggml"]
QuantizerEngine = Literal["kernel", "ggml"]

RECHECK_EVERY: Mapping[Q, int] = {Q.IQ4_NL: 256, Q.IQ4_XS: 256}
"""Interval of the rows that ggml checks. It takes 30 times a kernel's time for IQ4, 10 times for others."""
RECHECK_DEFAULT = 64
LARGEST_ON_TABLES = 1e12
"""The largest weight or importance for types with search tables; above, the weighed square of one may overflow."""


class KernelEntry(TypedDict):
    """The manifest's entry of kernels: their version (``None`` without any) and the quantizing code by type."""

    version: int | None
    types: dict[str, QuantizerEngine]


@dataclass(frozen=True)
class KernelState:
    """The state of the kernels on this machine. ``differing`` names types whose probe failed, such as "Q4_K"."""

    name: str | None
    source: str | None
    reason: str | None
    types: tuple[str, ...]
    differing: tuple[str, ...]


class Quantizer:
    """Quantizes with ggml and the kernels. All methods may be called from several threads at once."""

    def __init__(self, ggml: Ggml, kernels: Kernels | Missing, *, is_oracle: bool | None = None) -> None:
        """``is_oracle``: ggml writes the bytes of x86-64 here (default: on x86-64 machines)."""
        self.ggml = ggml
        self.kernels = kernels if isinstance(kernels, Kernels) else None
        self.reason = kernels.reason if isinstance(kernels, Missing) else None
        self._is_oracle = platform.machine() in ("x86_64", "AMD64") if is_oracle is None else is_oracle
        self._proved: dict[tuple[Q, bool], bool] = {}
        self._readers: dict[Q, bool] = {}
        self._lock = threading.Lock()

    @classmethod
    @cache
    def load(cls, choice: KernelChoice = "auto") -> Quantizer:
        """Return the quantizer of this machine, loaded once; with "ggml" it uses no kernels."""
        return cls(Ggml.load(), find_kernels() if choice == "auto" else Missing("ggml was requested"))

    def engine(self, type: Q, *, weighed: bool) -> QuantizerEngine:
        """Return the code that quantizes to ``type``; the first call checks the kernel with the probe."""
        if self.kernels is None or not self.kernels.writes(type, weighed=weighed):
            return "ggml"
        with self._lock:
            key = (type, weighed)
            if key not in self._proved:
                self._proved[key] = self._probe(self.kernels, type, weighed=weighed)
            return "kernel" if self._proved[key] else "ggml"

    def quantize_chunk(
        self, type: Q, source: Floats, out: Bytes, importance: Floats | None = None, *, first_row: int = 0
    ) -> int | None:
        """Quantize finite rows as ``Ggml.quantize_chunk``; ``first_row`` is the index of the first one in the tensor.

        Returns ``None``, or the row of the tensor for which the kernel and ggml wrote different bytes.
        """
        if self.kernels is None or self.engine(type, weighed=importance is not None) == "ggml":
            self.ggml.quantize_chunk(type, source, out, importance)
            return None
        self.kernels.quantize_chunk(type, source, out, importance)
        if self._is_oracle:
            every = RECHECK_EVERY.get(type, RECHECK_DEFAULT)
            places = [row - first_row for row in rechecked_rows(every, first_row, source.shape[0])]
            # One call for all rows: each call releases the interpreter's lock and waits for it.
            if places:
                written = _rows_of(out, type, source.shape)[places]
                wrong = self._differing(type, source[places], written, importance)
                return None if wrong is None else first_row + places[wrong]
        return None

    def _differing(self, type: Q, source: Floats, written: Bytes, importance: Floats | None) -> int | None:
        """Return the first row of ``source`` for which ggml writes other bytes than ``written``."""
        again = np.frombuffer(self.ggml.quantize(type, source, importance), np.uint8).reshape(written.shape)
        differs = (again != written).any(axis=1)
        return int(np.argmax(differs)) if differs.any() else None

    def reads(self, type: Q) -> bool:
        """Return whether ``finite_floats`` supports ``type``."""
        return self.kernels is not None and self.kernels.reads(type)

    def finite_floats(self, type: Q, source: Bytes, out: Floats) -> bool:
        """Convert ``source`` to floats and return whether that was possible and all are finite.

        If not, ``out`` is undefined; use ggml then. Only for F16 and BF16, if the kernel passed a check of all 65,536
        values.
        """
        if self.kernels is None:
            return False
        with self._lock:
            if type not in self._readers:
                self._readers[type] = self._proves_reading(self.kernels, type)
            proved = self._readers[type]
        return proved and self.kernels.to_f32(type, source, out)

    def entry(self, types: Iterable[tuple[Q, bool]]) -> KernelEntry:
        """Return the manifest's entry for a model with tensors of ``types`` (with or without importances)."""
        engines: dict[str, QuantizerEngine] = {}
        for type, weighed in types:
            engine = self.engine(type, weighed=weighed)
            if engines.setdefault(type.name, engine) != engine:
                engines[type.name] = "ggml"
        version = VERSION if "kernel" in engines.values() else None
        return KernelEntry(version=version, types=dict(sorted(engines.items())))

    def notes(self, types: Iterable[tuple[Q, bool]]) -> list[str]:
        """Return notes for the user before a run with ``types``: sentences on kernels that are not used."""
        if self.kernels is None:
            return [f"ggml quantizes, several times slower than kernels: {self.reason}"]
        return [
            f"{type.name}: this machine's kernel does not write ggml's bytes, so ggml quantizes"
            for type, weighed in types
            if self.kernels.writes(type, weighed=weighed) and self.engine(type, weighed=weighed) == "ggml"
        ]

    def state(self) -> KernelState:
        """Check every kernel and return the state."""
        cases = [*((type, False) for type in sorted(PLAIN)), *((type, True) for type in sorted(WEIGHED))]
        good: list[str] = []
        bad: list[str] = []
        for type, weighed in cases if self.kernels is not None else ():
            name = f"{type.name} with importances" if weighed else type.name
            (good if self.engine(type, weighed=weighed) == "kernel" else bad).append(name)
        kernels = self.kernels
        return KernelState(
            name=None if kernels is None else kernels.name,
            source=None if kernels is None else kernels.source,
            reason=self.reason,
            types=tuple(good),
            differing=tuple(bad),
        )

    def _proves_reading(self, kernels: Kernels, type: Q) -> bool:
        everything = np.arange(1 << 16, dtype=np.uint16)
        exponent = everything & EXPONENT_BITS[type]
        finite = everything[exponent != EXPONENT_BITS[type]]
        ours, theirs = np.empty(finite.size, np.float32), np.empty(finite.size, np.float32)
        self.ggml.to_f32(type, finite.view(np.uint8), theirs)
        if not kernels.to_f32(type, finite.view(np.uint8), ours) or ours.tobytes() != theirs.tobytes():
            return False
        rest = everything[exponent == EXPONENT_BITS[type]]
        scratch = np.empty(33, np.float32)
        return not any(
            kernels.to_f32(type, np.where(np.arange(33) == place, value, 0).astype(np.uint16).view(np.uint8), scratch)
            for place in (0, 17, 32)
            for value in rest[:: rest.size // 8]
        )

    def _probe(self, kernels: Kernels, type: Q, *, weighed: bool) -> bool:
        weights, importance = kernel_probe(type)
        used = importance if weighed else None
        out = np.empty(weights.shape[0] * row_nbytes(type, weights.shape[1]), np.uint8)
        kernels.quantize_chunk(type, weights, out, used)
        # The library takes seconds to make its tables, the rows that it does again as the kernel runs need them anyway.
        if self._is_oracle and type not in TABLE_TYPES:
            return out.tobytes() == self.ggml.quantize(type, weights, used)
        return hashlib.sha256(out.tobytes()).hexdigest() == PROBE_HASHES[type.name, weighed]


def is_too_large(type: Q, source: Floats, importance: Floats | None) -> bool:
    """Return whether ggml may end the process: a type with search tables, and errors that no float holds."""
    if type not in TABLE_TYPES or not source.size:
        return False
    most = max(float(source.max()), -float(source.min()), 0.0 if importance is None else float(importance.max()))
    return most > LARGEST_ON_TABLES


def _rows_of(data: Bytes, type: Q, shape: tuple[int, ...]) -> Bytes:
    """Return the bytes of quantized rows, one array row per row."""
    rows, columns = shape
    size = row_nbytes(type, columns)
    return data[: rows * size].reshape(rows, size)


def rechecked_rows(every: int, first: int, count: int) -> Iterable[int]:
    """Return the rows of ``first`` to ``first + count`` that ggml checks: one in every group of ``every``.

    Its position moves from group to group, so that every position within a vector of blocks is checked eventually.
    """
    for group in range(first // every, (first + count - 1) // every + 1):
        row = group * every + group * 37 % every
        if first <= row < first + count:
            yield row


def kernel_line(kernels: KernelState) -> str:
    """Return one line on the quantizing code of this machine."""
    if kernels.name is None:
        return f"quantizing: ggml, without kernels ({kernels.reason})"
    differing = f"; ggml for {', '.join(kernels.differing)}, whose bytes differ" if kernels.differing else ""
    return f"quantizing: kernels {kernels.name}, {len(kernels.types)} checked against ggml{differing}"


def differing_row(tensor: str, type: Q, row: int) -> EnvironmentFailure:
    """Return the failure of a run in which a kernel and ggml wrote different bytes."""
    return EnvironmentFailure(
        f"{tensor}: the kernel and ggml write different bytes for row {row} as {type.name}",
        remedy="run again with --kernels ggml, and report it: the kernel or this machine's memory is at fault",
    )
