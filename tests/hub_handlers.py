"""The HTTP side of the Hub for tests: metadata, redirects and bodies, with what goes wrong."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.hub_repos import LFS_FROM, Fault, Hit, Repo, etag_of, listing
from tests.hub_uploads import answer

if TYPE_CHECKING:
    from tests.hub_server import HubServer

CHUNK = 1 << 16


class Server(ThreadingHTTPServer):
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
    server: Server

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
            self.reply(fault.status, json.dumps({"error": fault.error}).encode(), {"Content-Type": "application/json"})
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
        sent = b"" if self.command == "HEAD" else body
        hit = self.note(status, len(sent))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(sent)
        hit.ended = True

    def note(self, status: int, sent: int) -> Hit:
        """Log the request that is being answered."""
        headers = self.headers
        path = unquote(urlsplit(self.path).path)
        hit = Hit(self.origin, self.command, path, status, sent, headers.get("Range"), headers.get("Authorization"))
        self.server.hub.log(hit)
        return hit

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
        hit = self.note(status, 0)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Accept-Ranges", "bytes")
        if status == 206:
            shown = start + (7 if fault.wrong_range else 0)
            self.send_header("Content-Range", f"bytes {shown}-{stop - 1}/{len(data)}")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            with self.server.hub.sending():
                self._write(self._pieces(body, fault), hit)
            if hit.sent < len(body):
                self.close_connection = True
        hit.ended = True

    def _write(self, pieces: Iterator[memoryview], hit: Hit) -> None:
        for piece in pieces:
            hit.sent += len(piece)
            try:
                self.wfile.write(piece)
            except OSError:
                hit.sent -= len(piece)
                return

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


class HubHandler(_Handler):
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
            about = {"id": name, "sha": found[0], "siblings": [], "private": repo.private}
            about["gated"] = repo.asks and "manual"
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
        entries = [*listing(files), *repo.raw]
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


class StorageHandler(_Handler):
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
