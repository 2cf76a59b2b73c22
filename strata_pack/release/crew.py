"""Who does the nodes: this process, several processes, or a Dask cluster. The run knows only what is here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from strata_pack.errors import StrataError
from strata_pack.progress import Progress
from strata_pack.release.board import Failure
from strata_pack.release.results import Result
from strata_pack.release.work import Task, perform


@dataclass(frozen=True)
class Ended:
    """How a task ended: a result, a failure, or (``None``) with the death of its worker, which ``died`` describes."""

    task: Task
    outcome: Result | Failure | None
    worker: str
    died: str = ""


class Crew(Protocol):
    """Workers that take tasks. ``threads`` is how many cores one of them may use, ``None`` for all."""

    @property
    def threads(self) -> int | None: ...

    @property
    def free(self) -> int:
        """How many tasks it would take now."""

    def start(self, task: Task, avoid: str | None = None) -> None:
        """Give a worker the task, another one than ``avoid`` if there is one."""

    def wait(self) -> list[Ended]:
        """Wait until a task ends, and return all that have."""


class Alone:
    """This process as the only worker."""

    threads: int | None = None

    def __init__(self, progress: Progress, threads: int | None = None) -> None:
        self._progress, self.threads = progress, threads
        self._task: Task | None = None

    @property
    def free(self) -> int:
        return 0 if self._task else 1

    def start(self, task: Task, avoid: str | None = None) -> None:  # noqa: ARG002
        self._task = task

    def wait(self) -> list[Ended]:
        task, self._task = self._task, None
        assert task is not None
        return [Ended(task, outcome_of(task, self._progress), "this process")]


def outcome_of(task: Task, progress: Progress) -> Result | Failure:
    """Perform ``task`` and return how it ended: a result, or the sentence of what went wrong."""
    try:
        return perform(task, progress)
    except StrataError as error:
        return Failure.of(error)
    except OSError as error:
        return Failure(str(error), 3)


@contextmanager
def alone(progress: Progress, threads: int | None = None) -> Iterator[Crew]:
    """Yield a crew of this process alone."""
    yield Alone(progress, threads)
