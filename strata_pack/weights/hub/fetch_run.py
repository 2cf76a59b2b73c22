"""Runs one fetch: finds existing files, chooses the origin of the others, and moves each to its place."""

from __future__ import annotations

import os
import shutil
import threading
from functools import partial
from pathlib import Path

import httpx2 as httpx

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.files import disk_errors, fsync_dir
from strata_pack.plural import counted
from strata_pack.progress import Progress, ProgressTask
from strata_pack.weights.hub import state as fetch_state
from strata_pack.weights.hub.body import BodyJob, fetch_body, verified_sha256
from strata_pack.weights.hub.cache import cached_blob
from strata_pack.weights.hub.connection import Hub
from strata_pack.weights.hub.outcome import FetchedFile, FetchPlan, FetchResult, FileOrigin
from strata_pack.weights.hub.pool import run_all
from strata_pack.weights.hub.select import select_files
from strata_pack.weights.hub.small import SmallFiles, body_url
from strata_pack.weights.hub.tree import RepoFile, RepoTree
from strata_pack.weights.preflight import Stage, existing_ancestor


def target_path(dest: Path, name: str) -> Path:
    """Return the path of a repository file in ``dest``; ``BadInput`` if a local link leads outside."""
    path = dest / name
    for place in (path, *path.parents):
        if place == dest:
            return path
        if place.is_symlink():
            raise BadInput("is a link", where=place, remedy="remove it or choose another folder")
    raise BadInput("is outside the folder", where=path)


class FetchRun:
    """One fetch, with the state of every file."""

    def __init__(
        self,
        hub: Hub,
        tree: RepoTree,
        path: str | None,
        dest: Path,
        progress: Progress,
        parallel: int,
        *,
        offline: bool,
    ) -> None:
        self.hub, self.tree, self._dest, self.offline = hub, tree, dest, offline
        self._small = SmallFiles(hub, tree, dest, offline=offline)
        self.selection = select_files(tree, path, self._small.read)
        self._progress = progress
        self._parallel = max(1, parallel)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._origins: dict[str, FileOrigin] = {}
        self._sha256: dict[str, str] = {}
        self._travelled = 0

    def look(self, known: set[str]) -> FetchPlan:
        """Find and verify existing files, in the folder and in the Hub cache."""
        candidates = [(file, self._find(file)) for file in self.selection.files]
        size = sum(file.size for file, place in candidates if place is not None)
        task = self._progress.task("checking existing files", size) if size else None
        run_all([partial(self._verify, file, place, task) for file, place in candidates], self._parallel, self._stop)
        if task is not None:
            task.done()
        for file in self.selection.files:
            target = target_path(self._dest, file.path)
            if self._origins[file.path] != "present" and file.path not in known and os.path.lexists(target):
                raise BadInput(
                    f"is in the way: it is not the file of {self.tree.repo_id} and no fetch put it there",
                    where=target,
                    remedy="remove it or choose another folder",
                )
        to_travel = sum(file.size - fetch_state.part_size(self._dest, file) for file in self._network())
        return FetchPlan(self.tree, self.selection, dict(self._origins), to_travel)

    def _find(self, file: RepoFile) -> Path | None:
        target = target_path(self._dest, file.path)
        if target.is_file() and target.stat().st_size == file.size:
            return target
        return cached_blob(self.tree.repo_id, file)

    def _verify(self, file: RepoFile, place: Path | None, task: ProgressTask | None) -> None:
        target = target_path(self._dest, file.path)
        origin: FileOrigin = "network"
        places: tuple[tuple[Path | None, FileOrigin], ...] = (
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
        """Fetch ``files`` to their places."""
        for file in files:
            if self._origins[file.path] == "cache":
                self._from_cache(file)
        travelling = [file for file in files if self._origins[file.path] == "network"]
        if not travelling:
            return
        total = self._progress.task(counted(len(travelling), "file"), sum(file.size for file in travelling))
        client = self.hub.client(self._parallel)
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
                raise EnvironmentFailure(f"{file.path} has vanished from the Hub cache", remedy="run again")
            try:
                os.link(blob, part)
            except OSError:
                shutil.copyfile(blob, part)
                with part.open("rb") as stream:
                    os.fsync(stream.fileno())
        self._place(part, file)

    def _from_network(self, client: httpx.Client, file: RepoFile, total: ProgressTask) -> None:
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
            url=body_url(self.hub, self.tree, file),
            commit=self.tree.commit,
            file=file,
            part=part,
            headers=self.hub.headers(),
            retry_policy=self.hub.retry_policy,
            stop=self._stop,
            advance=advance,
            received=received,
            note=self._progress.note,
        )
        self._sha256[file.path] = fetch_body(client, job)
        self._place(part, file)
        task.done()

    def _place(self, part: Path, file: RepoFile) -> None:
        target = target_path(self._dest, file.path)
        with disk_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(part, target)
            fsync_dir(target.parent)

    def result(self) -> FetchResult:
        """Return the content of the folder now."""
        files = tuple(
            FetchedFile(file.path, file.size, self._sha256[file.path], self._origins[file.path])
            for file in sorted(self.selection.files, key=lambda file: file.path)
        )
        tree = self.tree
        travelled = self._travelled + self._small.travelled
        return FetchResult(tree.repo_id, tree.revision, tree.commit, self._dest, self.selection, files, travelled)
