"""Reads the first bytes of a repository's large files, such as the headers of weights, before any download.

They are used only for early checks: nothing is built from bytes without a verified hash.
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
    """Reads a file sequentially from its first byte: from the folder, the Hub cache, or the Hub."""

    def __init__(
        self, client: httpx.Client, hub: Hub, tree: RepoTree, file: RepoFile, dest: Path, at_once: int = AT_ONCE
    ) -> None:
        """``at_once`` is the minimum number of bytes of the first request; no byte is requested twice."""
        self._client, self._hub, self._tree, self._file, self._at_once = client, hub, tree, file, at_once
        # A received but unverified body is as good as the Hub's answer for this purpose.
        part = part_path(dest, file) if part_size(dest, file) == file.size else None
        places = (dest / file.path, part, cached_blob(tree.repo_id, file))
        self._local = next((path for path in places if path is not None and path.is_file()), None)
        self._known = b""
        self._at = 0

    def read(self, count: int) -> bytes:
        """Return the next ``count`` bytes; ``EnvironmentFailure`` if the Hub does not deliver them."""
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
"""Returns a sequential reader of a file, and the file's size, by its name in the repository."""


def head_opener(client: httpx.Client, hub: Hub, tree: RepoTree, dest: Path) -> OpenHead:
    """Return a function that opens the beginning of any file of ``tree``."""
    files = {file.path: file for file in tree.files}

    def open_head(name: str) -> tuple[Callable[[int], bytes], int]:
        # A GGUF's header has counts from which its size follows; other headers begin with their size.
        at_once = 0 if name.lower().endswith(".gguf") else AT_ONCE
        return RemoteFile(client, hub, tree, files[name], dest, at_once).read, files[name].size

    return open_head
