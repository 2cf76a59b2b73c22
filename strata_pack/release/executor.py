"""Who does the nodes: this process, several processes, or a Dask cluster. The run knows only what is here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from strata_pack.release.results import Result
from strata_pack.release.schedule import Failure
from strata_pack.release.task import Task

THIS_PROCESS = "this process"


@dataclass(frozen=True)
class TaskEnd:
    """How a task ended: a result, a failure, or (``None``) with the death of its worker, which ``died`` describes."""

    task: Task
    outcome: Result | Failure | None
    worker: str
    died: str = ""


class Executor(Protocol):
    """Workers that take tasks. ``threads`` is how many cores one of them may use, ``None`` for all."""

    @property
    def threads(self) -> int | None: ...

    @property
    def size(self) -> int:
        """How many tasks it can do at a time."""

    @property
    def free(self) -> int:
        """How many tasks it would take now."""

    def submit(self, task: Task, avoid: str | None = None) -> None:
        """Give a worker the task, another one than ``avoid`` if there is one."""

    def wait(self) -> list[TaskEnd]:
        """Wait until a task ends, and return all that have."""
