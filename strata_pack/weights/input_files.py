"""Detects input files that change while a build reads them.

A manifest names the hash of its source, and the source is read more than once: for its header, its tensors, its hash.
These reads see the same bytes only if no file changed from the first to the last.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from strata_pack.errors import BadInput

_REMEDY = "make sure that nothing writes it, and run again"


@dataclass(frozen=True)
class FileState:
    """The identity of a file's content. ``changed_ns`` (ctime) cannot be reset by the program that writes the file.

    It also moves with ``about``: the count of hard links, owner, group and mode, which say nothing of the content.
    """

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int
    about: tuple[int, ...]

    @classmethod
    def of(cls, path: Path) -> FileState:
        """Return the state of the file at ``path`` (links are followed); raises ``OSError`` if there is none."""
        info = os.stat(path)
        about = (info.st_nlink, info.st_uid, info.st_gid, info.st_mode)
        return cls(info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns, about)

    def same_bytes(self, before: FileState) -> bool:
        """Return whether nothing was written since ``before``; a new hard link, owner or mode is not a change."""
        known = replace(before, changed_ns=self.changed_ns, about=self.about)
        return self == before or (self == known and self.about != before.about)


@dataclass(frozen=True)
class InputFiles:
    """Files with their states at one time."""

    states: Mapping[Path, FileState]

    @classmethod
    def of(cls, paths: Iterable[Path]) -> InputFiles:
        """Return ``paths`` with their present states; ``BadInput`` for a missing file."""
        states = {}
        for path in paths:
            try:
                states[path] = FileState.of(path)
            except FileNotFoundError:
                raise BadInput("no such file", where=path) from None
            except OSError as error:
                raise BadInput(f"cannot be read ({error.strerror})", where=path) from None
        return cls(states)

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(self.states)

    def check_unchanged(self) -> None:
        """Raise ``BadInput`` if a file was replaced, changed its size, or was written to since."""
        for path, before in self.states.items():
            try:
                now = FileState.of(path)
            except OSError:
                raise BadInput("was removed while it was read", where=path, remedy=_REMEDY) from None
            if now.same_bytes(before):
                continue
            if (now.device, now.inode) != (before.device, before.inode):
                problem = "was replaced by another file while it was read"
            elif now.size != before.size:
                problem = f"had {before.size} bytes and has {now.size} now: it changed while it was read"
            else:
                problem = "was written to while it was read"
            raise BadInput(problem, where=path, remedy=_REMEDY)

    def fingerprint(self) -> bytes:
        """Return bytes that change if any content may have changed; file names matter, folders do not."""
        facts = [(path.name, state.size, state.modified_ns, state.changed_ns) for path, state in self.states.items()]
        return "\n".join(map(repr, facts)).encode("utf-8", "surrogateescape")

    def __add__(self, other: InputFiles) -> InputFiles:
        return InputFiles({**other.states, **self.states})
