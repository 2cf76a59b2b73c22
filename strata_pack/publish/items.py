"""The files to publish with paths, sizes and hashes, and their difference to the target's files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from strata_pack.files import CHUNK

ChangeKind = Literal["add", "replace", "remove", "keep"]


@dataclass(frozen=True)
class PublishedFile:
    """One file: ``path`` in the target, ``size`` in bytes, ``sha256`` in hex; content from ``data`` or a source
    file."""

    path: str
    size: int
    sha256: str
    source: Path | None = None
    data: bytes | None = None

    @classmethod
    def of_bytes(cls, path: str, data: bytes) -> PublishedFile:
        """Return an item with the content ``data``."""
        return cls(path, len(data), hashlib.sha256(data).hexdigest(), data=data)

    @classmethod
    def of_file(cls, path: str, source: Path, sha256: str) -> PublishedFile:
        """Return an item with the content of ``source``, whose SHA-256 is given."""
        return cls(path, source.stat().st_size, sha256, source=source)

    def pieces(self) -> Iterator[bytes]:
        """Yield the content in blocks."""
        if self.data is not None:
            yield self.data
            return
        assert self.source is not None
        with self.source.open("rb") as file:
            while piece := file.read(CHUNK):
                yield piece

    def blob_id(self) -> str:
        """Return the git blob id of the content, which the Hub lists for files outside LFS."""
        digest = hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)
        for piece in self.pieces():
            digest.update(piece)
        return digest.hexdigest()


class FileChangeDict(TypedDict):
    """A ``FileChange`` as JSON."""

    change: ChangeKind
    path: str
    size: int


@dataclass(frozen=True)
class FileChange:
    """The change of one path; ``size`` is the new file's in bytes (0 if removed)."""

    kind: ChangeKind
    path: str
    size: int

    def to_dict(self) -> FileChangeDict:
        return {"change": self.kind, "path": self.path, "size": self.size}


@dataclass(frozen=True)
class TargetFile:
    """A file in the target: ``size`` and either its SHA-256 or its git blob id."""

    size: int
    sha256: str | None = None
    blob_id: str | None = None

    def is_same(self, item: PublishedFile) -> bool:
        """Return whether the target's file has the content of ``item``."""
        if self.size != item.size:
            return False
        return self.sha256 == item.sha256 if self.sha256 is not None else self.blob_id == item.blob_id()


def plan_changes(
    items: Iterable[PublishedFile], there: Mapping[str, TargetFile], folders: Iterable[str]
) -> list[FileChange]:
    """Return the changes that turn the target into ``items``, by path.

    Files in ``folders`` (the packs' folders) that are not in ``items`` are removed; other files stay.
    """
    wanted = {item.path: item for item in items}
    changes = []
    for path, item in sorted(wanted.items()):
        found = there.get(path)
        kind: ChangeKind = "add" if found is None else "keep" if found.is_same(item) else "replace"
        changes.append(FileChange(kind, path, item.size))
    owned = tuple(f"{folder}/" for folder in folders)
    gone = sorted(path for path in there if path.startswith(owned) and path not in wanted) if owned else []
    return changes + [FileChange("remove", path, 0) for path in gone]
