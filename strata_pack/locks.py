"""Locks files and folders between processes with ``flock``, which the system drops when the holder ends.

A lock belongs to the open file, not to the process: who opens the same folder twice would wait for itself. So
``hold_folder`` remembers what this thread holds, and ``holds_folder`` tells.
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

POLL = 0.05
"""Seconds between two tries of a lock that is waited for."""

_held = threading.local()


def lock_file(descriptor: int, busy: EnvironmentFailure, wait_seconds: float = 0.0) -> None:
    """Lock the open file; raise ``busy`` if another holder does not let go of it within ``wait_seconds``."""
    end = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise busy from None
        time.sleep(POLL)


@contextmanager
def hold_folder(folder: Path, busy: EnvironmentFailure, wait_seconds: float = 0.0) -> Iterator[None]:
    """Hold ``folder`` against other processes and threads; raise ``busy`` as ``lock_file`` does."""
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
