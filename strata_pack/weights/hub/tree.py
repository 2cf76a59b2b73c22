"""Defines the content of a repository as values: files, sizes, content hashes, safe names."""

from __future__ import annotations

from dataclasses import dataclass

from strata_pack.errors import BadInput

STATE_FOLDER = ".strata-fetch"
"""The folder inside the target folder with the lock, the partial bodies and the record of a fetch."""


@dataclass(frozen=True)
class RepoFile:
    """One file of a repository: ``size`` in bytes, its git blob id, and its SHA-256 if it is stored by LFS or Xet."""

    path: str
    size: int
    blob_id: str
    sha256: str | None = None

    @property
    def key(self) -> str:
        """The content's key: the ETag of the Hub, and the name of the blob in the Hub cache."""
        return self.sha256 or self.blob_id


@dataclass(frozen=True)
class RepoTree:
    """A repository at one commit."""

    repo_id: str
    revision: str
    commit: str
    files: tuple[RepoFile, ...]


def safe_path(path: object, where: str) -> str:
    """Return ``path`` if it is a safe relative path on any file system; ``BadInput`` otherwise."""
    if isinstance(path, str) and 0 < len(path.encode("utf-8", "replace")) <= 1024:
        parts = path.split("/")
        plain = all(part not in ("", ".", "..") and len(part.encode("utf-8", "replace")) <= 255 for part in parts)
        foreign = "\\" in path or ":" in parts[0] or parts[0].lower() == STATE_FOLDER
        if plain and path.isprintable() and not foreign:
            return path
    raise BadInput(f"has a file with the unsafe name {str(path)[:200]!r}", where=where, remedy="do not use this source")
