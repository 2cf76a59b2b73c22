"""Summarises an importance matrix: tokens, experts never seen, dominating columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from strata_pack.weights.imatrix.file import Collected, read_collected

TOP = 0.01
"""The fraction of columns whose share of the importance is reported: a large share means that few columns dominate."""
FEW = 16
"""An expert with fewer rows than this is reported as hardly seen."""


@dataclass(frozen=True)
class WeightCoverage:
    """The coverage of one weight.

    ``rows``: the minimum number of inputs of its matrices; ``unseen`` and ``hardly_seen``: numbers of experts;
    ``top_share``: share of the importance in the most important 1 % of columns (at least one); ``peak``: the
    largest importance over the median (infinite where the median is 0).
    """

    name: str
    matrices: int
    columns: int
    rows: int
    unseen: tuple[int, ...]
    hardly_seen: tuple[int, ...]
    top_share: float
    peak: float


@dataclass(frozen=True)
class Coverage:
    """The coverage of an imatrix file: ``chunks`` of ``chunk_size`` tokens of ``datasets``."""

    path: str
    datasets: tuple[str, ...]
    chunks: int
    chunk_size: int
    weights: tuple[WeightCoverage, ...]

    @property
    def unseen(self) -> int:
        """Number of matrices without any input: the quantizer treats all their columns alike."""
        return sum(len(weight.unseen) for weight in self.weights)

    @property
    def experts(self) -> int:
        """Number of matrices of all mixtures of experts."""
        return sum(weight.matrices for weight in self.weights if weight.matrices > 1)

    def outliers(self, count: int) -> Sequence[WeightCoverage]:
        """Return the ``count`` weights whose importance is concentrated the most."""
        return sorted(self.weights, key=lambda weight: -weight.top_share)[:count]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "experts": self.experts, "unseen": self.unseen}


def coverage(path: Path) -> Coverage:
    """Read an imatrix file and return its coverage; ``BadInput`` for another file."""
    return coverage_of(read_collected(path), str(path))


def coverage_of(collected: Collected, path: str) -> Coverage:
    """Return the coverage of ``collected``."""
    weights = []
    for name, sums in sorted(collected.sums.items()):
        columns = sums.squares.shape[-1]
        counts = np.broadcast_to(sums.counts, sums.squares.size // columns)
        seen = counts > 0
        means = sums.squares.reshape(-1, columns)[seen] / counts[seen].reshape(-1, 1)
        column = means.mean(axis=0) if seen.any() else np.zeros(columns)
        top = np.sort(column)[-max(1, round(TOP * columns)) :].sum()
        median = float(np.median(column))
        weights.append(
            WeightCoverage(
                name,
                matrices=counts.size,
                columns=columns,
                rows=int(counts.min()),
                unseen=tuple(np.flatnonzero(~seen).tolist()),
                hardly_seen=tuple(np.flatnonzero(seen & (counts < FEW)).tolist()),
                top_share=float(top / column.sum()) if column.sum() > 0 else 0.0,
                peak=float(column.max()) / median if median > 0 else float("inf") if column.any() else 0.0,
            )
        )
    return Coverage(path, tuple(collected.datasets), collected.chunks, collected.chunk_size, tuple(weights))
