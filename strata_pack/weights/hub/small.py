"""Reads small files of a repository before files are selected, such as the index of a checkpoint.

They are verified like every file, kept in memory, and passed to the fetch so that they are not downloaded twice.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from urllib.parse import quote

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.files import disk_errors, read_bytes
from strata_pack.weights.checkpoint_index import INDEX_LIMIT
from strata_pack.weights.hub.body import BodyJob, fetch_body, verified_sha256
from strata_pack.weights.hub.cache import cached_blob
from strata_pack.weights.hub.connection import Hub
from strata_pack.weights.hub.tree import RepoFile, RepoTree


def body_url(hub: Hub, tree: RepoTree, file: RepoFile) -> str:
    """Return the address of a file's body at the pinned commit."""
    return f"{hub.endpoint}/{tree.repo_id}/resolve/{tree.commit}/{quote(file.path)}"


class SmallFiles:
    """Reads small files of one repository: from the folder, the Hub cache, or the Hub."""

    def __init__(self, hub: Hub, tree: RepoTree, dest: Path, *, offline: bool) -> None:
        self._hub, self._tree, self._dest, self._offline = hub, tree, dest, offline
        self._fetched: dict[str, bytes] = {}

    @property
    def travelled(self) -> int:
        """Number of bytes downloaded."""
        return sum(map(len, self._fetched.values()))

    def read(self, path: str) -> bytes:
        """Return the bytes of ``path``; ``BadInput`` if it is too large, ``EnvironmentFailure`` if it cannot be
        fetched."""
        file = next(file for file in self._tree.files if file.path == path)
        where = f"{self._tree.repo_id}@{self._tree.revision}"
        if file.size > INDEX_LIMIT:
            raise BadInput(f"{path} is larger than {INDEX_LIMIT} bytes", where=where)
        for place in (self._dest / path, cached_blob(self._tree.repo_id, file)):
            if place is not None and verified_sha256(place, file) is not None:
                return read_bytes(place, INDEX_LIMIT)
        if self._offline:
            raise EnvironmentFailure(
                f"offline, and {path} of {where} is neither in {self._dest} nor in the Hub cache",
                remedy="unset HF_HUB_OFFLINE and run again",
            )
        self._fetched[path] = self._fetch(file)
        return self._fetched[path]

    def seed(self, file: RepoFile, part: Path) -> None:
        """Write the known content of ``file`` to ``part``, so that it is not downloaded again."""
        data = self._fetched.get(file.path)
        if data is not None:
            with disk_errors(part):
                part.parent.mkdir(parents=True, exist_ok=True)
                part.write_bytes(data)

    def _fetch(self, file: RepoFile) -> bytes:
        with tempfile.TemporaryDirectory(prefix="strata-index-") as name:
            part = Path(name) / "part"
            job = BodyJob(
                url=body_url(self._hub, self._tree, file),
                commit=self._tree.commit,
                file=file,
                part=part,
                headers=self._hub.headers(),
                retry_policy=self._hub.retry_policy,
                stop=threading.Event(),
                advance=lambda _amount: None,
                received=lambda _amount: None,
                note=lambda _text: None,
            )
            with self._hub.client() as client:
                fetch_body(client, job)
            return part.read_bytes()
