"""A model repository as the Hub describes it: the pinned commit and every file with its size and content hash.

``huggingface_hub`` does the talking (authentication, revisions, paging); what comes back is checked before anything
believes it: names that could leave the folder, links, absurd sizes and malformed hashes are refused here.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx2 as httpx
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile as ApiFile
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from strata_pack import __version__
from strata_pack.errors import BadInput, EnvironmentFailure, StrataError

MAX_FILES = 100_000
MAX_FILE_BYTES = 1 << 44
METADATA_TRIES = 4
"""A person waits for the first answer, and nothing is lost by giving up: fewer tries than for a body."""
STATE_FOLDER = ".strata-fetch"
"""Where a fetch keeps its lock, its partial bodies and its record, inside the target folder."""

LOGIN_REMEDY = "accept its terms on the Hub's page and log in with `hf auth login`, or set HF_TOKEN"

_HEX = {length: re.compile(f"[0-9a-f]{{{length}}}") for length in (40, 64)}

T = TypeVar("T")


@dataclass(frozen=True)
class RepoFile:
    """One file of a repository: ``size`` in bytes, its git blob id, and its SHA-256 if it is stored by LFS or Xet."""

    path: str
    size: int
    blob_id: str
    sha256: str | None = None

    @property
    def key(self) -> str:
        """The content's name: the ETag of the Hub, and the name of the blob in the Hub cache."""
        return self.sha256 or self.blob_id


@dataclass(frozen=True)
class RepoTree:
    """A repository at one commit."""

    repo_id: str
    revision: str
    commit: str
    files: tuple[RepoFile, ...]


@dataclass(frozen=True)
class Patience:
    """How long faults are borne: ``tries`` in a row without a new byte, waiting ``base_s`` * 2^n between them.

    ``timeout_s`` is the longest silence of a connection; a ``Retry-After`` above ``longest_wait_s`` gives up at once.
    """

    tries: int = 6
    base_s: float = 1.0
    cap_s: float = 30.0
    longest_wait_s: float = 600.0
    timeout_s: float = 30.0

    def wait(self, failures: int, retry_after: float | None = None) -> float:
        """Return the seconds to wait after the ``failures``-th fault in a row (1 is the first)."""
        pause: float = min(self.cap_s, self.base_s * 2 ** (failures - 1))
        return pause if retry_after is None else max(retry_after, 0.0)


@dataclass(frozen=True)
class Hub:
    """Which Hub, as whom: ``endpoint`` without a final slash; ``token`` None uses the stored login, if any."""

    endpoint: str
    token: str | None = field(default=None, repr=False)
    patience: Patience = Patience()

    def headers(self) -> dict[str, str]:
        """Return the request headers: user agent and, when logged in, the authorization."""
        return dict(build_hf_headers(token=self.token, library_name="strata-pack", library_version=__version__))


def connect(endpoint: str | None = None, token: str | None = None, patience: Patience | None = None) -> Hub:
    """Return the Hub to talk to; ``HF_ENDPOINT`` and ``HF_TOKEN`` stand in for what is not given."""
    chosen = endpoint or os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
    if not chosen.startswith(("http://", "https://")):
        raise BadInput("is not an http(s) address of a Hub", where=chosen, remedy="set HF_ENDPOINT to one")
    return Hub(chosen.rstrip("/"), token or os.environ.get("HF_TOKEN") or None, patience or Patience())


