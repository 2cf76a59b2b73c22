"""Locks files and folders between processes with ``flock``; the system releases a lock when its process ends.

A lock belongs to the open file, not to the process: a thread that opens the same folder twice would wait for itself.
Therefore ``hold_folder`` records which folders this thread holds, and ``holds_folder`` returns that.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strata_pack.errors import EnvironmentFailure

POLL_SECONDS = 0.05
"""Seconds between two attempts to take a lock."""

_held = threading.local()


def lock_file(descriptor: int, busy: EnvironmentFailure, wait_seconds: float = 0.0) -> None:
    """Lock the open file; raise ``busy`` if another holder does not release it within ``wait_seconds``."""
    end = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise busy from None
        time.sleep(POLL_SECONDS)


@contextmanager
def hold_folder(folder: Path, busy: EnvironmentFailure, wait_seconds: float = 0.0) -> Iterator[None]:
    """Lock ``folder`` against other processes and threads inside the block; raise ``busy`` as ``lock_file`` does."""
    folder = folder.resolve()
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        lock_file(descriptor, busy, wait_seconds)
        _ours().add(folder)
        try:
            yield
        finally:
            _ours().discard(folder)
    finally:
        os.close(descriptor)


def holds_folder(folder: Path) -> bool:
    """Return whether this thread holds ``folder``."""
    return folder.resolve() in _ours()


def _ours() -> set[Path]:
    if not hasattr(_held, "folders"):
        _held.folders = set()
    folders: set[Path] = _held.folders
    return folders
