"""Disk space, checked before the first byte: every stage of a job, added up per file system.

A stage says how many bytes it will still write and where. Bytes that are there already are the caller's to leave out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from strata_pack.errors import EnvironmentFailure
from strata_pack.files import free_bytes

RESERVE = 64 << 20
"""Bytes left free on every file system: journals, logs and the file system's own tables need some."""


@dataclass(frozen=True)
class Stage:
    """One part of a job: ``label`` for people ("download", "quantized file"), where it writes, how many bytes."""

    label: str
    path: Path
    nbytes: int


@dataclass(frozen=True)
class DiskNeed:
    """What one file system must hold: ``stages`` write ``needed`` bytes onto it, ``free`` bytes are there."""

    mount: Path
    stages: tuple[Stage, ...]
    needed: int
    free: int

    @property
    def short(self) -> int:
        """Bytes that are missing (0: it fits)."""
        return max(0, self.needed + RESERVE - self.free) if self.needed else 0


def existing_ancestor(path: Path) -> Path:
    """Return ``path`` or the nearest folder above it that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def disk_needs(stages: Iterable[Stage]) -> list[DiskNeed]:
    """Add the stages up per file system (told apart by device number), in the order they first appear."""
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
    parts = " + ".join(f"{stage.label} {size_text(stage.nbytes)}" for stage in need.stages if stage.nbytes)
    return (
        f"{need.mount} needs {size_text(need.needed)} ({parts}) and has {size_text(need.free)} free, "
        f"{size_text(need.short)} short"
    )


def size_text(nbytes: int) -> str:
    """Return a size for people, in powers of 1000: ``"1.5 GB"``."""
    amount = float(nbytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"
