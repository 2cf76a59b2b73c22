"""Reads the first bytes of a repository's large files: the headers of weights, before any download.

They are looked at to refuse early and then forgotten: nothing is built from bytes whose hash is not proved.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx2 as httpx

from strata_pack.errors import EnvironmentFailure
from strata_pack.weights.hub.cache import cached_blob
from strata_pack.weights.hub.connection import Hub
from strata_pack.weights.hub.small import body_url
from strata_pack.weights.hub.state import part_path, part_size
from strata_pack.weights.hub.tree import RepoFile, RepoTree

AT_ONCE = 64 << 10
"""Bytes of the first request: enough for the header of most files."""


class RemoteFile:
    """Reads a file from its first byte on, a piece at a time: from the folder, the Hub cache, or the Hub."""

    def __init__(
        self, client: httpx.Client, hub: Hub, tree: RepoTree, file: RepoFile, dest: Path, at_once: int = AT_ONCE
    ) -> None:
        """``at_once`` are the bytes of the first request at least; no request asks twice for a byte."""
        self._client, self._hub, self._tree, self._file, self._at_once = client, hub, tree, file, at_once
        # A body that has arrived and is not proved yet tells as much as the Hub would.
        part = part_path(dest, file) if part_size(dest, file) == file.size else None
        places = (dest / file.path, part, cached_blob(tree.repo_id, file))
        self._local = next((path for path in places if path is not None and path.is_file()), None)
        self._known = b""
        self._at = 0

    def read(self, count: int) -> bytes:
        """Return the next ``count`` bytes; ``EnvironmentFailure`` when the Hub does not give them."""
        end = self._at + count
        if end > len(self._known):
            if self._local is None:
                self._known += self._fetch(len(self._known), min(max(end, self._at_once), self._file.size))
            else:
                self._known = self._from_disk(end)
        piece = self._known[self._at : end]
        self._at = end
        return piece

    def _from_disk(self, count: int) -> bytes:
        assert self._local is not None
        with self._local.open("rb") as file:
            return file.read(count)

    def _fetch(self, start: int, stop: int) -> bytes:
        url = body_url(self._hub, self._tree, self._file)
        headers = {**self._hub.headers(), "Accept-Encoding": "identity", "Range": f"bytes={start}-{stop - 1}"}
        if stop <= start:
            return b""
        found = bytearray()
        try:
            with self._client.stream("GET", url, headers=headers) as response:
                if response.status_code not in (200, 206):
                    raise EnvironmentFailure(f"HTTP {response.status_code} for its header", where=url)
                skipped = start if response.status_code == 200 else 0
                for data in response.iter_raw():
                    found += data
                    if len(found) >= skipped + stop - start:
                        break
        except httpx.HTTPError as error:
            raise EnvironmentFailure(
                f"its header cannot be read ({error or type(error).__name__})", where=url
            ) from error
        return bytes(found[skipped : skipped + stop - start])


OpenHead = Callable[[str], tuple[Callable[[int], bytes], int]]
"""Returns a reader of a file's bytes from the first on, and the file's size, by its name in the repository."""


def head_opener(client: httpx.Client, hub: Hub, tree: RepoTree, dest: Path) -> OpenHead:
    """Return the way to look at the beginning of any file of ``tree``."""
    files = {file.path: file for file in tree.files}

    def open_head(name: str) -> tuple[Callable[[int], bytes], int]:
        # What a GGUF's header needs is known from its own counts; other headers say it in their first bytes.
        at_once = 0 if name.lower().endswith(".gguf") else AT_ONCE
        return RemoteFile(client, hub, tree, files[name], dest, at_once).read, files[name].size

    return open_head
