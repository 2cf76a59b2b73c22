"""Downloads one file body over HTTP, resuming a partial one, and verifies its content hash.

The partial file is the only state: its length is the start of the next request, whatever stopped the last one. The hash
is computed while writing; a resumed download first hashes the existing bytes from the disk.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx2 as httpx

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.files import CHUNK, disk_errors
from strata_pack.weights.hub.api import LOST, NOT_A_HUB, lost
from strata_pack.weights.hub.connection import LOGIN_REMEDY, RetryPolicy, may_pass, retry_after_seconds
from strata_pack.weights.hub.tree import RepoFile

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


class Stopped(Exception):
    """The fetch was stopped; received bytes are kept."""


class _Fault(Exception):
    """A transient fault that is retried."""

    def __init__(self, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after


@dataclass(frozen=True)
class BodyJob:
    """One body to download: ``url``, pinned to ``commit``, into ``part``.

    ``advance`` is called with changes of the file's length (bytes found, received, or discarded); ``received`` with
    bytes received over the network.
    """

    url: str
    commit: str
    file: RepoFile
    part: Path
    headers: Mapping[str, str]
    retry_policy: RetryPolicy
    stop: threading.Event
    advance: Callable[[int], None]
    received: Callable[[int], None]
    note: Callable[[str], None]


class ContentHash:
    """Computes the SHA-256 of a content and, for a file stored in git itself, its blob id."""

    def __init__(self, file: RepoFile) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self._blob = None if file.sha256 else hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)

    def update(self, data: bytes | memoryview) -> None:
        self._sha256.update(data)
        if self._blob is not None:
            self._blob.update(data)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def matches(self) -> bool:
        """Return whether the content matches the repository's hash."""
        return (self._sha256 if self._blob is None else self._blob).hexdigest() == self._file.key


def verified_sha256(path: Path, file: RepoFile, stop: threading.Event | None = None) -> str | None:
    """Return the SHA-256 of ``path`` if its content is that of ``file``, else None."""
    digest = ContentHash(file)
    try:
        with path.open("rb") as stream:
            if os.fstat(stream.fileno()).st_size != file.size:
                return None
            while data := stream.read(CHUNK):
                if stop is not None and stop.is_set():
                    raise Stopped
                digest.update(data)
    except (FileNotFoundError, IsADirectoryError):
        return None
    return digest.sha256 if digest.matches() else None


class _Part:
    """The partial file with its length and its running hash."""

    def __init__(self, job: BodyJob) -> None:
        self._job = job
        job.part.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(job.part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        self.offset = 0
        self.refused_at: int | None = None
        """The offset of the last refusal by the storage server: a new link solves an expired one, but not a second
        refusal."""
        self.digest = ContentHash(job.file)
        self._take_over()

    def _take_over(self) -> None:
        if os.fstat(self._fd).st_size > self._job.file.size:
            os.ftruncate(self._fd, 0)
        while data := os.pread(self._fd, CHUNK, self.offset):
            if self._job.stop.is_set():
                raise Stopped
            self.digest.update(data)
            self.offset += len(data)
        self._job.advance(self.offset)

    def restart(self) -> None:
        os.ftruncate(self._fd, 0)
        self._job.advance(-self.offset)
        self.offset = 0
        self.digest = ContentHash(self._job.file)

    def write(self, data: bytes) -> None:
        if self._job.stop.is_set():
            raise Stopped
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, self.offset)
            self.digest.update(view[:written])
            self.offset += written
            self._job.advance(written)
            self._job.received(written)
            view = view[written:]

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


def fetch_body(client: httpx.Client, job: BodyJob) -> str:
    """Download the body to ``job.part``, sync it, and return its SHA-256.

    A body with a wrong hash is downloaded once more from the first byte and refused the second time. Raises
    ``Stopped``, ``BadInput`` (the file is gone) or ``EnvironmentFailure`` (login, persistent faults, wrong content).
    """
    for last in (False, True):
        with disk_errors(job.part):
            part = _Part(job)
            try:
                _fill(client, job, part)
                if part.digest.matches():
                    part.sync()
                    return part.digest.sha256
                part.restart()
            finally:
                part.close()
        if not last:
            job.note(f"{job.file.path}: the body does not match its hash, fetching it once more")
    raise EnvironmentFailure(
        f"{job.file.path} does not match the content hash the Hub gives for it, twice",
        where=job.url,
        remedy="something between the Hub and here changes it: try another network or mirror",
    )


