"""Fetches the files that a build needs from the Hub into a folder; every file is verified, and downloads resume.

The file bodies are not downloaded with ``huggingface_hub``, because its download restarts after a kill and never
verifies contents. Files in the folder or in the Hub cache are used only if their computed hash matches.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypedDict, Unpack

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.outputs import check_outputs
from strata_pack.progress import Progress, Silent
from strata_pack.weights.hub import state as fetch_state
from strata_pack.weights.hub.cache import cached_tree
from strata_pack.weights.hub.connection import Hub, RetryPolicy, connect, is_offline
from strata_pack.weights.hub.fetch_run import FetchRun, target_path
from strata_pack.weights.hub.head import OpenHead, head_opener
from strata_pack.weights.hub.outcome import FetchPlan, FetchResult
from strata_pack.weights.hub.repo import read_tree
from strata_pack.weights.hub.tree import RepoTree
from strata_pack.weights.preflight import check_disk

PARALLEL = 4
"""Concurrent downloads: enough to saturate a line, few enough not to be throttled."""


class HubAccess(TypedDict, total=False):
    """Access to the Hub; missing or ``None`` values come from the environment.

    ``offline`` (``HF_HUB_OFFLINE``) uses only the folder and the Hub cache.
    """

    token: str | None
    endpoint: str | None
    offline: bool | None
    retry_policy: RetryPolicy | None


def fetch_repo(
    repo_id: str,
    revision: str | None,
    dest: Path,
    *,
    path: str | None = None,
    progress: Progress | None = None,
    parallel: int = PARALLEL,
    announce: Callable[[FetchPlan], None] | None = None,
    before_weights: Callable[[Path], None] | None = None,
    check_heads: Callable[[Path, OpenHead], None] | None = None,
    **access: Unpack[HubAccess],
) -> FetchResult:
    """Fetch the files of ``repo_id`` that a build needs into the folder ``dest`` and return the result.

    ``path`` names one GGUF or one folder of the repository. ``announce`` gets the plan before any download;
    ``before_weights`` is called with ``dest`` after config and tokenizer and before the weights, and may raise to stop
    the fetch; so may ``check_heads``, which can also read the first bytes of the weights.
    Raises ``BadInput`` (no such repository, unsafe names, nothing to build from) or ``EnvironmentFailure`` (network,
    login, disk, another fetch in the folder). Received bytes are kept, and a later call resumes at the next missing
    byte.
    """
    progress = progress or Silent()
    check_outputs((dest,), ())
    # No folder is created for a missing repository, or one with nothing to build from.
    run = _start(repo_id, revision, dest, path, progress, parallel, access)
    with fetch_state.locked_folder_for_fetch(dest):
        record = fetch_state.read_fetch_record(dest)
        kept = _leave_behind(dest, record, run.tree, progress)
        plan = run.look(set(record.taken) if record else set())
        if announce is not None:
            announce(plan)
        if run.offline and plan.to_travel:
            missing = ", ".join(name for name, origin in plan.origins.items() if origin == "network")
            raise EnvironmentFailure(
                f"offline, and {missing} of {repo_id} is neither in {dest} nor in the Hub cache",
                remedy="unset HF_HUB_OFFLINE and run again",
            )
        check_disk(run.stages())
        taken = kept | {file.path for file in run.selection.files}
        fetch_state.write_record(dest, fetch_state.FetchRecord(run.tree, tuple(sorted(taken))))
        weights = {*run.selection.weights.files}
        run.bring([file for file in run.selection.files if file.path not in weights])
        if before_weights is not None:
            before_weights(dest)
        if check_heads is not None:
            with run.hub.client() as client:
                check_heads(dest, head_opener(client, run.hub, run.tree, dest))
        run.bring([file for file in run.selection.files if file.path in weights])
        fetch_state.drop_parts(dest)
        return run.result()


def look(
    repo_id: str,
    revision: str | None,
    dest: Path,
    *,
    path: str | None = None,
    progress: Progress | None = None,
    **access: Unpack[HubAccess],
) -> FetchPlan:
    """Return the plan of ``fetch_repo`` with the same arguments, without writing anything."""
    record = fetch_state.read_fetch_record(dest)
    run = _start(repo_id, revision, dest, path, progress or Silent(), PARALLEL, access)
    return run.look(set(record.taken) if record else set())


def _start(
    repo_id: str,
    revision: str | None,
    dest: Path,
    path: str | None,
    progress: Progress,
    parallel: int,
    access: HubAccess,
) -> FetchRun:
    """List the repository (offline: from the disk), and select the files."""
    hub = connect(access.get("endpoint"), access.get("token"), access.get("retry_policy"))
    asked = access.get("offline")
    offline = is_offline() if asked is None else asked
    tree = _tree(hub, repo_id, revision, dest, offline=offline)
    return FetchRun(hub, tree, path, dest, progress, parallel, offline=offline)


def _tree(hub: Hub, repo_id: str, revision: str | None, dest: Path, *, offline: bool) -> RepoTree:
    if not offline:
        return read_tree(hub, repo_id, revision)
    wanted = revision or "main"
    record = fetch_state.read_fetch_record(dest)
    if record is not None and record.tree.repo_id == repo_id and wanted in (record.tree.revision, record.tree.commit):
        return record.tree
    tree = cached_tree(repo_id, wanted)
    if tree is None:
        raise EnvironmentFailure(
            "offline, and neither the folder nor the Hub cache has this revision",
            where=f"{repo_id}@{wanted}",
            remedy="unset HF_HUB_OFFLINE and run again",
        )
    return tree


def _leave_behind(dest: Path, record: fetch_state.FetchRecord | None, tree: RepoTree, progress: Progress) -> set[str]:
    """Remove files of an earlier commit that this one lacks (shards must never mix); return the fetched files that
    remain.

    ``BadInput`` if the folder has files of another repository.
    """
    if record is None:
        return set()
    if record.tree.repo_id != tree.repo_id:
        raise BadInput(f"has files of {record.tree.repo_id}", where=dest, remedy="choose another folder")
    present = {file.path for file in tree.files}
    for name in set(record.taken) - present:
        if (target := target_path(dest, name)).is_file():
            target.unlink()
            progress.note(f"{name}: removed, because {tree.repo_id} no longer has it at {tree.commit[:12]}")
    return set(record.taken) & present
