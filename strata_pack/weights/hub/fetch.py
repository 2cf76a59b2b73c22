"""A model's files from the Hub into a folder: only what a build needs, every byte proved, no byte fetched twice.

``huggingface_hub`` tells what there is; the bodies are ours, because its download starts again after a kill and never
checks contents. Files in the folder or in the Hub cache count only after their hash was computed and agreed.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import httpx2 as httpx

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.files import disk_errors, fsync_dir
from strata_pack.outputs import check_outputs
from strata_pack.progress import Progress, Silent, Task
from strata_pack.weights.hub import state as fetch_state
from strata_pack.weights.hub.body import BodyJob, fetch_body, verified_sha256
from strata_pack.weights.hub.cache import cached_blob, cached_tree
from strata_pack.weights.hub.connection import Hub, Patience, connect, is_offline
from strata_pack.weights.hub.head import OpenHead, head_opener
from strata_pack.weights.hub.pool import run_all
from strata_pack.weights.hub.repo import read_tree
from strata_pack.weights.hub.select import Selection, select_files
from strata_pack.weights.hub.small import SmallFiles, body_url
from strata_pack.weights.hub.tree import RepoFile, RepoTree
from strata_pack.weights.preflight import Stage, check_disk, existing_ancestor, size_text

Origin = Literal["present", "cache", "network"]

PARALLEL = 4
"""Bodies at once: enough to fill a line that one connection does not, few enough not to be throttled."""


@dataclass(frozen=True)
class FetchedFile:
    """One file in the folder: ``path`` relative to it, ``size`` in bytes, ``sha256`` as computed here.

    ``origin`` says where it came from in this run. A "cache" file may share its bytes with the Hub cache (hard link):
    replace such a file, never write into it.
    """

    path: str
    size: int
    sha256: str
    origin: Origin


@dataclass(frozen=True)
class FetchPlan:
    """What a fetch is going to do: known before the first body travels. Sizes in bytes."""

    tree: RepoTree
    selection: Selection
    origins: dict[str, Origin]
    to_travel: int

    def sentence(self) -> str:
        """Return the plan as one line."""
        count, skipped = len(self.selection.files), len(self.selection.skipped)
        here = self.selection.nbytes - self.to_travel
        return (
            f"{self.tree.repo_id} at {self.tree.commit[:12]}: {count} files, {size_text(self.selection.nbytes)} "
            f"({self.selection.weights.format}); {size_text(here)} here already, {size_text(self.to_travel)} to fetch; "
            f"{skipped} other files are not needed"
        )


@dataclass(frozen=True)
class FetchResult:
    """The folder after a fetch; ``travelled`` are the bytes of bodies that came over the network in this run."""

    repo_id: str
    revision: str
    commit: str
    folder: Path
    selection: Selection
    files: tuple[FetchedFile, ...]
    travelled: int


def plan_dict(plan: FetchPlan) -> dict[str, object]:
    """Return a plan as the JSON object of ``fetch --dry-run --json``."""
    return {
        "ok": True,
        "repo_id": plan.tree.repo_id,
        "revision": plan.tree.revision,
        "commit": plan.tree.commit,
        "format": plan.selection.weights.format,
        "bytes": plan.selection.nbytes,
        "bytes_to_travel": plan.to_travel,
        "files": [
            {"path": file.path, "size": file.size, "origin": plan.origins[file.path]} for file in plan.selection.files
        ],
        "skipped": [file.path for file in plan.selection.skipped],
    }


def result_dict(result: FetchResult) -> dict[str, object]:
    """Return a result as the JSON object of ``fetch --json``."""
    return {
        "ok": True,
        "repo_id": result.repo_id,
        "revision": result.revision,
        "commit": result.commit,
        "folder": str(result.folder),
        "format": result.selection.weights.format,
        "bytes_travelled": result.travelled,
        "files": [asdict(file) for file in result.files],
    }


def fetch_repo(
    repo_id: str,
    revision: str | None,
    dest: Path,
    *,
    path: str | None = None,
    progress: Progress | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    offline: bool | None = None,
    parallel: int = PARALLEL,
    patience: Patience | None = None,
    announce: Callable[[FetchPlan], None] | None = None,
    before_weights: Callable[[Path], None] | None = None,
    check_heads: Callable[[Path, OpenHead], None] | None = None,
) -> FetchResult:
    """Bring what a build needs of ``repo_id`` into the folder ``dest`` and return what is there.

    ``path`` names one GGUF or one folder of the repository. ``announce`` gets the plan before anything travels;
    ``before_weights`` is called with ``dest`` when config and tokenizer are there and the weights are not, and stops
    the fetch by raising; ``check_heads`` does so too and may look at the first bytes of the weights. ``offline``
    (default: ``HF_HUB_OFFLINE``) uses the folder and the Hub cache alone.
    Raises ``BadInput`` (no such repository, unsafe names, nothing to build from) or ``EnvironmentFailure`` (network,
    login, disk, another fetch in the folder). What arrived is kept, and a later call continues at the exact byte.
    """
    progress = progress or Silent()
    check_outputs((dest,), ())
    hub = connect(endpoint, token, patience)
    offline = is_offline() if offline is None else offline
    # A repository that is not there, or has nothing to build from, leaves no folder behind.
    tree = _tree(hub, repo_id, revision, dest, offline=offline)
    run = _Run(hub, tree, SmallFiles(hub, tree, dest, offline=offline), path, dest, progress, parallel)
    with fetch_state.locked_folder_for_fetch(dest):
        record = fetch_state.read_fetch_record(dest)
        kept = _leave_behind(dest, record, run.tree, progress)
        plan = run.look(set(record.taken) if record else set())
        if announce is not None:
            announce(plan)
        if offline and plan.to_travel:
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
            with httpx.Client(follow_redirects=True, timeout=hub.patience.timeout_s) as client:
                check_heads(dest, head_opener(client, hub, run.tree, dest))
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
    token: str | None = None,
    endpoint: str | None = None,
    offline: bool | None = None,
    patience: Patience | None = None,
) -> FetchPlan:
    """Return what ``fetch`` with the same arguments would do, without writing anything."""
    hub = connect(endpoint, token, patience)
    record = fetch_state.read_fetch_record(dest)
    offline = is_offline() if offline is None else offline
    tree = _tree(hub, repo_id, revision, dest, offline=offline)
    run = _Run(hub, tree, SmallFiles(hub, tree, dest, offline=offline), path, dest, progress or Silent(), PARALLEL)
    return run.look(set(record.taken) if record else set())


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
            "offline, and neither the folder nor the Hub cache knows this revision",
            where=f"{repo_id}@{wanted}",
            remedy="unset HF_HUB_OFFLINE and run again",
        )
    return tree


def _leave_behind(dest: Path, record: fetch_state.FetchRecord | None, tree: RepoTree, progress: Progress) -> set[str]:
    """Remove what an earlier commit had and this one has not (shards must never mix); return what was taken and stays.

    ``BadInput`` if the folder holds another repository.
    """
    if record is None:
        return set()
    if record.tree.repo_id != tree.repo_id:
        raise BadInput(f"holds files of {record.tree.repo_id}", where=dest, remedy="choose another folder")
    present = {file.path for file in tree.files}
    for name in set(record.taken) - present:
        if (target := _target(dest, name)).is_file():
            target.unlink()
            progress.note(f"{name}: removed, {tree.repo_id} has it no more at {tree.commit[:12]}")
    return set(record.taken) & present


def _target(dest: Path, name: str) -> Path:
    """Return the place of a repository file in ``dest``; ``BadInput`` if a link on this disk leads away from there."""
    path = dest / name
    for place in (path, *path.parents):
        if place == dest:
            return path
        if place.is_symlink():
            raise BadInput("is a link", where=place, remedy="remove it or choose another folder")
    raise BadInput("is outside the folder", where=path)


class _Run:
    """One fetch: what every file needs, and what became of it."""

    def __init__(
        self,
        hub: Hub,
        tree: RepoTree,
        small: SmallFiles,
        path: str | None,
        dest: Path,
        progress: Progress,
        parallel: int,
    ) -> None:
        self._hub, self.tree, self._dest, self._small = hub, tree, dest, small
        self.selection = select_files(tree, path, small.read)
        self._progress = progress
        self._parallel = max(1, parallel)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._origins: dict[str, Origin] = {}
        self._sha256: dict[str, str] = {}
        self._travelled = 0

    def look(self, known: set[str]) -> FetchPlan:
        """Find and verify what is here already, in the folder and in the Hub cache."""
        candidates = [(file, self._find(file)) for file in self.selection.files]
        size = sum(file.size for file, place in candidates if place is not None)
        task = self._progress.task("checking files that are here already", size) if size else None
        run_all([partial(self._verify, file, place, task) for file, place in candidates], self._parallel, self._stop)
        if task is not None:
            task.done()
        for file in self.selection.files:
            target = _target(self._dest, file.path)
            if self._origins[file.path] != "present" and file.path not in known and os.path.lexists(target):
                raise BadInput(
                    f"is in the way: it is not the file of {self.tree.repo_id} and no fetch put it there",
                    where=target,
                    remedy="remove it or choose another folder",
                )
        to_travel = sum(file.size - fetch_state.part_size(self._dest, file) for file in self._network())
        return FetchPlan(self.tree, self.selection, dict(self._origins), to_travel)

    def _find(self, file: RepoFile) -> Path | None:
        target = _target(self._dest, file.path)
        if target.is_file() and target.stat().st_size == file.size:
            return target
        return cached_blob(self.tree.repo_id, file)

    def _verify(self, file: RepoFile, place: Path | None, task: Task | None) -> None:
        target = _target(self._dest, file.path)
        origin: Origin = "network"
        places: tuple[tuple[Path | None, Origin], ...] = (
            (target, "present"),
            (cached_blob(self.tree.repo_id, file), "cache"),
        )
        for candidate, name in places:
            sha256 = None if candidate is None else verified_sha256(candidate, file, self._stop)
            if sha256 is not None:
                origin = name
                self._sha256[file.path] = sha256
                break
            if candidate is not None and candidate == place:
                self._progress.note(f"{candidate}: its content is damaged, it is not used")
        self._origins[file.path] = origin
        if task is not None and place is not None:
            with self._lock:
                task.advance(file.size)

    def _network(self) -> list[RepoFile]:
        return [file for file in self.selection.files if self._origins[file.path] == "network"]

    def stages(self) -> list[Stage]:
        """Return the bytes still to be written into the folder."""
        missing = sum(file.size - fetch_state.part_size(self._dest, file) for file in self._network())
        copied = sum(file.size for file in self.selection.files if self._is_copy(file))
        return [Stage("download", self._dest, missing), Stage("copy out of the Hub cache", self._dest, copied)]

    def _is_copy(self, file: RepoFile) -> bool:
        if self._origins[file.path] != "cache":
            return False
        blob = cached_blob(self.tree.repo_id, file)
        return blob is not None and blob.stat().st_dev != existing_ancestor(self._dest).stat().st_dev

    def bring(self, files: list[RepoFile]) -> None:
        """Put ``files`` into their places."""
        for file in files:
            if self._origins[file.path] == "cache":
                self._from_cache(file)
        travelling = [file for file in files if self._origins[file.path] == "network"]
        if not travelling:
            return
        total = self._progress.task(f"{len(travelling)} files", sum(file.size for file in travelling))
        timeout = self._hub.patience.timeout_s
        limits = httpx.Limits(max_connections=self._parallel)
        client = httpx.Client(follow_redirects=True, timeout=timeout, limits=limits)
        try:
            run_all(
                [partial(self._from_network, client, file, total) for file in travelling], self._parallel, self._stop
            )
        finally:
            client.close()
        total.done()

    def _from_cache(self, file: RepoFile) -> None:
        blob = cached_blob(self.tree.repo_id, file)
        part = fetch_state.part_path(self._dest, file)
        with disk_errors(part):
            part.parent.mkdir(parents=True, exist_ok=True)
            part.unlink(missing_ok=True)
            if blob is None:
                raise EnvironmentFailure(f"{file.path} vanished from the Hub cache meanwhile", remedy="run again")
            try:
                os.link(blob, part)
            except OSError:
                shutil.copyfile(blob, part)
                with part.open("rb") as stream:
                    os.fsync(stream.fileno())
        self._place(part, file)

    def _from_network(self, client: httpx.Client, file: RepoFile, total: Task) -> None:
        task = self._progress.task(file.path, file.size)

        def advance(amount: int) -> None:
            task.advance(amount)
            with self._lock:
                total.advance(amount)

        def received(amount: int) -> None:
            with self._lock:
                self._travelled += amount

        part = fetch_state.part_path(self._dest, file)
        self._small.seed(file, part)
        job = BodyJob(
            url=body_url(self._hub, self.tree, file),
            commit=self.tree.commit,
            file=file,
            part=part,
            headers=self._hub.headers(),
            patience=self._hub.patience,
            stop=self._stop,
            advance=advance,
            received=received,
            note=self._progress.note,
        )
        self._sha256[file.path] = fetch_body(client, job)
        self._place(part, file)
        task.done()

    def _place(self, part: Path, file: RepoFile) -> None:
        target = _target(self._dest, file.path)
        with disk_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(part, target)
            fsync_dir(target.parent)

    def result(self) -> FetchResult:
        """Return what the folder holds now."""
        files = tuple(
            FetchedFile(file.path, file.size, self._sha256[file.path], self._origins[file.path])
            for file in sorted(self.selection.files, key=lambda file: file.path)
        )
        tree = self.tree
        travelled = self._travelled + self._small.travelled
        return FetchResult(tree.repo_id, tree.revision, tree.commit, self._dest, self.selection, files, travelled)
