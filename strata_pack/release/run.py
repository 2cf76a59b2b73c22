"""Running releases: every node that is ready goes to a worker, until nothing is left that could be made.

The state is on the disk. Killed at any moment, the same call goes on: what is finished is found, what was under way is
taken up where its own journal is.
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
from strata_pack.release.board import Board, Failure
from strata_pack.release.crew import HERE, Crew, Ended
from strata_pack.release.facts import Facts, installation
from strata_pack.release.file import Release
from strata_pack.release.graph import Node
from strata_pack.release.lock import LockedSource, read_lock, write_lock
from strata_pack.release.source import hashed, pin_source

TENSOR = "tensor"
"""The kind of nodes of which there may be thousands: they are counted and not named."""
MOST_DEATHS = 8
"""Workers that may die over one node before it counts as failed: what kills every worker will kill the next."""
SECOND_TRY = EnvironmentFailure.exit_code
"""The exit code of failures that another worker may not have: a full disk, a missing runtime."""


@dataclass(frozen=True)
class Outcome:
    """What a run did: its boards, at their ends."""

    boards: tuple[Board, ...]

    def count(self, state: str) -> int:
        """Return how many nodes ended in ``state``."""
        return sum(found == state for board in self.boards for found in board.states.values())

    @property
    def held_back(self) -> list[str]:
        """The packs that were built and do not pass their gates."""
        return [
            pack.name
            for board in self.boards
            for pack in board.release.packs
            if (judged := board.found.get(f"gates:{pack.name}")) is not None
            and judged["data"]["built"]
            and not judged["data"]["passed"]
        ]

    @property
    def exit_code(self) -> int:
        """0; that of the gravest failure; 1 if a pack does not pass its gates."""
        codes = [failure.exit_code for board in self.boards for failure in board.failures.values()]
        return max(codes) if codes else 1 if self.held_back else 0


def open_board(
    release: Release,
    *,
    update: bool = False,
    wanted: Callable[[Node], bool] | None = None,
    facts: Facts | None = None,
    progress: Progress | None = None,
) -> Board:
    """Return where ``release`` stands; nothing is written. A source that is not pinned is looked at on the Hub."""
    source = pin_source(release, read_lock(release.lock_path), update=update, progress=progress)
    return Board(release, source, facts or installation(), wanted)


def run_releases(boards: Sequence[Board], crew: Crew | None, progress: Progress | None = None) -> Outcome:
    """Make everything that the boards lack and return how it ended; a node that fails stops only what needs it.

    Without a crew nothing is made: it is needed only where something is lacking. Raises ``EnvironmentFailure`` if
    another run has one of the releases.
    """
    progress = progress or Silent()
    with ExitStack() as stack:
        for board in boards:
            stack.enter_context(held(board.release))
            _write_lock(board)
        if crew is not None:
            _Run(boards, crew, progress).to_the_end()
        for board in boards:
            _write_lock(board)
    return Outcome(tuple(boards))


@contextmanager
def held(release: Release) -> Iterator[None]:
    """Hold the release against a second run, on this machine or on one that shares the folder."""
    with disk_errors(release.state):
        release.state.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(release.state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        remedy = "wait for it to end; its results will be found"
        lock_file(descriptor, EnvironmentFailure("another run has this release", where=release.path, remedy=remedy))
        yield
    finally:
        os.close(descriptor)


def _write_lock(board: Board) -> None:
    source: LockedSource = board.source
    if "fetch" in board.found:
        source = hashed(source, board.found["fetch"])
    known = read_lock(board.release.lock_path)
    packs = board.locked_packs()
    if known is not None:
        names = {pack.name for pack in board.release.packs}
        packs = {name: entry for name, entry in known["packs"].items() if name in names} | packs
    write_lock(board.release.lock_path, source, board.facts, packs)


class _Run:
    """One run: which task is whose, and what has been tried."""

    def __init__(self, boards: Sequence[Board], crew: Crew, progress: Progress) -> None:
        self._boards = {board.release.name: board for board in boards}
        self._crew, self._progress = crew, progress
        self._deaths: Counter[str] = Counter()
        self._failed_on: dict[str, str] = {}
        tensors = sum(node.kind == TENSOR for board in boards for node in board.graph.values())
        self._tensors = progress.task("tensors", tensors, "tensors") if tensors else None

    def to_the_end(self) -> None:
        running = 0
        while True:
            for board in self._boards.values():
                for nodes in in_one_go(board, self._crew.size):
                    if self._crew.free <= 0:
                        break
                    running += self._start(board, nodes)
            if not running:
                if self._tensors is not None:
                    self._tensors.done()
                return
            for ended in self._crew.wait():
                running -= 1
                self._take(ended)

    def _start(self, board: Board, nodes: Sequence[str]) -> int:
        """Give ``nodes`` to one worker; return how many they are."""
        first, *others = [board.task(node, self._crew.threads) for node in nodes]
        for task in (first, *others):
            board.start(task.node)
            if task.kind != TENSOR:
                self._progress.note(f"{task.label}: started")
        self._crew.start(replace(first, others=tuple(others)), self._failed_on.get(first.label))
        return len(nodes)

    def _take(self, ended: Ended) -> None:
        task, outcome = ended.task, ended.outcome
        board = self._boards[task.release]
        if outcome is None:
            self._deaths[task.label] += 1
            if self._deaths[task.label] < MOST_DEATHS:
                self._progress.note(f"{task.label}: {ended.died}; another worker goes on with it")
                board.again(task.node)
                return
            outcome = Failure(f"{ended.died}, {MOST_DEATHS} times", SECOND_TRY)
        if isinstance(outcome, Failure):
            if outcome.exit_code == SECOND_TRY and self._crew_has_others(ended) and task.label not in self._failed_on:
                self._failed_on[task.label] = ended.worker
                self._progress.note(f"{task.label}: {outcome.sentence} (on {ended.worker}); another worker tries it")
                board.again(task.node)
                return
            self._progress.note(f"{task.label}: failed: {outcome.sentence}")
        elif task.kind == TENSOR and self._tensors is not None:
            self._tensors.advance(1)
        else:
            self._progress.note(f"{task.label}: done in {outcome['seconds']:.1f} s")
        board.end(task.node, outcome)

    def _crew_has_others(self, ended: Ended) -> bool:
        return ended.worker != HERE and not ended.died


def in_one_go(board: Board, workers: int) -> list[list[str]]:
    """Return the nodes that are ready, as they are given out: packs together, a reading for each worker."""
    ready = board.ready()
    packs = [node for node in ready if node.startswith("pack:") and "ready" not in board.graph[node].paths]
    readings = [packs[first::workers] for first in range(workers)]
    return [*([node] for node in ready if node not in packs), *(nodes for nodes in readings if nodes)]
