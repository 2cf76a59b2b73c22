"""Downloads byte ranges of files, such as one tensor, into the same place of a local file.

A range has no hash of its own: the content hash verifies the file when it is complete. Faults are retried as for whole
files.
"""

from __future__ import annotations

import os
import re
import time
from types import TracebackType

import httpx2 as httpx

from strata_pack.errors import EnvironmentFailure
from strata_pack.weights.hub.api import LOST, NOT_A_HUB, lost
from strata_pack.weights.hub.connection import LOGIN_REMEDY, Hub, may_pass, retry_after_seconds
from strata_pack.weights.hub.small import body_url
from strata_pack.weights.hub.tree import RepoFile, RepoTree

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


class _Fault(Exception):
    """A fault that another request may get past."""

    def __init__(self, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class RangeFetcher:
    """Fetches byte ranges of one repository's files at its pinned commit. Use as a context manager."""

    def __init__(self, hub: Hub, tree: RepoTree) -> None:
        self._hub, self._tree = hub, tree
        self._files = {file.path: file for file in tree.files}
        self._client = hub.client()

    def __enter__(self) -> RangeFetcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def fetch(self, name: str, start: int, stop: int, descriptor: int) -> None:
        """Write bytes ``start`` to ``stop`` (exclusive) of the file ``name`` to the same place of ``descriptor``.

        Raises ``EnvironmentFailure`` for persistent faults, a required login, or a server without range support.
        """
        file = self._files[name]
        url, at, failures = body_url(self._hub, self._tree, file), start, 0
        while at < stop:
            begun = at
            try:
                at = self._request(url, file, at, stop, descriptor)
                fault = _Fault(f"the body ended at byte {at} of {stop}")
            except LOST as error:
                raise EnvironmentFailure(f"{name}: {lost(error)}", where=url, remedy=NOT_A_HUB) from None
            except httpx.RequestError as error:
                fault = _Fault(f"the connection broke ({error or type(error).__name__})")
            except _Fault as error:
                fault = error
            if at >= stop:
                return
            failures = 1 if at > begun else failures + 1
            retry_policy = self._hub.retry_policy
            if failures >= retry_policy.tries or (fault.retry_after or 0) > retry_policy.longest_wait_seconds:
                raise EnvironmentFailure(
                    f"{name}, bytes {start} to {stop}: {fault}, after {failures} {'try' if failures == 1 else 'tries'}",
                    where=url,
                    remedy="run again later; what has arrived is kept",
                )
            time.sleep(retry_policy.wait(failures, fault.retry_after))

    def _request(self, url: str, file: RepoFile, at: int, stop: int, descriptor: int) -> int:
        """Request the missing bytes and write what arrives; return the position reached."""
        headers = {**self._hub.headers(), "Accept-Encoding": "identity", "Range": f"bytes={at}-{stop - 1}"}
        with self._client.stream("GET", url, headers=headers) as response:
            self._check(response, url, file, at)
            try:
                for data in response.iter_raw():
                    piece = memoryview(data)[: stop - at]
                    while piece:
                        written = os.pwrite(descriptor, piece, at)
                        piece, at = piece[written:], at + written
            except httpx.RequestError:
                # Bytes before the break are kept; the next request is for the rest.
                return at
        return at

    def _check(self, response: httpx.Response, url: str, file: RepoFile, at: int) -> None:
        status, first = response.status_code, response.history[0] if response.history else response
        etag = (first.headers.get("X-Linked-ETag") or "").removeprefix("W/").strip('"')
        if "X-Repo-Commit" in first.headers and (
            first.headers["X-Repo-Commit"] != self._tree.commit or etag not in ("", file.key)
        ):
            raise EnvironmentFailure(
                f"{file.path} has other content now than in the list of files", where=url, remedy="run again"
            )
        if status == 200:
            raise EnvironmentFailure(
                f"{file.path}: the server does not serve ranges", where=url, remedy="run without --split-tensors"
            )
        if status in (401, 403) and not response.history:
            raise EnvironmentFailure(
                f"access to {file.path} is restricted (HTTP {status})", where=url, remedy=LOGIN_REMEDY
            )
        if status != 206:
            if may_pass(status) or response.history:
                raise _Fault(f"HTTP {status}", retry_after_seconds(response.headers.get("Retry-After")))
            raise EnvironmentFailure(f"HTTP {status} for {file.path}", where=url, remedy="run again later")
        said = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if said is None or int(said[1]) != at or said[3] not in ("*", str(file.size)):
            raise _Fault(f"the Content-Range {response.headers.get('Content-Range')!r} is not what was asked for")
