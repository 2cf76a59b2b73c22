"""Writes partial files that survive a kill, with a journal of the complete tensors.

While a model is written, ``.<name>.partial`` (see ``partial_file``) has its bytes, and the journal gets a line after
every tensor: its end, and the SHA-256 of the file up to there. After a crash the partial file is read once and compared
with the journal; writing continues after the last complete tensor. The final state of the same running hash is the
file's hash, so nothing is read again at the end.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from strata_pack.errors import BadInput
from strata_pack.files import CHUNK, disk_errors, fsync_dir
from strata_pack.weights.partial_file import open_locked, partial_path

JOURNAL_FORMAT = 1
FLUSH_EVERY = 32 << 20
"""Bytes after which writeback to the disk is started during the work."""
MAX_JOURNAL = 1 << 28
"""Maximum bytes of a journal; with one line per tensor it has a few megabytes at most."""


@dataclass(frozen=True)
class WrittenFile:
    """One finished file."""

    path: Path
    size: int
    sha256: str


@dataclass(frozen=True)
class _Mark:
    """The end of a tensor in a file, and the hash of all bytes before it."""

    file: int
    tensor: str
    end: int
    sha256: str


class PartialFiles:
    """The output files of one run, locked against a second run. Use as a context manager.

    Without ``finish`` the partial files and the journal are kept for the next run, except after errors such as
    ``BadInput``: a fault of the input is permanent, so the files are removed.
    """

    def __init__(self, paths: Sequence[Path], journal: Path, fingerprint: str) -> None:
        """``fingerprint`` must change with everything that determines the bytes."""
        self._paths, self._journal_path, self._fingerprint = list(paths), journal, fingerprint
        self._files: list[IO[bytes]] = []
        self._hashes = [hashlib.sha256() for _ in paths]
        self._sizes = [0] * len(paths)
        self._journal: IO[bytes] | None = None
        self._flusher = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._flush: Future[None] | None = None
        self._unflushed = 0
        self.finished_tensors: frozenset[str] = frozenset()
        """Names of the tensors that an earlier run has written completely."""

    def __enter__(self) -> PartialFiles:
        with disk_errors(self._paths[0]):
            self._paths[0].parent.mkdir(parents=True, exist_ok=True)
            try:
                marks = self._read_journal()
                self._take_back(marks)
                for path in self._paths:
                    self._files.append(open_locked(partial_path(path), path))
                marks = self._sound_marks(marks)
                self._start_journal(marks)
            except BaseException:
                self._close()
                raise
        self.finished_tensors = frozenset(mark.tensor for mark in marks)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: TracebackType | BaseException | None) -> None:
        if kind is not None and issubclass(kind, BadInput):
            self._remove()
        self._close()

    def size(self, file: int) -> int:
        """Return the number of bytes of ``file`` so far."""
        return self._sizes[file]

    def put(self, file: int, at: int, data: Any) -> None:
        """Write a buffer at byte ``at`` of ``file``, after the counted bytes. Thread-safe."""
        left, descriptor = memoryview(data), self._files[file].fileno()
        with disk_errors(self._paths[file]):
            while left:
                written = os.pwrite(descriptor, left, at)
                left, at = left[written:], at + written

    def count(self, file: int, data: Any) -> None:
        """Add the next bytes of ``file``, which were already written, to its size and hash."""
        self._hashes[file].update(data)
        size = memoryview(data).nbytes
        self._sizes[file] += size
        self._unflushed += size
        if self._unflushed >= FLUSH_EVERY and (self._flush is None or self._flush.done()):
            # Otherwise the kernel would start writeback only when we sync at the end.
            self._unflushed = 0
            self._flush = self._flusher.submit(os.fsync, self._files[file].fileno())

    def append(self, file: int, data: Any) -> None:
        """Write the next bytes of ``file`` and count them."""
        self.put(file, self._sizes[file], data)
        self.count(file, data)

    def mark(self, file: int, tensor: str) -> None:
        """Record that ``tensor``, and everything before it, is complete."""
        mark = _Mark(file, tensor, self._sizes[file], self._hashes[file].hexdigest())
        assert self._journal is not None, "mark() belongs inside the with block"
        with disk_errors(self._journal_path):
            self._journal.write(_line(vars(mark)))
            self._journal.flush()

    def finish(self) -> tuple[WrittenFile, ...]:
        """Sync all files and rename them to their final names, the first one last, because readers open that one.

        The journal is kept until ``forget``: while other outputs of the same run are unfinished, it proves that these
        are complete, and a later run reuses them.
        """
        with disk_errors(self._paths[0]):
            if self._flush is not None:
                self._flush.result()
            for file in self._files:
                os.fsync(file.fileno())
            for path in reversed(self._paths):
                os.replace(partial_path(path), path)
            fsync_dir(self._paths[0].parent)
        sums = zip(self._paths, self._sizes, self._hashes, strict=True)
        return tuple(WrittenFile(path, size, digest.hexdigest()) for path, size, digest in sums)

    def forget(self) -> None:
        """Remove the journal of finished files."""
        with disk_errors(self._journal_path):
            self._journal_path.unlink(missing_ok=True)

    def _take_back(self, marks: Sequence[_Mark]) -> None:
        """Rename finished files to their partial names if the journal shows that they are of the same work."""
        ends = {mark.file: mark.end for mark in marks}
        for index, path in enumerate(self._paths):
            if not path.is_file() or path.stat().st_size != ends.get(index) or partial_path(path).exists():
                return
        for path in self._paths:
            os.replace(path, partial_path(path))

    def _read_journal(self) -> list[_Mark]:
        """Return the marks of an earlier run of the same work; an incomplete last line is ignored."""
        try:
            if self._journal_path.stat().st_size > MAX_JOURNAL:
                return []
            first, *lines = self._journal_path.read_bytes().split(b"\n")[:-1]
            if json.loads(first) != self._head():
                return []
            return [_Mark(**json.loads(line)) for line in lines]
        except (FileNotFoundError, ValueError, TypeError):
            return []

    def _sound_marks(self, marks: Sequence[_Mark]) -> list[_Mark]:
        """Compare the partial files with the marks, truncate uncovered bytes, and return the valid marks."""
        sound: list[_Mark] = []
        for index, file in enumerate(self._files):
            for mark in marks:
                if mark.file != index:
                    continue
                ahead = self._hashes[index].copy()
                if not _feed(ahead, file, mark.end - self._sizes[index]) or ahead.hexdigest() != mark.sha256:
                    break
                self._hashes[index], self._sizes[index] = ahead, mark.end
                sound.append(mark)
            file.seek(self._sizes[index])
            file.truncate()
        return sound

    def _head(self) -> dict[str, Any]:
        return {"format": JOURNAL_FORMAT, "fingerprint": self._fingerprint, "files": [p.name for p in self._paths]}

    def _start_journal(self, marks: Sequence[_Mark]) -> None:
        fresh = self._journal_path.with_name(f"{self._journal_path.name}.new")
        self._journal = fresh.open("wb")
        self._journal.write(_line(self._head()) + b"".join(_line(vars(mark)) for mark in marks))
        self._journal.flush()
        os.replace(fresh, self._journal_path)

    def _remove(self) -> None:
        for path in self._paths:
            partial_path(path).unlink(missing_ok=True)
        self._journal_path.unlink(missing_ok=True)

    def _close(self) -> None:
        self._flusher.shutdown(wait=True)
        for file in (*self._files, *([self._journal] if self._journal else [])):
            file.close()


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _feed(digest: Any, file: IO[bytes], size: int) -> bool:
    """Update ``digest`` with the next ``size`` bytes of ``file``; return whether the file has that many."""
    while size > 0:
        data = file.read(min(size, CHUNK))
        if not data:
            return False
        digest.update(data)
        size -= len(data)
    return size == 0
