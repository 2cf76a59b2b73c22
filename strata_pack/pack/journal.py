"""Makes all changes of one installation one step: a journal is written first and can be carried out again.

A journal lists changes with the bytes before and after. It is written whole and made durable before the first change;
from then on the installation has happened: whoever finds the journal carries it out to its end, however often it is
interrupted. Carried out, the journal is kept as the way back: the same list, inverted. The file's name is its state:

    journal        an installation under way
    undo           a rollback under way
    backup-0001    an installation that can be rolled back; the highest number is the latest

The technique is the write-ahead log of databases (Mohan et al., ARIES, 1992), redo only: changes are idempotent.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from strata_pack.errors import BadInput
from strata_pack.files import disk_errors, fsync_dir, read_bytes, write_atomic
from strata_pack.pack.paths import member
from strata_pack.progress import Progress
from strata_pack.weights.gguf.copy import copy_with_header, discard_copy

JOURNAL = "journal"
UNDO = "undo"
BACKUP = "backup-{:04d}"
LIMIT = 512 << 20
"""Bytes of a journal, packed or not; the largest headers are some 20 MB."""

_MAGIC = b"strata-pack journal 1\n"
STAGED = "{}.template-new"
"""The name of a copy that is being made of a file, next to it."""


class JournalStep(Protocol):
    """One change of one file; paths are relative to the installation's root folder."""

    @property
    def target(self) -> str:
        """The path the file has before the step."""

    def inverted(self) -> JournalStep:
        """Return the step that takes this one back."""

    def pending(self, root: Path) -> bool:
        """Whether the change is still to be made; ``BadInput`` if the file is in neither state."""

    def stage(self, root: Path, progress: Progress | None) -> None:
        """Do beforehand what takes long or may fail, without changing anything."""

    def apply(self, root: Path) -> None:
        """Make the change durable. One that was made already is not made again, but it may not be on the disk yet."""

    def to_dict(self) -> dict[str, Any]:
        """Return the step as JSON values."""


def _foreign(path: Path) -> BadInput:
    remedy = "if you replaced the file yourself, remove the .template-install folder next to it"
    return BadInput("has been changed by something else since the template was installed", where=path, remedy=remedy)


def _look(path: Path, offset: int, count: int) -> tuple[int, bytes]:
    """Return the size of ``path`` and ``count`` of its bytes; ``BadInput`` if it is not there."""
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size, os.pread(file.fileno(), count, offset)
    except FileNotFoundError:
        raise _foreign(path) from None


class _Instant:
    """A step that takes no time, so that there is nothing to do beforehand."""

    def stage(self, root: Path, progress: Progress | None) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Patch(_Instant):
    """Bytes inside a file are overwritten; ``size`` is the file's length before and after."""

    path: str
    size: int
    offset: int
    old: bytes
    new: bytes

    @property
    def target(self) -> str:
        return self.path

    def inverted(self) -> Patch:
        return Patch(self.path, self.size, self.offset, self.new, self.old)

    def pending(self, root: Path) -> bool:
        path = member(root, self.path)
        size, now = _look(path, self.offset, len(self.new))
        if size != self.size or len(now) != len(self.new):
            raise _foreign(path)
        if now == self.new:
            return False
        if now == self.old:
            return True
        # A write that was cut off leaves each byte as it was or as it should be, nothing else.
        if any(n not in (a, b) for n, a, b in zip(now, self.old, self.new, strict=True)):
            raise _foreign(path)
        return True

    def apply(self, root: Path) -> None:
        path = member(root, self.path)
        at = 0 if self.pending(root) else len(self.new)
        with disk_errors(path):
            fd = os.open(path, os.O_RDWR)
            try:
                while at < len(self.new):
                    at += os.pwrite(fd, self.new[at:], self.offset + at)
                os.fsync(fd)
            finally:
                os.close(fd)

    def to_dict(self) -> dict[str, Any]:
        return {
            "do": "patch",
            "path": self.path,
            "size": self.size,
            "offset": self.offset,
            "old": _text(self.old),
            "new": _text(self.new),
        }


@dataclass(frozen=True)
class Put(_Instant):
    """A small file is replaced, made (``old`` is ``None``) or removed (``new`` is ``None``)."""

    path: str
    old: bytes | None
    new: bytes | None

    @property
    def target(self) -> str:
        return self.path

    def inverted(self) -> Put:
        return Put(self.path, self.new, self.old)

    def pending(self, root: Path) -> bool:
        path = member(root, self.path)
        now = read_bytes(path, LIMIT) if path.exists() else None
        if now == self.new:
            return False
        if now != self.old:
            raise _foreign(path)
        return True

    def apply(self, root: Path) -> None:
        path = member(root, self.path)
        pending = self.pending(root)
        if pending and self.new is not None:
            write_atomic(path, self.new)
        with disk_errors(path):
            if pending and self.new is None:
                path.unlink()
            if path.parent.is_dir():
                fsync_dir(path.parent)

    def to_dict(self) -> dict[str, Any]:
        return {"do": "put", "path": self.path, "old": _text(self.old), "new": _text(self.new)}


@dataclass(frozen=True)
class Move(_Instant):
    """A file gets another name in its folder."""

    old: str
    new: str

    @property
    def target(self) -> str:
        return self.old

    def inverted(self) -> Move:
        return Move(self.new, self.old)

    def pending(self, root: Path) -> bool:
        there, here = member(root, self.old).is_file(), member(root, self.new).is_file()
        if there is here:
            raise _foreign(member(root, self.old))
        return there

    def apply(self, root: Path) -> None:
        old, new = member(root, self.old), member(root, self.new)
        with disk_errors(old):
            if self.pending(root):
                os.rename(old, new)
            fsync_dir(new.parent)

    def to_dict(self) -> dict[str, Any]:
        return {"do": "move", "old": self.old, "new": self.new}


