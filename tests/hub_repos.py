"""What the Hub for tests holds: repositories with commits, faults on demand, and a log of requests."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LFS_FROM = 1 << 16
"""Bodies of this size or more are served by the storage origin, smaller ones by the hub itself."""


@dataclass
class Fault:
    """What goes wrong with the body of one path, ``times`` times (a negative number: always).

    ``break_after``: the connection drops after so many body bytes of each answer. ``short_by``: the answer announces
    and sends that many bytes too few. ``ignore_range``: 200 with the whole body. ``status``: this status, with
    ``headers``. ``corrupt``: the last byte is another one. ``extra``: so many bytes too many.
    ``rate``: bytes per second. ``etag``: another identity in the hub's headers. ``wrong_range``: Content-Range lies.
    ``body``: this instead, with status 200 and ``headers``, as a proxy answers.
    """

    break_after: int | None = None
    short_by: int = 0
    ignore_range: bool = False
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    corrupt: bool = False
    extra: int = 0
    rate: int | None = None
    etag: str | None = None
    wrong_range: bool = False
    body: bytes | None = None
    times: int = 1


@dataclass
class Hit:
    """One request: ``origin`` is "hub" or "storage"; ``sent`` counts body bytes; ``range`` and ``auth`` as received.

    It is logged, and each piece counted, before the client can have it; ``ended`` says that nothing more is sent.
    """

    origin: str
    method: str
    path: str
    status: int
    sent: int
    range: str | None
    auth: str | None
    ended: bool = False


@dataclass
class Repo:
    """One repository: commits in order, each a whole tree; ``raw`` adds entries to the listing as they are.

    ``asks`` says that its owner restricts access, to whomever asks about it.
    """

    commits: list[tuple[str, dict[str, bytes]]] = field(default_factory=list)
    gated: int | None = None
    token: str | None = None
    asks: bool = False
    private: bool = False
    raw: list[dict[str, Any]] = field(default_factory=list)

    def commit(self, files: dict[str, bytes]) -> str:
        """Add a commit with exactly ``files`` and return its id; "main" means the last one."""
        digest = hashlib.sha1(str(len(self.commits)).encode())
        for name, data in sorted(files.items()):
            digest.update(name.encode() + b"\0" + hashlib.sha1(data).digest())
        self.commits.append((digest.hexdigest(), dict(files)))
        return self.commits[-1][0]

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """Return the commit that a revision means."""
        if revision == "main":
            return self.commits[-1]
        return next((commit for commit in self.commits if commit[0] == revision), None)


def blob_id(data: bytes) -> str:
    """Return the git blob id of a body."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def etag_of(data: bytes) -> str:
    """Return the identity the Hub gives a body: SHA-256 for LFS, else the git blob id."""
    return hashlib.sha256(data).hexdigest() if len(data) >= LFS_FROM else blob_id(data)


def listing(files: dict[str, bytes]) -> list[dict[str, Any]]:
    """Return the entries of a commit as the Hub lists them."""
    folders = {str(parent) for name in files for parent in Path(name).parents if str(parent) != "."}
    entries: list[dict[str, Any]] = [
        {"type": "directory", "path": name, "oid": hashlib.sha1(name.encode()).hexdigest(), "size": 0}
        for name in sorted(folders)
    ]
    for name, data in sorted(files.items()):
        entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": blob_id(data)}
        if len(data) >= LFS_FROM:
            sha256 = hashlib.sha256(data).hexdigest()
            pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n" % (
                sha256.encode(),
                len(data),
            )
            entry |= {"oid": blob_id(pointer), "lfs": {"oid": sha256, "size": len(data), "pointerSize": len(pointer)}}
        entries.append(entry)
    return entries
