"""This process as the only worker of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from strata_pack.progress import Progress
from strata_pack.release.executor import THIS_PROCESS, Executor, TaskEnd
from strata_pack.release.node_kinds import run_tasks
from strata_pack.release.task import Task


class InProcess:
    """This process as the only worker."""

    threads: int | None = None
    size = 1

    def __init__(self, progress: Progress, threads: int | None = None) -> None:
        self._progress, self.threads = progress, threads
        self._task: Task | None = None

    @property
    def free(self) -> int:
        return 0 if self._task else 1

    def submit(self, task: Task, avoid: str | None = None) -> None:  # noqa: ARG002
        self._task = task

    def wait(self) -> list[TaskEnd]:
        task, self._task = self._task, None
        assert task is not None
        outcomes = run_tasks(task, self._progress)
        return [TaskEnd(one, outcome, THIS_PROCESS) for one, outcome in zip(task.together, outcomes, strict=True)]


@contextmanager
def in_process(progress: Progress, threads: int | None = None) -> Iterator[Executor]:
    """Yield an executor that is this process."""
    yield InProcess(progress, threads)
