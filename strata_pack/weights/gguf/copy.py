"""Copies a GGUF with another header, as cheaply as the file system allows.

The kernel copies (``copy_file_range``): on file systems that share extents (btrfs, XFS) the copy needs neither time nor
space; holes stay holes. ``edit.outgrow`` moves tensors by whole blocks for this purpose.
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
    """Return the bytes that ``path`` occupies on the disk: less than its size if it has holes."""
    return path.stat().st_blocks * 512


def can_share(path: Path) -> bool:
    """Return whether the file system can create a copy of ``path`` with shared extents next to it, by trying it."""
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
    """Write ``target`` atomically from ``header`` and the bytes of ``source`` from ``data_offset`` on.

    ``len(header)`` must differ from ``data_offset`` by whole blocks of 4096 bytes.
    Raises ``EnvironmentFailure`` if the disk is full or ``source`` ends early.
    """
    shift = len(header) - data_offset
    if shift % BLOCK:
        raise ValueError(f"the tensors would move by {shift} bytes, which is not a multiple of {BLOCK}")
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
    """Remove the file that an interrupted ``copy_with_header`` to ``target`` may have left."""
    target.unlink(missing_ok=True)
    target.with_name(target.name + _PART).unlink(missing_ok=True)


def _extents(fd: int, start: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the (start, end) of the data, without holes, between ``start`` and ``size``."""
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
