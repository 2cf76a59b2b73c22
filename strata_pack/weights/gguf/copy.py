"""Copies a GGUF under another header, as cheaply as the file system allows.

The kernel copies (``copy_file_range``): extents are shared where the file system can (btrfs, XFS), so the copy costs
neither time nor room there; holes stay holes everywhere. For this ``gguf_edit.outgrow`` moves tensors by whole blocks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from strata_pack.errors import EnvironmentFailure
from strata_pack.files import disk_errors, fsync_dir
from strata_pack.progress import Progress, ProgressTask, Silent
from strata_pack.weights.gguf.edit import BLOCK

_FICLONE = 0x40049409
"""The ioctl that shares all extents of one file with another; linux/fs.h."""
_STEP = 64 << 20
_NO_KERNEL_COPY = {errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.ETXTBSY}
_PART = ".part"


def allocated_bytes(path: Path) -> int:
    """Return the bytes ``path`` takes on the disk: less than its size where it has holes."""
    return path.stat().st_blocks * 512


def can_share(path: Path) -> bool:
    """Return whether the file system can make a second ``path`` next to it that shares its bytes. Tried out, not
    guessed."""
    if sys.platform != "linux":
        return False
    with path.open("rb") as source, tempfile.TemporaryFile(dir=path.parent) as target:
        try:
            fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
        except OSError:
            return False
    return True


def copy_with_header(
    source: Path, data_offset: int, header: bytes, target: Path, progress: Progress | None = None
) -> None:
    """Make ``target`` from ``header`` and what ``source`` holds from ``data_offset`` on, whole or not at all.

    ``len(header)`` must differ from ``data_offset`` by whole blocks of 4096 bytes.
    Raises ``EnvironmentFailure`` when the disk is full or ``source`` ends early.
    """
    shift = len(header) - data_offset
    if shift % BLOCK:
        raise ValueError(f"the tensors would move by {shift} bytes, no multiple of {BLOCK}")
    part = target.with_name(target.name + _PART)
    task = (progress or Silent()).task(f"copy {source.name}", allocated_bytes(source))
    with disk_errors(target):
        try:
            with source.open("rb") as old, part.open("wb") as new:
                size = os.fstat(old.fileno()).st_size
                edge = min(-(-data_offset // BLOCK) * BLOCK, size)
                new.write(header)
                new.write(os.pread(old.fileno(), edge - data_offset, data_offset))
                new.flush()
                os.ftruncate(new.fileno(), size + shift)
                for start, end in _extents(old.fileno(), edge, size):
                    _copy_range(old.fileno(), new.fileno(), start, end, shift, source, task)
                os.fsync(new.fileno())
            shutil.copymode(source, part)
            os.replace(part, target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        fsync_dir(target.parent)
    task.done()


def discard_copy(target: Path) -> None:
    """Remove what an interrupted ``copy_with_header`` to ``target`` may have left."""
    target.unlink(missing_ok=True)
    target.with_name(target.name + _PART).unlink(missing_ok=True)


def _extents(fd: int, start: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the (start, end) of everything between ``start`` and ``size`` that is no hole."""
    while start < size:
        try:
            start = os.lseek(fd, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            yield start, size
            return
        end = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, end
        start = end


def _copy_range(old: int, new: int, start: int, end: int, shift: int, where: Path, task: ProgressTask) -> None:
    by_kernel = hasattr(os, "copy_file_range")
    while start < end:
        count = min(_STEP, end - start)
        done = 0
        if by_kernel:
            try:
                done = os.copy_file_range(old, new, count, start, start + shift)
            except OSError as error:
                if error.errno not in _NO_KERNEL_COPY:
                    raise
                by_kernel = False
                continue
        else:
            done = os.pwrite(new, os.pread(old, count, start), start + shift)
        if done == 0:
            raise EnvironmentFailure(f"ended at byte {start} while it was copied", where=where)
        start += done
        task.advance(done)
