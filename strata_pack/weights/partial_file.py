"""Names and locks the hidden partial file of a large output.

A killed run leaves its partial file without the lock, so the next run with the same output replaces it. Partial files
do not accumulate, and a file that another run is writing is never touched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from strata_pack.errors import EnvironmentFailure
from strata_pack.files import disk_errors, fsync_dir
from strata_pack.locks import lock_file


def partial_path(path: Path) -> Path:
    """Return the path of the partial file of ``path``."""
    return path.with_name(f".{path.name}.partial")


def open_locked(path: Path, final: Path) -> IO[bytes]:
    """Open ``path`` for reading and appending, and lock it; ``EnvironmentFailure`` if another run holds the lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        file = os.fdopen(descriptor, "r+b")
        remedy = "wait for it to end, or choose another name"
        try:
            lock_file(descriptor, EnvironmentFailure("is being written by another run", where=final, remedy=remedy))
        except EnvironmentFailure:
            file.close()
            raise
        # Between opening and locking, the other run may have finished and renamed this file.
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            return file
        file.close()


@contextmanager
def partial_writer(path: Path) -> Iterator[IO[bytes]]:
    """Yield an empty binary file that becomes ``path`` if the block ends without an exception, and is removed
    otherwise.

    The partial file of a killed run is removed before the block begins, which frees its disk space.
    """
    partial = partial_path(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_locked(partial, path) as file:
            try:
                file.truncate()
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.replace(partial, path)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
        fsync_dir(path.parent)
