"""This process as the only worker of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from strata_pack.progress import Progress
from strata_pack.release.crew import HERE, Crew, Ended
from strata_pack.release.kinds import outcomes_of
from strata_pack.release.work import Task


class Alone:
    """This process as the only worker."""

    threads: int | None = None
    size = 1

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
        outcomes = outcomes_of(task, self._progress)
        return [Ended(one, outcome, HERE) for one, outcome in zip(task.together, outcomes, strict=True)]


@contextmanager
def alone(progress: Progress, threads: int | None = None) -> Iterator[Crew]:
    """Yield a crew of this process alone."""
    yield Alone(progress, threads)