@dataclass(frozen=True)
class Rewrite:
    """A GGUF is replaced by a copy with another header; ``old_size`` and ``new_size`` are the files' lengths."""

    path: str
    old_size: int
    new_size: int
    old: bytes
    new: bytes

    @property
    def target(self) -> str:
        return self.path

    def inverted(self) -> Rewrite:
        return Rewrite(self.path, self.new_size, self.old_size, self.new, self.old)

    def staged(self, root: Path) -> Path:
        """Return where the copy is made before it takes the file's place."""
        path = member(root, self.path)
        return path.with_name(STAGED.format(path.name))

    def pending(self, root: Path) -> bool:
        path = member(root, self.path)
        size, now = _look(path, 0, max(len(self.old), len(self.new)))
        if size == self.new_size and now.startswith(self.new):
            return False
        if size != self.old_size or not now.startswith(self.old):
            raise _foreign(path)
        return True

    def stage(self, root: Path, progress: Progress | None) -> None:
        if self.pending(root):
            copy_with_header(member(root, self.path), len(self.old), self.new, self.staged(root), progress)

    def apply(self, root: Path) -> None:
        path, staged = member(root, self.path), self.staged(root)
        with disk_errors(path):
            if self.pending(root):
                if not staged.is_file():
                    self.stage(root, None)
                os.replace(staged, path)
            fsync_dir(path.parent)
        discard_copy(staged)

    def to_dict(self) -> dict[str, Any]:
        return {
            "do": "rewrite",
            "path": self.path,
            "old_size": self.old_size,
            "new_size": self.new_size,
            "old": _text(self.old),
            "new": _text(self.new),
        }


@dataclass(frozen=True)
class Journal:
    """``before`` and ``after`` say in words and hashes what the target's template was and becomes."""

    before: dict[str, Any]
    after: dict[str, Any]
    steps: tuple[JournalStep, ...]

    def inverted(self) -> Journal:
        """Return the journal that takes everything back, last change first."""
        return Journal(self.after, self.before, tuple(step.inverted() for step in reversed(self.steps)))

    def stage(self, root: Path, progress: Progress | None = None) -> None:
        """Prepare all steps; on failure nothing has changed and nothing is left behind."""
        try:
            for step in self.steps:
                step.stage(root, progress)
        except BaseException:
            self.discard(root)
            raise

    def discard(self, root: Path) -> None:
        """Remove what ``stage`` prepared."""
        for step in self.steps:
            if isinstance(step, Rewrite):
                discard_copy(step.staged(root))

    def apply(self, root: Path) -> None:
        """Carry out all steps that are not carried out yet."""
        for index, step in enumerate(self.steps):
            if not self._overtaken(root, index):
                step.apply(root)

    def _overtaken(self, root: Path, index: int) -> bool:
        """Whether a later step has already moved the file of this one away, so that this one is long done."""
        path = self.steps[index].target
        later = (step for step in self.steps[index + 1 :] if isinstance(step, Move) and step.old == path)
        return any(not move.pending(root) for move in later)

    def check_pending(self, root: Path) -> None:
        """Raise ``BadInput`` unless every file is as it was before the first step."""
        for step in self.steps:
            if not step.pending(root):
                raise _foreign(root / step.target)

    def dump(self) -> bytes:
        """Return the journal's file: a magic line, the SHA-256 of the rest, and packed JSON."""
        value = {"before": self.before, "after": self.after, "steps": [step.to_dict() for step in self.steps]}
        packed = zlib.compress(json.dumps(value, ensure_ascii=False).encode(), 1)
        return _MAGIC + hashlib.sha256(packed).hexdigest().encode() + b"\n" + packed


def read_journal(path: Path) -> Journal:
    """Read a journal; ``BadInput`` if it is damaged or names a file outside its root."""
    data = read_bytes(path, LIMIT)
    digest, _, packed = data.removeprefix(_MAGIC).partition(b"\n")
    if not data.startswith(_MAGIC) or hashlib.sha256(packed).hexdigest().encode() != digest:
        raise BadInput("is no journal of a template installation, or a damaged one", where=path)
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(packed, LIMIT)
        if unpacker.unconsumed_tail:
            raise ValueError(f"more than {LIMIT} bytes")
        value = json.loads(text)
        return Journal(value["before"], value["after"], tuple(_step(item) for item in value["steps"]))
    except (zlib.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"is a journal that cannot be read ({error})", where=path) from None


def _step(item: dict[str, Any]) -> JournalStep:
    match item["do"]:
        case "patch":
            where = _inside(item["path"])
            return Patch(where, int(item["size"]), int(item["offset"]), _bytes(item["old"]), _bytes(item["new"]))
        case "put":
            old, new = (None if item[side] is None else _bytes(item[side]) for side in ("old", "new"))
            return Put(_inside(item["path"]), old, new)
        case "move":
            return Move(_inside(item["old"]), _inside(item["new"]))
        case "rewrite":
            sizes = int(item["old_size"]), int(item["new_size"])
            return Rewrite(_inside(item["path"]), *sizes, _bytes(item["old"]), _bytes(item["new"]))
        case other:
            raise ValueError(f"unknown step {other!r}")


def _inside(path: str) -> str:
    if not path or path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise ValueError(f"a path outside the folder: {path!r}")
    return path


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
