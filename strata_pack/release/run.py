"""Run releases: give every ready node to a worker until no node can be made any more.

The state is on disk. After a kill at any moment, the same call continues: finished nodes are found, interrupted ones
resume from their own journals.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from strata_pack.errors import EnvironmentFailure
from strata_pack.files import disk_errors
from strata_pack.locks import lock_file
from strata_pack.progress import Progress, Silent
from strata_pack.release.executor import THIS_PROCESS, Executor, TaskEnd
from strata_pack.release.graph import Node
from strata_pack.release.local_executor import InProcess
from strata_pack.release.lock import LockedSource, read_lock, write_lock
from strata_pack.release.release_file import Release
from strata_pack.release.schedule import Failure, Schedule
from strata_pack.release.source import hashed, pin_source
from strata_pack.release.versions import Versions, installed_versions

TENSOR = "tensor"
"""Node kind with thousands of nodes, which are counted instead of listed."""
HERE_ONLY = frozenset({"publish"})
"""Node kinds that run only in this process, which has the key, its password and the Hub token."""
MAX_WORKER_DEATHS = 8
"""Workers that may die on one node before it counts as failed."""
RETRY_ELSEWHERE = EnvironmentFailure.exit_code
"""The exit code of failures that another worker may not have: a full disk, a missing runtime."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run: its schedules in their final state."""

    schedules: tuple[Schedule, ...]

    def count(self, state: str) -> int:
        """Return how many nodes ended in ``state``."""
        return sum(found == state for schedule in self.schedules for found in schedule.states.values())

    @property
    def held_back(self) -> list[str]:
        """The packs that were built and failed their gates."""
        return [
            pack.name
            for schedule in self.schedules
            for pack in schedule.release.packs
            if (judged := schedule.found.get(f"gates:{pack.name}")) is not None
            and judged["data"]["built"]
            and not judged["data"]["passed"]
        ]

    @property
    def exit_code(self) -> int:
        """0 if all is well, else the exit code of the worst failure, or 1 if a pack fails its gates."""
        codes = [failure.exit_code for schedule in self.schedules for failure in schedule.failures.values()]
        return max(codes) if codes else 1 if self.held_back else 0


def open_schedule(
    release: Release,
    *,
    update: bool = False,
    wanted: Callable[[Node], bool] | None = None,
    versions: Versions | None = None,
    progress: Progress | None = None,
) -> Schedule:
    """Return the schedule of ``release``; nothing is written. A source that is not pinned is looked up on the Hub."""
    source = pin_source(release, read_lock(release.lock_path), update=update, progress=progress)
    return Schedule(release, source, versions or installed_versions(), wanted)


def run_releases(schedules: Sequence[Schedule], executor: Executor | None, progress: Progress | None = None) -> Outcome:
    """Make every missing node of the schedules and return the outcome; a failed node stops only nodes that need it.

    The executor may be ``None`` if no node is missing. Raises ``EnvironmentFailure`` if
    another run holds one of the releases.
    """
    progress = progress or Silent()
    with ExitStack() as stack:
        for schedule in schedules:
            stack.enter_context(release_lock(schedule.release))
            _write_lock(schedule)
        if executor is not None:
            _Run(schedules, executor, progress).run()
        for schedule in schedules:
            _write_lock(schedule)
    return Outcome(tuple(schedules))


@contextmanager
def release_lock(release: Release) -> Iterator[None]:
    """Lock the release against a second run, on this machine or on one that shares the folder."""
    with disk_errors(release.state):
        release.state.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(release.state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        remedy = "wait for it to end; its results will be found"
        lock_file(descriptor, EnvironmentFailure("another run has this release", where=release.path, remedy=remedy))
        yield
    finally:
        os.close(descriptor)


def _write_lock(schedule: Schedule) -> None:
    source: LockedSource = schedule.source
    if "fetch" in schedule.found:
        source = hashed(source, schedule.found["fetch"])
    known = read_lock(schedule.release.lock_path)
    packs = schedule.locked_packs()
    if known is not None:
        names = {pack.name for pack in schedule.release.packs}
        packs = {name: entry for name, entry in known["packs"].items() if name in names} | packs
    write_lock(schedule.release.lock_path, source, schedule.versions, packs)


class _Run:
    """State of one run: the schedule of each running task, and the failed attempts."""

    def __init__(self, schedules: Sequence[Schedule], executor: Executor, progress: Progress) -> None:
        self._schedules = {schedule.release.name: schedule for schedule in schedules}
        self._executor, self._progress = executor, progress
        self._here = InProcess(progress)
        self._deaths: Counter[str] = Counter()
        self._failed_on: dict[str, str] = {}
        tensors = sum(node.kind == TENSOR for schedule in schedules for node in schedule.graph.values())
        self._tensors = progress.task("tensors", tensors, "tensors") if tensors else None

    def run(self) -> None:
        running = 0
        while True:
            for schedule in self._schedules.values():
                for nodes in batches(schedule, self._executor.size):
                    if self._executor.free <= 0:
                        break
                    running += self._start(schedule, nodes)
            if not running:
                if self._tensors is not None:
                    self._tensors.done()
                return
            for ended in self._executor.wait() if self._here.free else self._here.wait():
                running -= 1
                self._take(ended)

    def _start(self, schedule: Schedule, nodes: Sequence[str]) -> int:
        """Submit ``nodes`` to one worker; return their number."""
        first, *others = [schedule.task(node, self._executor.threads) for node in nodes]
        for task in (first, *others):
            schedule.start(task.node)
            if task.kind != TENSOR:
                self._progress.note(f"{task.label}: started")
        executor = self._here if first.kind in HERE_ONLY else self._executor
        executor.submit(replace(first, others=tuple(others)), self._failed_on.get(first.label))
        return len(nodes)

    def _take(self, ended: TaskEnd) -> None:
        task, outcome = ended.task, ended.outcome
        schedule = self._schedules[task.release]
        if outcome is None:
            self._deaths[task.label] += 1
            if self._deaths[task.label] < MAX_WORKER_DEATHS:
                self._progress.note(f"{task.label}: {ended.died}; another worker goes on with it")
                schedule.requeue(task.node)
                return
            outcome = Failure(f"{ended.died}, {MAX_WORKER_DEATHS} times", RETRY_ELSEWHERE)
        if isinstance(outcome, Failure):
            if (
                outcome.exit_code == RETRY_ELSEWHERE
                and self._has_other_workers(ended)
                and task.label not in self._failed_on
            ):
                self._failed_on[task.label] = ended.worker
                self._progress.note(f"{task.label}: {outcome.sentence} (on {ended.worker}); another worker tries it")
                schedule.requeue(task.node)
                return
            self._progress.note(f"{task.label}: failed: {outcome.sentence}")
        elif task.kind == TENSOR and self._tensors is not None:
            self._tensors.advance(1)
        else:
            self._progress.note(f"{task.label}: done in {outcome['seconds']:.1f} s")
        schedule.finish(task.node, outcome)

    def _has_other_workers(self, ended: TaskEnd) -> bool:
        return ended.worker != THIS_PROCESS and not ended.died


def batches(schedule: Schedule, workers: int) -> list[list[str]]:
    """Return the ready nodes in batches: packs are batched, so that each worker reads the source once."""
    ready = schedule.ready()
    packs = [node for node in ready if node.startswith("pack:") and "ready" not in schedule.graph[node].paths]
    readings = [packs[first::workers] for first in range(workers)]
    return [*([node] for node in ready if node not in packs), *(nodes for nodes in readings if nodes)]
