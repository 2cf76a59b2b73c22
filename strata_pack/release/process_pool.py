"""Executor of several processes on this machine.

Each worker is a new interpreter with one pipe: it receives a task, sends progress, and sends the result.
A worker that dies is replaced, and its task is retried. When the run itself is killed, its workers see the pipe close
and end at once, so no process keeps working in a folder that the next run uses.
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

from strata_pack.progress import Progress, ProgressTask
from strata_pack.release.executor import Executor, TaskEnd
from strata_pack.release.node_kinds import run_tasks
from strata_pack.release.task import Task

REPORT_EVERY = 0.2
"""Seconds between two progress messages of a worker."""
EXIT_SECONDS = 5.0
"""Seconds that a worker has to end after the request."""


class _PipeProgress:
    """A worker's ``Progress``: forwards notes to the run, and amounts at intervals instead of at each call."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)

    def send(self, message: tuple[Any, ...]) -> None:
        with self._lock, suppress(OSError):
            self._pipe.send(message)

    def note(self, text: str) -> None:
        self.send(("note", text))

    def task(self, label: str, total: int | None = None, unit: str = "bytes") -> ProgressTask:
        number = next(self._numbers)
        self.send(("task", number, label, total, unit))
        return _PipeTask(self, number)


class _PipeTask:
    def __init__(self, progress: _PipeProgress, number: int) -> None:
        self._progress, self._number = progress, number
        self._amount, self._at = 0, time.monotonic()

    def advance(self, amount: int) -> None:
        self._amount += amount
        now = time.monotonic()
        if now - self._at >= REPORT_EVERY:
            self._progress.send(("advance", self._number, self._amount))
            self._amount, self._at = 0, now

    def done(self) -> None:
        self._progress.send(("advance", self._number, self._amount))
        self._progress.send(("done", self._number))


def _serve(pipe: Connection) -> None:
    """Worker main loop: run one task after the other until the run closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    progress = _PipeProgress(pipe)
    while True:
        try:
            task: Task | None = pipe.recv()
        except EOFError:
            return
        if task is None:
            return
        progress.send(("ended", run_tasks(task, progress)))


def _end_with(sentinel: int) -> None:
    """End this process as soon as the run's process has ended."""
    wait([sentinel])
    os._exit(1)


@dataclass
class _Worker:
    name: str
    process: SpawnProcess
    pipe: Connection
    task: Task | None
    progress_tasks: dict[int, ProgressTask]


class ProcessPool:
    """Executor of worker processes, which are started when a task needs one."""

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

    def submit(self, task: Task, avoid: str | None = None) -> None:
        idle = [worker for worker in self._workers if worker.task is None and worker.name != avoid]
        if not idle:
            if len(self._workers) == self.size:
                # Only the one to avoid is free: a new process takes its place.
                self._stop(next(worker for worker in self._workers if worker.task is None))
            idle = [self._new()]
        worker = idle[0]
        worker.task = task
        # ``wait`` notices a worker that has just died.
        with suppress(OSError):
            worker.pipe.send(task)

    def wait(self) -> list[TaskEnd]:
        ended: list[TaskEnd] = []
        while not ended:
            busy = [worker for worker in self._workers if worker.task is not None]
            heard = wait([worker.pipe for worker in busy])
            for worker in busy:
                if worker.pipe in heard:
                    ended += self._receive(worker)
        return ended

    def _receive(self, worker: _Worker) -> list[TaskEnd]:
        assert worker.task is not None
        try:
            kind, *rest = worker.pipe.recv()
        except (EOFError, OSError):
            return self._replace(worker)
        if kind == "note":
            self._progress.note(f"{worker.task.label}: {rest[0]}")
        elif kind == "task":
            number, label, total, unit = rest
            worker.progress_tasks[number] = self._progress.task(f"{worker.task.label}: {label}", total, unit)
        elif kind == "advance":
            worker.progress_tasks[rest[0]].advance(rest[1])
        elif kind == "done":
            worker.progress_tasks[rest[0]].done()
        else:
            task, worker.task = worker.task, None
            worker.progress_tasks.clear()
            return [TaskEnd(one, outcome, worker.name) for one, outcome in zip(task.together, rest[0], strict=True)]
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

    def _replace(self, worker: _Worker) -> list[TaskEnd]:
        """Remove a dead worker from the pool and return how its task ended."""
        assert worker.task is not None
        self._workers.remove(worker)
        worker.process.join(EXIT_SECONDS)
        code = worker.process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        worker.pipe.close()
        for progress_task in worker.progress_tasks.values():
            progress_task.done()
        return [TaskEnd(one, None, worker.name, died=f"{worker.name} {how}") for one in worker.task.together]

    def _stop(self, worker: _Worker) -> None:
        """End a worker: kill it during a task, otherwise close its pipe and wait."""
        with suppress(OSError):
            worker.pipe.send(None)
        if worker.task is not None:
            worker.process.kill()
        worker.process.join(EXIT_SECONDS)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.pipe.close()
        self._workers.remove(worker)

    def close(self) -> None:
        """End all workers."""
        for worker in list(self._workers):
            self._stop(worker)


@contextmanager
def process_pool(count: int, progress: Progress, threads: int | None = None) -> Iterator[Executor]:
    """Yield an executor of ``count`` processes; a worker uses its share of the cores, or ``threads``."""
    executor = ProcessPool(count, progress, threads)
    try:
        yield executor
    finally:
        executor.close()
