"""Publish to the Hub: read the repository's state, then change it in one commit.

File contents are uploaded first, without being visible; then one commit on top of the
state that was read makes them all visible. So a publisher killed at any moment leaves the repository as it was, and one
that was overtaken by another gets an error instead of overwriting.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata_pack.errors import BadInput, EnvironmentFailure, StrataError
from strata_pack.progress import Progress
from strata_pack.publish.items import FileChange, PublishedFile, TargetFile
from strata_pack.publish.visibility import (
    is_private,
    is_to_be_opened,
    lacks_private_storage,
    make_repository,
    open_repository,
)
from strata_pack.weights.hub.api import get_json
from strata_pack.weights.hub.connection import Hub, is_offline
from strata_pack.weights.hub.repo import read_tree
from strata_pack.weights.hub.small import SmallFiles
from strata_pack.weights.hub.tree import RepoTree
from strata_pack.weights.source import is_repo_id

if TYPE_CHECKING:
    from huggingface_hub import HfApi

WRITE_REMEDY = "log in with a token that may write there (`hf auth login`), or set HF_TOKEN"
_PRECONDITION_FAILED, _CONFLICT = 412, 409


class ConcurrentCommit(EnvironmentFailure):
    """Somebody else committed to the repository after its state was read."""


@dataclass(frozen=True)
class HubState:
    """State of a repository: its commit (``None`` if it does not exist yet) and its files by path."""

    commit: str | None
    files: Mapping[str, TargetFile]
    tree: RepoTree | None = None


def look_at(hub: Hub, repo: str) -> HubState:
    """Return the state of ``repo``. Raises ``EnvironmentFailure`` if the Hub cannot be reached."""
    if not is_repo_id(repo):
        raise BadInput("is not a valid hub id", where=repo, remedy="write org/name")
    if is_offline():
        raise EnvironmentFailure("HF_HUB_OFFLINE forbids the network", where=repo, remedy="unset it and run again")
    try:
        tree = read_tree(hub, repo, None)
    except BadInput as error:
        if "no such repo" not in error.problem:
            raise
        return HubState(None, {})
    files = {file.path: TargetFile(file.size, file.sha256, file.blob_id) for file in tree.files}
    return HubState(tree.commit, files, tree)


def read_small(hub: Hub, state: HubState, path: str) -> bytes:
    """Return the content of a small file of the repository; raises as ``SmallFiles.read``."""
    assert state.tree is not None
    with tempfile.TemporaryDirectory(prefix="strata-publish-") as folder:
        return SmallFiles(hub, state.tree, Path(folder), offline=False).read(path)


def gated_sources(hub: Hub, repos: Sequence[str]) -> list[str]:
    """Return the gated ones of ``repos``; a repository that cannot be queried counts as not gated."""
    found = []
    for repo in repos:
        with contextlib.suppress(StrataError):
            about = get_json(hub, f"/api/models/{repo}", repo)
            if isinstance(about, dict) and about.get("gated") not in (None, False):
                found.append(repo)
    return found


def commit(
    hub: Hub,
    repo: str,
    state: HubState,
    items: Mapping[str, PublishedFile],
    changes: Sequence[FileChange],
    message: str,
    *,
    private: bool,
    progress: Progress,
) -> str:
    """Apply ``changes`` to ``repo`` as one commit on top of ``state``, and return the commit.

    Raises ``ConcurrentCommit`` if the repository has a newer commit, ``EnvironmentFailure`` if the Hub refuses.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete
    from huggingface_hub.errors import HfHubHTTPError

    api = _api(hub)
    operations: list[Any] = []
    for change in changes:
        if change.kind == "remove":
            operations.append(CommitOperationDelete(change.path))
        elif change.kind != "keep":
            item = items[change.path]
            operation = CommitOperationAdd(change.path, item.data if item.data is not None else str(item.source))
            operation.upload_info.sha256 = bytes.fromhex(item.sha256)
            operations.append(operation)
    with _refusals(repo), _bars():
        if state.commit is None:
            make_repository(hub, api, repo, progress, private=private)
        with _transport(hub, repo):
            parent = state.commit or api.repo_info(repo).sha
            try:
                made = api.create_commit(repo, operations, commit_message=message, parent_commit=parent)
            except HfHubHTTPError as error:
                if private or not (is_to_be_opened(hub, repo) and lacks_private_storage(error)):
                    raise
                progress.note(f"{repo}: is opened before all is there, since private storage does not hold it")
                open_repository(hub, api, repo)
                made = api.create_commit(repo, operations, commit_message=message, parent_commit=parent)
    return str(made.oid)


def open_to_all(hub: Hub, repo: str, progress: Progress, *, private: bool) -> None:
    """Make a repository public that this machine has created; note another repository that is private."""
    if private or not is_private(hub, repo):
        return
    if not is_to_be_opened(hub, repo):
        progress.note(f"{repo}: is private, as its owner made it; its settings on the Hub open it")
        return
    with _refusals(repo):
        open_repository(hub, _api(hub), repo)


def _api(hub: Hub) -> HfApi:
    from huggingface_hub import HfApi

    return HfApi(endpoint=hub.endpoint, token=hub.token, library_name="strata-pack")


def download(hub: Hub, repo: str, commit: str, folders: Sequence[str], into: Path, progress: Progress) -> None:
    """Download ``folders`` of ``repo`` at ``commit`` into ``into``; complete files are not fetched again."""
    from huggingface_hub import snapshot_download

    progress.note(f"{repo}: bringing {', '.join(folders)} to {into}")
    with _refusals(repo), _bars(), _transport(hub, repo):
        snapshot_download(
            repo,
            revision=commit,
            allow_patterns=[f"{folder}/*" for folder in folders],
            local_dir=into,
            endpoint=hub.endpoint,
            token=hub.token,
        )


@contextlib.contextmanager
def _bars() -> Iterator[None]:
    """Show the client's progress bars on a terminal only."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    hidden = are_progress_bars_disabled()
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        yield
    finally:
        if not hidden:
            enable_progress_bars()


@contextlib.contextmanager
def _refusals(repo: str) -> Iterator[None]:
    """Turn exceptions of the Hub's client into this package's errors."""
    import httpx2 as httpx
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (_PRECONDITION_FAILED, _CONFLICT):
            remedy = "run again: it looks at what is there now"
            raise ConcurrentCommit("somebody else published here meanwhile", where=repo, remedy=remedy) from None
        if status in (401, 403):
            raise EnvironmentFailure(f"may not be written (HTTP {status})", where=repo, remedy=WRITE_REMEDY) from None
        problem = f"the Hub refused it (HTTP {status}: {_short(error.server_message or error)})"
        raise EnvironmentFailure(problem, where=repo, remedy="run again: uploaded data is not sent again") from None
    except (httpx.HTTPError, OSError, RuntimeError, ValueError) as error:
        problem = f"the upload broke off ({_short(error.__cause__ or error)}); the repository is as it was"
        raise EnvironmentFailure(problem, where=repo, remedy="run again: uploaded data is not sent again") from None


def _short(error: object) -> str:
    return " ".join(str(error).split())[:200]


@contextlib.contextmanager
def _transport(hub: Hub, repo: str) -> Iterator[None]:
    """Upload as Xet chunks if the Hub supports them, otherwise as whole files.

    The client assumes Xet support on every Hub and fails without it.
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_DISABLE_XET
    try:
        if not before:
            get_json(hub, f"/api/models/{repo}/xet-write-token/main", repo)
    except StrataError:
        constants.HF_HUB_DISABLE_XET = True
    try:
        yield
    finally:
        constants.HF_HUB_DISABLE_XET = before
