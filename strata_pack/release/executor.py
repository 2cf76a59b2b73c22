"""The interface of executors: this process, several processes, or a Dask cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from strata_pack.release.results import Result
from strata_pack.release.schedule import Failure
from strata_pack.release.task import Task

THIS_PROCESS = "this process"


@dataclass(frozen=True)
class TaskEnd:
    """How a task ended: a result, a failure, or ``None`` if its worker died, which ``died`` describes."""

    task: Task
    outcome: Result | Failure | None
    worker: str
    died: str = ""


class Executor(Protocol):
    """Runs tasks on workers. ``threads`` is the number of cores for one worker, ``None`` for all."""

    @property
    def threads(self) -> int | None: ...

    @property
    def size(self) -> int:
        """Number of tasks that can run at a time."""

    @property
    def free(self) -> int:
        """Number of tasks that could start now."""

    def submit(self, task: Task, avoid: str | None = None) -> None:
        """Give the task to a worker, if possible not to ``avoid``."""

    def wait(self) -> list[TaskEnd]:
        """Wait until a task ends; return every task that has ended."""
