"""Several processes on this machine as the workers of a run.

Each worker is a fresh interpreter with one pipe; it gets a task, sends what it tells meanwhile, and sends how it ended.
One that dies is replaced, and its task goes to another. When the run itself is killed its workers see the pipe close
and end at once: nobody is left behind at work on a folder that the next run wants.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from strata_pack.progress import Progress
from strata_pack.progress import ProgressTask as Watched
from strata_pack.release.crew import Crew, Ended
from strata_pack.release.kinds import outcomes_of
from strata_pack.release.work import Task

TELL_EVERY = 0.2
"""Seconds between two messages about how far a worker's task is."""
LEAVE_WITHIN = 5.0
"""Seconds that a worker has to end when it is told to."""


class _Told:
    """A worker's ``Progress``: what it hears goes to the run, an amount now and then and not at each call."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)

    def send(self, message: tuple[Any, ...]) -> None:
        with self._lock, suppress(OSError):
            self._pipe.send(message)

    def note(self, text: str) -> None:
        self.send(("note", text))

    def task(self, label: str, total: int | None = None, unit: str = "bytes") -> Watched:
        number = next(self._numbers)
        self.send(("task", number, label, total, unit))
        return _ToldTask(self, number)


class _ToldTask:
    def __init__(self, told: _Told, number: int) -> None:
        self._told, self._number = told, number
        self._amount, self._at = 0, time.monotonic()

    def advance(self, amount: int) -> None:
        self._amount += amount
        now = time.monotonic()
        if now - self._at >= TELL_EVERY:
            self._told.send(("advance", self._number, self._amount))
            self._amount, self._at = 0, now

    def done(self) -> None:
        self._told.send(("advance", self._number, self._amount))
        self._told.send(("done", self._number))


def _serve(pipe: Connection) -> None:
    """The life of a worker: one task after the other, until the run closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    told = _Told(pipe)
    while True:
        try:
            task: Task | None = pipe.recv()
        except EOFError:
            return
        if task is None:
            return
        told.send(("ended", outcomes_of(task, told)))


def _end_with(sentinel: int) -> None:
    """End this process when the run's process has ended, whatever it is doing."""
    wait([sentinel])
    os._exit(1)


@dataclass
class _Worker:
    name: str
    process: SpawnProcess
    pipe: Connection
    task: Task | None
    watched: dict[int, Watched]


class Processes:
    """Processes as workers; they are started when there is a task for them."""

    def __init__(self, count: int, progress: Progress, threads: int | None = None) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.threads: int | None = threads or max(1, cores // count)
        self.size, self._progress = count, progress
        self._workers: list[_Worker] = []
        self._started = 0

    @property
    def free(self) -> int:
        return self.size - sum(worker.task is not None for worker in self._workers)

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [worker.process.pid for worker in self._workers if worker.process.pid is not None]

    def start(self, task: Task, avoid: str | None = None) -> None:
        idle = [worker for worker in self._workers if worker.task is None and worker.name != avoid]
        if not idle:
            if len(self._workers) == self.size:
                # Only the one to avoid is free: a new process takes its place.
                self._retire(next(worker for worker in self._workers if worker.task is None))
            idle = [self._new()]
        worker = idle[0]
        worker.task = task
        # One that has died just now is noticed by ``wait``.
        with suppress(OSError):
            worker.pipe.send(task)

    def wait(self) -> list[Ended]:
        ended: list[Ended] = []
        while not ended:
            busy = [worker for worker in self._workers if worker.task is not None]
            heard = wait([worker.pipe for worker in busy])
            for worker in busy:
                if worker.pipe in heard:
                    ended += self._hear(worker)
        return ended

    def _hear(self, worker: _Worker) -> list[Ended]:
        assert worker.task is not None
        try:
            kind, *rest = worker.pipe.recv()
        except (EOFError, OSError):
            return self._bury(worker)
        if kind == "note":
            self._progress.note(f"{worker.task.label}: {rest[0]}")
        elif kind == "task":
            number, label, total, unit = rest
            worker.watched[number] = self._progress.task(f"{worker.task.label}: {label}", total, unit)
        elif kind == "advance":
            worker.watched[rest[0]].advance(rest[1])
        elif kind == "done":
            worker.watched[rest[0]].done()
        else:
            task, worker.task = worker.task, None
            worker.watched.clear()
            return [Ended(one, outcome, worker.name) for one, outcome in zip(task.together, rest[0], strict=True)]
        return []

    def _new(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._started += 1
        name = f"worker {self._started}"
        process = context.Process(target=_serve, args=(theirs,), name=name, daemon=True)
        process.start()
        theirs.close()
        worker = _Worker(name, process, ours, None, {})
        self._workers.append(worker)
        return worker

    def _bury(self, worker: _Worker) -> list[Ended]:
        """Take a dead worker out of the crew and say what became of its task."""
        assert worker.task is not None
        self._workers.remove(worker)
        worker.process.join(LEAVE_WITHIN)
        code = worker.process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        worker.pipe.close()
        for watched in worker.watched.values():
            watched.done()
        return [Ended(one, None, worker.name, died=f"{worker.name} {how}") for one in worker.task.together]

    def _retire(self, worker: _Worker) -> None:
        """End a worker: at once if it is in the middle of a task, else when it has heard that it may."""
        with suppress(OSError):
            worker.pipe.send(None)
        if worker.task is not None:
            worker.process.kill()
        worker.process.join(LEAVE_WITHIN)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.pipe.close()
        self._workers.remove(worker)

    def close(self) -> None:
        """End all workers."""
        for worker in list(self._workers):
            self._retire(worker)


@contextmanager
def processes(count: int, progress: Progress, threads: int | None = None) -> Iterator[Crew]:
    """Yield a crew of ``count`` processes; a worker uses its share of the cores, or ``threads``."""
    crew = Processes(count, progress, threads)
    try:
        yield crew
    finally:
        crew.close()
