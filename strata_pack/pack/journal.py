"""Makes a template installation atomic with a journal that is written first and can be replayed.

A journal lists the changes with the bytes before and after each. It is written and synced before the first change;
from then on the installation is committed: any process that finds the journal replays it to its end, also after
several interruptions. A completed journal is kept for rollback, which applies the inverted list. The file's name is its
state:

    journal        an installation in progress
    undo           a rollback in progress
    backup-0001    an installation that can be rolled back; the highest number is the latest

The technique is a redo-only write-ahead log (Mohan et al., ARIES, 1992); the changes are idempotent.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, Protocol, TypedDict

from strata_pack.errors import BadInput
from strata_pack.files import disk_errors, fsync_dir, read_bytes, write_atomic
from strata_pack.pack.paths import member
from strata_pack.progress import Progress
from strata_pack.weights.gguf.copy import copy_with_header, discard_copy

JOURNAL = "journal"
UNDO = "undo"
BACKUP = "backup-{:04d}"
LIMIT = 512 << 20
"""Maximum bytes of a journal, compressed or not; the largest headers are about 20 MB."""

_MAGIC = b"strata-pack journal 1\n"
STAGED = "{}.template-new"
"""Suffix of a file's new copy while it is written next to the file."""


class JournalStep(Protocol):
    """One change of one file; paths are relative to the installation's root folder."""

    @property
    def target(self) -> str:
        """The path of the file before the step."""

    def inverted(self) -> JournalStep:
        """Return the step that undoes this one."""

    def pending(self, root: Path) -> bool:
        """Return whether the change is not made yet; ``BadInput`` if the file is in neither state."""

    def stage(self, root: Path, progress: Progress | None) -> None:
        """Do slow work that may fail in advance, without changing the target."""

    def apply(self, root: Path) -> None:
        """Make the change and sync it. A change that was already made is only synced."""

    def to_dict(self) -> dict[str, Any]:
        """Return the step as JSON values."""


def _foreign(path: Path) -> BadInput:
    remedy = "if you replaced the file yourself, remove the .template-install folder next to it"
    return BadInput("was changed by another program after the template was installed", where=path, remedy=remedy)


def _look(path: Path, offset: int, count: int) -> tuple[int, bytes]:
    """Return the size of ``path`` and ``count`` bytes from ``offset``; ``BadInput`` if the file does not exist."""
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size, os.pread(file.fileno(), count, offset)
    except FileNotFoundError:
        raise _foreign(path) from None


class _Instant:
    """Base of steps that need no preparation."""

    def stage(self, root: Path, progress: Progress | None) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Patch(_Instant):
    """Overwrites bytes inside a file; ``size`` is the file's size in bytes, before and after."""

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
        # After an interrupted write, each byte is either the old one or the new one.
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
    """Replaces, creates (``old`` is ``None``) or removes (``new`` is ``None``) a small file."""

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
    """Renames a file in its folder."""

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
    """Replaces a GGUF by a copy with another header; ``old_size`` and ``new_size`` are the sizes in bytes."""

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
        """Return the path at which the copy is written before it replaces the file."""
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


class TemplateIdentityDict(TypedDict):
    """A template by hash (``None`` if there is no template) and status; of a new one also its id and origin."""

    sha256: str | None
    status: str
    id: NotRequired[str | None]
    origin: NotRequired[str]


@dataclass(frozen=True)
class Journal:
    """``before`` and ``after`` describe the target's template (id, status, hash) before and after."""

    before: TemplateIdentityDict
    after: TemplateIdentityDict
    steps: tuple[JournalStep, ...]

    def inverted(self) -> Journal:
        """Return the journal that undoes everything, last change first."""
        return Journal(self.after, self.before, tuple(step.inverted() for step in reversed(self.steps)))

    def stage(self, root: Path, progress: Progress | None = None) -> None:
        """Prepare all steps; on failure nothing is changed and no file is left."""
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
        """Apply all pending steps."""
        for index, step in enumerate(self.steps):
            if not self._overtaken(root, index):
                step.apply(root)

    def _overtaken(self, root: Path, index: int) -> bool:
        """Return whether a later step has already renamed the file of this step, so this step is done."""
        path = self.steps[index].target
        later = (step for step in self.steps[index + 1 :] if isinstance(step, Move) and step.old == path)
        return any(not move.pending(root) for move in later)

    def check_pending(self, root: Path) -> None:
        """Raise ``BadInput`` unless every file is in its state before the first step."""
        for step in self.steps:
            if not step.pending(root):
                raise _foreign(root / step.target)

    def dump(self) -> bytes:
        """Return the journal file's bytes: a magic line, the SHA-256 of the rest, and compressed JSON."""
        value = {"before": self.before, "after": self.after, "steps": [step.to_dict() for step in self.steps]}
        packed = zlib.compress(json.dumps(value, ensure_ascii=False).encode(), 1)
        return _MAGIC + hashlib.sha256(packed).hexdigest().encode() + b"\n" + packed


def read_journal(path: Path) -> Journal:
    """Read a journal; ``BadInput`` if it is damaged or names a file outside its root."""
    data = read_bytes(path, LIMIT)
    digest, _, packed = data.removeprefix(_MAGIC).partition(b"\n")
    if not data.startswith(_MAGIC) or hashlib.sha256(packed).hexdigest().encode() != digest:
        raise BadInput("is not the journal of a template installation, or is damaged", where=path)
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(packed, LIMIT)
        if unpacker.unconsumed_tail:
            raise ValueError(f"more than {LIMIT} bytes")
        value = json.loads(text)
        return Journal(value["before"], value["after"], tuple(_step(item) for item in value["steps"]))
    except (zlib.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"cannot be read as a journal ({error})", where=path) from None


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
