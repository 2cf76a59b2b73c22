"""A Hub on this machine for tests: the calls that ``strata-pack fetch`` and ``huggingface_hub`` make, with faults.

What publishers ask is answered by ``hub_uploads``.

Two loopback origins as in real life: the hub (metadata, small bodies, redirects) and a storage server (LFS bodies).
Faults are given per path and number of times; every request is logged with the body bytes that really left.
Run alone (``python -m tests.hub_server FOLDER``) it serves a folder as the repository ``local/model``.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.hub_handlers import HubHandler, Server, StorageHandler
from tests.hub_repos import Fault, Hit, Repo
from tests.hub_uploads import Uploads


class HubServer:
    """The two servers, their repositories, faults and log. Use as a context manager; ``endpoint`` is the hub's URL."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.faults: dict[str, list[Fault]] = {}
        self.api_faults: list[Fault] = []
        self.hits: list[Hit] = []
        self.uploads = Uploads()
        self.page = 1000
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self._servers = [Server(("127.0.0.1", 0), HubHandler, self), Server(("127.0.0.1", 0), StorageHandler, self)]
        self.endpoint, self.storage = (f"http://127.0.0.1:{server.server_address[1]}" for server in self._servers)

    def __enter__(self) -> HubServer:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def repo(self, name: str, files: dict[str, bytes] | None = None) -> Repo:
        """Return the repository ``name``, created at need; ``files`` become its next commit."""
        repo = self.repos.setdefault(name, Repo())
        if files is not None:
            repo.commit(files)
        return repo

    def fail(self, path: str, *faults: Fault) -> None:
        """Let the bodies of ``path`` go wrong, one fault after the other."""
        self.faults.setdefault(path, []).extend(faults)

    def next_fault(self, path: str) -> Fault:
        """Return the fault of this request and use it up."""
        return self._take(self.faults.get(path, []))

    def next_api_fault(self) -> Fault:
        """Return the fault of this metadata request and use it up."""
        return self._take(self.api_faults)

    def _take(self, waiting: list[Fault]) -> Fault:
        with self._lock:
            if not waiting:
                return Fault()
            fault = waiting[0]
            fault.times -= 1
            if fault.times == 0:
                waiting.pop(0)
            return fault

    def log(self, hit: Hit) -> None:
        with self._lock:
            self.hits.append(hit)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Count a body that is on its way; ``most_at_once`` is the largest number there ever was."""
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            yield
        finally:
            with self._lock:
                self._at_once -= 1

    def body_hits(self, path: str | None = None) -> list[Hit]:
        """Return the requests that asked for a body (redirects left out)."""
        return [
            hit
            for hit in list(self.hits)
            if hit.method == "GET" and hit.status not in (302, 307) and not hit.path.startswith("/api/")
            if path is None or hit.path.endswith("/" + path)
        ]

    def settle(self, path: str, count: int = 1) -> None:
        """Wait for the ends of ``count`` requests of ``path``, which a client need not see."""
        deadline = time.monotonic() + 60
        while sum(hit.ended for hit in self.body_hits(path)) < count and time.monotonic() < deadline:
            time.sleep(0.01)

    def forget(self, path: str) -> None:
        """Clear the log after the request of ``path`` that a client has broken off."""
        self.settle(path)
        self.hits.clear()

    def bytes_sent(self, path: str | None = None) -> int:
        """Return the body bytes that left, of one path or of all."""
        return sum(hit.sent for hit in self.body_hits(path))


@contextmanager
def serve(repos: dict[str, dict[str, bytes]] | None = None) -> Iterator[HubServer]:
    """Yield a running Hub with ``repos`` (name to files) in it."""
    with HubServer() as hub:
        for name, files in (repos or {}).items():
            hub.repo(name, files)
        yield hub


def folder_files(folder: Path) -> dict[str, bytes]:
    """Return a folder as the files of a commit."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


if __name__ == "__main__":
    with serve({"local/model": folder_files(Path(sys.argv[1]))}) as running:
        print(running.endpoint, flush=True)
        threading.Event().wait()