def is_offline() -> bool:
    """Say whether ``HF_HUB_OFFLINE`` forbids the network."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def read_tree(hub: Hub, repo_id: str, revision: str | None) -> RepoTree:
    """Return ``repo_id`` at the commit that ``revision`` (default "main") means now.

    ``BadInput`` for a repository or revision that is not there, or names no folder should hold; ``EnvironmentFailure``
    when the Hub cannot be reached or wants a login.
    """
    wanted = revision or constants.DEFAULT_REVISION
    where = f"{repo_id}@{wanted}"
    api = HfApi(endpoint=hub.endpoint, token=hub.token, library_name="strata-pack", library_version=__version__)
    commit = _patiently(
        hub, where, lambda: api.model_info(repo_id, revision=wanted, timeout=hub.patience.timeout_s).sha
    )
    if commit is None or not _HEX[40].fullmatch(commit):
        raise EnvironmentFailure(f"the Hub gave {commit!r} as its commit", where=where)
    entries = _patiently(hub, where, lambda: list(api.list_repo_tree(repo_id, recursive=True, revision=commit)))
    if len(entries) > MAX_FILES:
        raise BadInput(f"has more than {MAX_FILES} files", where=where)
    files = tuple(_checked(entry, where) for entry in entries if isinstance(entry, ApiFile))
    _refuse_links([entry.path for entry in entries if not isinstance(entry, ApiFile)], [f.path for f in files], where)
    return RepoTree(repo_id, wanted, commit, files)


def safe_path(path: object, where: str) -> str:
    """Return ``path`` if it names a place inside a folder, on any file system; ``BadInput`` otherwise."""
    if isinstance(path, str) and 0 < len(path.encode("utf-8", "replace")) <= 1024:
        parts = path.split("/")
        plain = all(part not in ("", ".", "..") and len(part.encode("utf-8", "replace")) <= 255 for part in parts)
        foreign = "\\" in path or ":" in parts[0] or parts[0].lower() == STATE_FOLDER
        if plain and path.isprintable() and not foreign:
            return path
    raise BadInput(f"has a file with the unsafe name {str(path)[:200]!r}", where=where, remedy="do not use this source")


def _checked(entry: ApiFile, where: str) -> RepoFile:
    path = safe_path(entry.path, where)
    if type(entry.size) is not int or not 0 <= entry.size <= MAX_FILE_BYTES:
        raise BadInput(f"{path} has the impossible size {entry.size!r}", where=where)
    sha256 = None if entry.lfs is None else entry.lfs.sha256
    if not _is_hex(entry.blob_id, 40) or not (sha256 is None or _is_hex(sha256, 64)):
        raise BadInput(f"{path} has a malformed content hash", where=where)
    return RepoFile(path, entry.size, entry.blob_id, sha256)


def _is_hex(text: object, length: int) -> bool:
    return isinstance(text, str) and _HEX[length].fullmatch(text) is not None


def _refuse_links(others: list[str], files: list[str], where: str) -> None:
    # Whatever is neither a file nor a folder with files in it (a symbolic link, a submodule) has no body of its own.
    parents = {str(parent) for path in (*files, *others) for parent in Path(path).parents}
    for other in others:
        if safe_path(other, where) not in parents:
            raise BadInput(f"{other} is a link, not a file", where=where, remedy="do not use this source")


def _patiently(hub: Hub, where: str, call: Callable[[], T]) -> T:
    failures = 0
    while True:
        failures += 1
        retry_after: float | None = None
        try:
            return call()
        except OfflineModeIsEnabled:
            raise EnvironmentFailure("HF_HUB_OFFLINE forbids the network", where=where) from None
        except HFValidationError as error:
            raise BadInput(f"is not a valid hub id ({error})", where=where) from None
        except HfHubHTTPError as error:
            failure: StrataError = _refusal(error, where)
            status = error.response.status_code
            retry_after = retry_after_seconds(error.response.headers.get("Retry-After"))
            if not may_pass(status):
                raise failure from None
        except httpx.TransportError as error:
            failure = EnvironmentFailure(
                f"{hub.endpoint} cannot be reached ({error or type(error).__name__})",
                where=where,
                remedy="check the network and HF_ENDPOINT",
            )
        if failures >= min(hub.patience.tries, METADATA_TRIES) or (retry_after or 0) > hub.patience.longest_wait_s:
            raise failure
        time.sleep(hub.patience.wait(failures, retry_after))


def may_pass(status: int) -> bool:
    """Say whether an HTTP status is one of those that go away by themselves."""
    return status in (408, 425, 429) or 500 <= status <= 599


def retry_after_seconds(header: str | None) -> float | None:
    """Return the seconds a ``Retry-After`` header asks for (number or HTTP date), None without a readable one."""
    if header is None:
        return None
    try:
        return float(int(header))
    except ValueError:
        pass
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except ValueError:
        return None


def _refusal(error: HfHubHTTPError, where: str) -> StrataError:
    status = error.response.status_code
    if isinstance(error, GatedRepoError) or status == 403:
        return EnvironmentFailure(f"access is restricted (HTTP {status})", where=where, remedy=LOGIN_REMEDY)
    if isinstance(error, RevisionNotFoundError):
        return BadInput("no such revision on the Hub", where=where, remedy="name a branch, tag or commit")
    if isinstance(error, RepositoryNotFoundError) or status == 404:
        if status == 401:
            return EnvironmentFailure(
                "no such repository, or access is restricted (HTTP 401)",
                where=where,
                remedy=f"check the name; if it is gated or private, {LOGIN_REMEDY}",
            )
        return BadInput("no such repository on the Hub", where=where, remedy="check the name")
    if status == 401:
        return EnvironmentFailure("the Hub refuses the login (HTTP 401)", where=where, remedy=LOGIN_REMEDY)
    return EnvironmentFailure(f"the Hub answered HTTP {status}", where=where, remedy="run again later")
