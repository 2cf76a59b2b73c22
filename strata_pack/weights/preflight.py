"""Checks disk space before the first byte is written, over all stages of a job and for each file system.

A stage has the number of bytes still to be written and their place; the caller subtracts existing bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from strata_pack.errors import EnvironmentFailure
from strata_pack.files import free_bytes

RESERVE_MOST, RESERVE_LEAST = 64 << 20, 1 << 20
RESERVE_SHARE = 50
"""Reserve on every file system for journals, logs and metadata: 2 % of the written bytes, from 1 to 64 MiB."""


@dataclass(frozen=True)
class Stage:
    """One part of a job: ``label`` for messages ("download", "quantized file"), the place of its output, its bytes."""

    label: str
    path: Path
    nbytes: int


@dataclass(frozen=True)
class DiskNeed:
    """The need on one file system: ``stages`` write ``needed`` bytes, and ``free`` bytes are available.

    ``needed`` does not include the ``reserve``.
    """

    mount: Path
    stages: tuple[Stage, ...]
    needed: int
    free: int

    @property
    def reserve(self) -> int:
        """Bytes that must stay free."""
        return min(RESERVE_MOST, max(RESERVE_LEAST, self.needed // RESERVE_SHARE)) if self.needed else 0

    @property
    def short(self) -> int:
        """Bytes that are missing (0: it fits)."""
        return max(0, self.needed + self.reserve - self.free) if self.needed else 0


def existing_ancestor(path: Path) -> Path:
    """Return ``path`` or the nearest folder above it that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def disk_needs(stages: Iterable[Stage]) -> list[DiskNeed]:
    """Sum the stages per file system (identified by device number), in order of first appearance."""
    by_device: dict[int, list[Stage]] = {}
    for stage in stages:
        by_device.setdefault(os.stat(existing_ancestor(stage.path)).st_dev, []).append(stage)
    needs = []
    for group in by_device.values():
        mount = existing_ancestor(group[0].path)
        needs.append(DiskNeed(mount, tuple(group), sum(stage.nbytes for stage in group), free_bytes(mount)))
    return needs


def check_disk(stages: Iterable[Stage]) -> list[DiskNeed]:
    """Return the needs, or raise ``EnvironmentFailure`` with one sentence that names each file system that is short."""
    needs = disk_needs(stages)
    short = [need for need in needs if need.short]
    if short:
        raise EnvironmentFailure(
            "not enough disk space: " + "; ".join(_sentence(need) for need in short),
            remedy="free some space or choose another folder",
        )
    return needs


def _sentence(need: DiskNeed) -> str:
    """Return the sentence with all figures in one unit; parts are rounded up and free space down, so that the sum is
    right."""
    parts = [(stage.label, stage.nbytes) for stage in need.stages if stage.nbytes] + [("reserve", need.reserve)]
    unit, size = _unit(need.needed + need.reserve)

    def tenths(nbytes: int) -> int:
        return -(-10 * nbytes // size)

    def text(amount: int) -> str:
        return f"{amount // 10}.{amount % 10} {unit}"

    total, free = sum(tenths(nbytes) for _, nbytes in parts), 10 * need.free // size
    listed = " + ".join(f"{label} {text(tenths(nbytes))}" for label, nbytes in parts)
    return f"{need.mount} needs {text(total)} ({listed}) and has {text(free)} free, {text(total - free)} short"


def _unit(nbytes: int) -> tuple[str, int]:
    """Return the largest unit in which ``nbytes`` is at least 1, and its bytes."""
    units = [("kB", 10**3), ("MB", 10**6), ("GB", 10**9), ("TB", 10**12)]
    return next(((name, size) for name, size in reversed(units) if nbytes >= size), units[0])


def size_text(nbytes: int) -> str:
    """Return a size as text, in powers of 1000: ``"1.5 GB"``."""
    amount = float(nbytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"
