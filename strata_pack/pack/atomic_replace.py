"""Moves a finished folder to a pack's path in one atomic step, also over an older pack."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strata_pack.errors import EnvironmentFailure
from strata_pack.files import fsync_dir
from strata_pack.locks import lock_file

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange(first: Path, second: Path) -> bool:
    """Swap two folders of one file system in one step; ``False`` where the kernel or file system cannot.

    Source: renameat2(2), Linux 3.15, glibc 2.28.
    """
    if sys.platform != "linux":
        return False
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS):
        return False
    raise OSError(code, os.strerror(code), str(first))


def put(new: Path, target: Path) -> None:
    """Move the folder ``new`` to ``target``; a former ``target`` is at ``new`` afterwards.

    Where folders cannot be exchanged atomically, ``target`` is missing for a moment, while ``new`` is complete.
    """
    if not target.exists():
        os.rename(new, target)
    elif not exchange(new, target):
        aside = new.with_name(new.name + ".old")
        os.rename(target, aside)
        os.rename(new, target)
        os.rename(aside, new)
    fsync_dir(target.parent)


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold a lock on the file ``path`` (created if missing); ``EnvironmentFailure`` if another process holds it."""
    busy = EnvironmentFailure(f"another process is working on {what}", where=path, remedy="wait for it to end")
    try:
        file = path.open("a")
    except FileNotFoundError:
        raise busy from None
    with file:
        lock_file(file.fileno(), busy)
        try:
            # The former holder may have removed the file: a lock on a removed file excludes nobody.
            ours = os.path.samestat(os.fstat(file.fileno()), path.stat())
        except OSError:
            raise busy from None
        if not ours:
            raise busy
        yield
