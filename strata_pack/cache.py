"""Lists, measures and empties the cache folder, which holds only files that strata-pack can create again."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strata_pack.files import disk_errors
from strata_pack.resources import cache_dir
from strata_pack.suggest import unknown

GROUP = "runtimes"
"""The subfolder whose children count as separate entries: each is one installed or built llama.cpp."""


@dataclass(frozen=True)
class CacheEntry:
    """One entry of the cache: its name (``runtimes/b9011-cuda``), its path and its size in bytes."""

    name: str
    path: Path
    size: int


def cache_entries() -> list[CacheEntry]:
    """Return the entries of the cache: one for each runtime and one for each other file or folder at its top level."""
    root = cache_dir()
    paths = [inner for path in _children(root) for inner in (_children(path) if path.name == GROUP else [path])]
    return [CacheEntry(path.relative_to(root).as_posix(), path, _size(path)) for path in paths]


def clean_cache(names: Sequence[str] = (), *, dry_run: bool = False) -> list[CacheEntry]:
    """Remove the entries called ``names`` (default: all) and return them; ``WrongUse`` for an unknown name.

    A symbolic link is removed without following it.
    """
    entries = cache_entries()
    known = {entry.name: entry for entry in entries}
    for name in names:
        if name not in known:
            raise unknown("cache entry", name, known)
    chosen = [known[name] for name in dict.fromkeys(names)] if names else entries
    for entry in [] if dry_run else chosen:
        with disk_errors(entry.path):
            if entry.path.is_dir() and not entry.path.is_symlink():
                shutil.rmtree(entry.path)
            else:
                entry.path.unlink(missing_ok=True)
    return chosen


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _size(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(_size(inner) for inner in path.iterdir())