def _fill(client: httpx.Client, job: BodyJob, part: _Part) -> None:
    farthest, failures = part.offset, 0
    while part.offset < job.file.size:
        try:
            _request(client, job, part)
            fault = _Fault(f"the body ended at byte {part.offset} of {job.file.size}")
        except LOST as error:
            raise EnvironmentFailure(f"{job.file.path}: {lost(error)}", where=job.url, remedy=NOT_A_HUB) from None
        except httpx.RequestError as error:
            fault = _Fault(f"the connection broke ({error or type(error).__name__})")
        except _Fault as error:
            fault = error
        if part.offset >= job.file.size:
            return
        failures = 1 if part.offset > farthest else failures + 1
        farthest = max(farthest, part.offset)
        if failures >= job.retry_policy.tries or (fault.retry_after or 0) > job.retry_policy.longest_wait_seconds:
            raise EnvironmentFailure(
                f"{job.file.path}: {fault}, after {failures} {'try' if failures == 1 else 'tries'}",
                where=job.url,
                remedy=f"run again later, {part.offset} bytes are kept",
            )
        if job.stop.wait(job.retry_policy.wait(failures, fault.retry_after)):
            raise Stopped


def _request(client: httpx.Client, job: BodyJob, part: _Part) -> None:
    headers = {**job.headers, "Accept-Encoding": "identity"}
    if part.offset:
        headers["Range"] = f"bytes={part.offset}-"
    with client.stream("GET", job.url, headers=headers) as response:
        _check_identity(response, job)
        _check_kind(response, job)
        _check_status(response, job, part)
        for data in response.iter_raw():
            room = job.file.size - part.offset
            if len(data) > room:
                part.restart()
                raise _Fault(f"the body is longer than {job.file.size} bytes")
            part.write(data)


def _check_status(response: httpx.Response, job: BodyJob, part: _Part) -> None:
    status = response.status_code
    by_hub = not response.history
    if status == 200:
        # The server does not support the range: its body starts at the first byte.
        if part.offset:
            part.restart()
    elif status == 206:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if match is None or int(match[1]) != part.offset or match[3] not in ("*", str(job.file.size)):
            raise _Fault(f"the Content-Range {response.headers.get('Content-Range')!r} is not what was asked for")
    elif status == 416:
        part.restart()
        raise _Fault("the server cannot serve this range (HTTP 416)")
    elif status in (401, 403) and by_hub:
        raise EnvironmentFailure(
            f"access to {job.file.path} is restricted (HTTP {status})", where=job.url, remedy=LOGIN_REMEDY
        )
    elif status in (404, 410) and by_hub:
        raise BadInput(f"{job.file.path} is no longer there (HTTP {status})", where=job.url)
    elif status in (401, 403) and part.offset == part.refused_at:
        raise EnvironmentFailure(
            f"{job.file.path}: the storage server {response.url.host} refuses access (HTTP {status}), also with a new "
            "link",
            where=job.url,
            remedy="check the clock of this machine and whether a proxy blocks that server",
        )
    elif may_pass(status) or not by_hub:
        part.refused_at = part.offset
        # The signed link to the storage server may have expired; the Hub signs a new one for each request.
        raise _Fault(f"HTTP {status}", retry_after_seconds(response.headers.get("Retry-After")))
    else:
        raise EnvironmentFailure(f"HTTP {status} for {job.file.path}", where=job.url, remedy="run again later")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise _Fault(f"the body came as {response.headers['Content-Encoding']}, which was not asked for")


def _check_kind(response: httpx.Response, job: BodyJob) -> None:
    """Refuse an HTML page in place of the body, before any of it is stored."""
    kind = response.headers.get("Content-Type", "")
    if response.is_success and "html" in kind and not job.file.path.endswith((".html", ".htm", ".md")):
        raise EnvironmentFailure(
            f"{job.file.path}: an HTML page came instead of the file", where=job.url, remedy=NOT_A_HUB
        )


def _check_identity(response: httpx.Response, job: BodyJob) -> None:
    """Refuse an answer of the Hub whose content hash differs from the pinned tree."""
    hub = response.history[0] if response.history else response
    if "X-Repo-Commit" not in hub.headers or hub.status_code >= 400:
        return
    etag = hub.headers.get("X-Linked-ETag") or hub.headers.get("ETag") or ""
    etag = etag.removeprefix("W/").strip('"')
    size = hub.headers.get("X-Linked-Size", str(job.file.size))
    if hub.headers["X-Repo-Commit"] != job.commit or etag not in ("", job.file.key) or size != str(job.file.size):
        raise EnvironmentFailure(
            f"{job.file.path} has other content now than in the list of files of commit {job.commit[:12]}",
            where=job.url,
            remedy="run again; if it stays so, do not trust this mirror",
        )
