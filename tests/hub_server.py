"""A Hub on this machine for tests: the calls that ``strata-pack fetch`` and ``huggingface_hub`` make, with faults.

What publishers ask is answered by ``hub_uploads``.

Two loopback origins as in real life: the hub (metadata, small bodies, redirects) and a storage server (LFS bodies).
Faults are given per path and number of times; every request is logged with the body bytes that really left.
Run alone (``python -m tests.hub_server FOLDER``) it serves a folder as the repository ``local/model``.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.hub_uploads import Uploads, answer

LFS_FROM = 1 << 16
"""Bodies of this size or more are served by the storage origin, smaller ones by the hub itself."""

CHUNK = 1 << 16


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


@dataclass(frozen=True)
class Hit:
    """One request: ``origin`` is "hub" or "storage"; ``sent`` counts body bytes; ``range`` and ``auth`` as received."""

    origin: str
    method: str
    path: str
    status: int
    sent: int
    range: str | None
    auth: str | None


@dataclass
class Repo:
    """One repository: commits in order, each a whole tree; ``raw`` adds entries to the listing as they are.

    ``asks`` says that its owner restricts access, to whomever asks about it.
    """

    commits: list[tuple[str, dict[str, bytes]]] = field(default_factory=list)
    gated: int | None = None
    token: str | None = None
    asks: bool = False
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
        self._servers = [_Server(("127.0.0.1", 0), _HubHandler, self), _Server(("127.0.0.1", 0), _StorageHandler, self)]
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
        """Wait for ``count`` requests of ``path`` to be logged: that is at their ends, which a client need not see."""
        deadline = time.monotonic() + 10
        while len(self.body_hits(path)) < count and time.monotonic() < deadline:
            time.sleep(0.01)

    def forget(self, path: str) -> None:
        """Clear the log after the request of ``path`` that a client has broken off."""
        self.settle(path)
        self.hits.clear()

    def bytes_sent(self, path: str | None = None) -> int:
        """Return the body bytes that left, of one path or of all."""
        return sum(hit.sent for hit in self.body_hits(path))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[_Handler], hub: HubServer) -> None:
        self.hub = hub
        super().__init__(address, handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    origin = ""
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.take()

    def do_PUT(self) -> None:
        self.take()

    def take(self) -> None:
        """Read what a publisher sends and answer it, with what goes wrong."""
        path, uploads = unquote(urlsplit(self.path).path), self.server.hub.uploads
        body = self._read_body()
        fault = uploads.next_fault(self.command, path)
        if fault is not None and not fault.after and fault.status is None:
            self.close_connection = True
            return
        if fault is not None and fault.status is not None:
            self.reply(fault.status, b'{"error": "fault on demand"}', {"Content-Type": "application/json"})
            return
        status, value = answer(self.server.hub, self.command, path, body)
        if fault is not None:
            self.close_connection = True
            return
        codes = {412: {"X-Error-Code": "PreconditionFailed"}}.get(status, {})
        self.reply(status, json.dumps(value).encode(), {"Content-Type": "application/json", **codes})

    def _read_body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def answer(self) -> None:
        raise NotImplementedError

    def reply(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        """Send a small answer whole."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        sent = 0
        if self.command != "HEAD":
            self.wfile.write(body)
            sent = len(body)
        self.note(status, sent)

    def note(self, status: int, sent: int) -> None:
        headers = self.headers
        path = unquote(urlsplit(self.path).path)
        self.server.hub.log(
            Hit(self.origin, self.command, path, status, sent, headers.get("Range"), headers.get("Authorization"))
        )

    def send_body(self, data: bytes, fault: Fault, headers: dict[str, str]) -> None:
        """Send a body, whole or a range of it, with what goes wrong."""
        if fault.body is not None:
            self.reply(200, fault.body, fault.headers)
            return
        if fault.status is not None:
            self.reply(fault.status, b"fault on demand", {**headers, **fault.headers})
            return
        if fault.corrupt:
            data = data[:-1] + bytes([data[-1] ^ 0x55])
        data += b"x" * fault.extra
        status, start, stop = 200, 0, len(data)
        wanted = self.headers.get("Range")
        if wanted and not fault.ignore_range:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last) + 1, len(data)) if last else len(data)
            if start >= len(data):
                self.reply(416, b"", {"Content-Range": f"bytes */{len(data)}"})
                return
            status = 206
        body = memoryview(data)[start : stop - fault.short_by]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Accept-Ranges", "bytes")
        if status == 206:
            shown = start + (7 if fault.wrong_range else 0)
            self.send_header("Content-Range", f"bytes {shown}-{stop - 1}/{len(data)}")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        sent = 0
        if self.command == "GET":
            with self.server.hub.sending(), suppress(OSError):
                for piece in self._pieces(body, fault):
                    self.wfile.write(piece)
                    sent += len(piece)
            if sent < len(body):
                self.close_connection = True
        self.note(status, sent)

    def _pieces(self, body: memoryview, fault: Fault) -> Iterator[memoryview]:
        left = len(body) if fault.break_after is None else min(fault.break_after, len(body))
        at = 0
        step = CHUNK if fault.rate is None else max(1, min(CHUNK, fault.rate // 50))
        while at < left:
            end = min(at + step, left)
            if fault.rate is not None:
                time.sleep((end - at) / fault.rate)
            yield body[at:end]
            at = end


class _HubHandler(_Handler):
    origin = "hub"

    def answer(self) -> None:
        url = urlsplit(self.path)
        parts = unquote(url.path).strip("/").split("/")
        if parts[:2] == ["api", "models"] and len(parts) >= 4:
            self._api("/".join(parts[2:4]), parts[4:], parse_qs(url.query))
        elif parts == ["api", "models"]:
            (author,) = parse_qs(url.query)["author"]
            mine = [{"id": name} for name in self.server.hub.repos if name.startswith(f"{author}/")]
            self.reply(200, json.dumps(mine).encode(), {"Content-Type": "application/json"})
        elif len(parts) >= 5 and parts[2] == "resolve":
            self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self.reply(404, b"{}")

    def _open(self, name: str) -> Repo | None:
        repo = self.server.hub.repos.get(name)
        if repo is None:
            self.reply(401, b"{}", {"X-Error-Code": "RepoNotFound"})
            return None
        known = repo.token is not None and self.headers.get("Authorization") == f"Bearer {repo.token}"
        if repo.gated is not None and not known:
            self.reply(repo.gated, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
            return None
        return repo

    def _api(self, name: str, rest: list[str], query: dict[str, list[str]]) -> None:
        fault = self.server.hub.next_api_fault()
        if fault.status is not None or fault.body is not None:
            self.reply(fault.status or 200, fault.body or b"{}", fault.headers)
            return
        repo = self._open(name)
        if repo is None:
            return
        if rest[:1] == ["xet-write-token"]:
            self._xet_token()
            return
        if rest[:1] == ["commits"]:
            self._commits(repo)
            return
        kind, revision, *_ = [*rest, "revision", "main"] if not rest else [*rest, "main"]
        found = repo.at(revision)
        if found is None:
            self.reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif kind == "revision":
            about = {"id": name, "sha": found[0], "siblings": [], "gated": repo.asks and "manual"}
            self.reply(200, json.dumps(about).encode(), {"Content-Type": "application/json"})
        else:
            self._tree(repo, found[1], query)

    def _xet_token(self) -> None:
        store = self.server.hub.uploads.xet
        if store is None:
            self.reply(404, b"{}")
            return
        token = {"accessToken": "token", "exp": int(time.time()) + 3600, "casUrl": f"local://{store}"}
        headers = {
            "X-Xet-Cas-Url": token["casUrl"],
            "X-Xet-Access-Token": "token",
            "X-Xet-Token-Expiration": str(token["exp"]),
        }
        self.reply(200, json.dumps(token).encode(), {"Content-Type": "application/json", **headers})

    def _commits(self, repo: Repo) -> None:
        """The list of commits, the newest first; the n-th one was made on the n-th day of 2026."""
        found = [
            {"id": commit, "title": f"commit {number}", "date": f"2026-01-{number:02}T10:00:00.000Z", "authors": []}
            for number, (commit, _) in enumerate(repo.commits, 1)
        ]
        self.reply(200, json.dumps(found[::-1]).encode(), {"Content-Type": "application/json"})

    def _tree(self, repo: Repo, files: dict[str, bytes], query: dict[str, list[str]]) -> None:
        entries = [*_listing(files), *repo.raw]
        start = int(query.get("cursor", ["0"])[0])
        page = entries[start : start + self.server.hub.page]
        headers = {"Content-Type": "application/json"}
        if start + len(page) < len(entries):
            path = urlsplit(self.path).path
            more = f"{self.server.hub.endpoint}{path}?recursive=true&cursor={start + len(page)}"
            headers["Link"] = f'<{more}>; rel="next"'
        self.reply(200, json.dumps(page).encode(), headers)

    def _resolve(self, name: str, revision: str, path: str) -> None:
        repo = self._open(name)
        if repo is None:
            return
        found = repo.at(revision)
        if found is None or path not in found[1]:
            self.reply(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        data = found[1][path]
        waiting = self.server.hub.faults.get(path)
        etag = (waiting[0].etag if waiting else None) or etag_of(data)
        headers = {"X-Repo-Commit": found[0], "ETag": f'"{etag}"'}
        if len(data) >= LFS_FROM:
            linked = {"X-Linked-ETag": f'"{etag}"', "X-Linked-Size": str(len(data))}
            location = f"{self.server.hub.storage}/{name}/{found[0]}/{path}?signature=x"
            self.reply(302, b"", {**headers, **linked, "Location": location})
        else:
            self.send_body(data, self.server.hub.next_fault(path), headers)


class _StorageHandler(_Handler):
    origin = "storage"

    def answer(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        hub = self.server.hub
        found = hub.repos["/".join(parts[:2])].at(parts[2])
        path = "/".join(parts[3:])
        if found is None:
            self.reply(404)
            return
        self.send_body(found[1][path], hub.next_fault(path), {"ETag": f'"{hashlib.md5(found[1][path]).hexdigest()}"'})


def _listing(files: dict[str, bytes]) -> list[dict[str, Any]]:
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
