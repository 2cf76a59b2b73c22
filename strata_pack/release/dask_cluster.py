"""Executor on a Dask cluster; every worker must share the release's folder.

Dask schedules. Only the JSON of a result is sent, and a node that Dask runs twice finds its result on disk. When
the connection to the scheduler breaks, running tasks are submitted again once it is back.
Source: the client of distributed 2026 (futures are cancelled when the scheduler's connection is lost).
"""

from __future__ import annotations

import functools
import queue
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from strata_pack.errors import EnvironmentFailure
from strata_pack.extras import need
from strata_pack.files import disk_errors
from strata_pack.progress import Progress, Silent
from strata_pack.release.executor import Executor, TaskEnd
from strata_pack.release.node_kinds import run_tasks
from strata_pack.release.results import Result
from strata_pack.release.schedule import Failure
from strata_pack.release.task import Task
from strata_pack.release.versions import installed_versions

LOCAL = "local"
CONNECT_SECONDS = 10.0
"""Seconds to the first answer of a scheduler."""
LOST_AFTER_SECONDS = 60.0
"""Seconds that the scheduler, or every worker, may be away before the run ends."""
POLL_SECONDS = 1.0
CLOSED = "closed"
"""Status of a client that has stopped reconnecting to its scheduler."""

Answer = tuple[str, list[Result | Failure]]
"""A worker's address and how its tasks ended."""


def run_on_worker(task: Task, versions: Mapping[str, Any]) -> Answer:
    """Run a task on a worker, unless the worker joined after the version check and has other ``versions``."""
    from distributed import get_worker

    worker = str(get_worker().address)
    other = difference(worker_versions(), versions)
    if other is not None:
        return worker, [Failure(f"{worker} {other}; install the same versions everywhere", 3)] * len(task.together)
    return worker, run_tasks(task, Silent())


@functools.cache
def worker_versions() -> dict[str, Any]:
    """Return the versions of the installation that runs this function."""
    return installed_versions().to_dict()


def difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str | None:
    """Return which difference in versions would change a result's bytes, ``None`` if there is none."""
    for name in ("tool", "library", "kernels", "engines"):
        if theirs[name] != ours[name]:
            return f"has another {name} ({theirs[name]}) than this machine ({ours[name]})"
    return None


def read_on_worker(path: str) -> str | None:
    """Return the content of a file as a worker sees it, ``None`` if it does not see the file."""
    try:
        return Path(path).read_text()
    except OSError:
        return None


class Cluster:
    """The workers of a Dask scheduler. A worker runs as many nodes at a time as it has Dask threads."""

    def __init__(self, client: Any, where: str, threads: int | None) -> None:
        self.threads = threads
        self._client, self._where = client, where
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._tasks: dict[Any, Task] = {}
        self._seen = time.monotonic()
        self.size = max(1, sum(self._workers().values()))
        self._tries = 0

    @property
    def free(self) -> int:
        return self.size - len(self._tasks)

    def submit(self, task: Task, avoid: str | None = None) -> None:
        others = [address for address in self._workers() if address != avoid] if avoid else []
        where: dict[str, Any] = {"workers": others, "allow_other_workers": True} if others else {}
        self._tries += 1
        # A new key each time: Dask answers a known key with its stored result.
        key = f"{task.label}-{task.key[:12]}-{self._tries}"
        if self._client.status == CLOSED:
            raise self._lost("the scheduler is gone")
        future = self._client.submit(run_on_worker, task, worker_versions(), key=key, pure=False, **where)
        self._tasks[future] = task
        future.add_done_callback(self._ended.put)

    def wait(self) -> list[TaskEnd]:
        while True:
            try:
                future = self._ended.get(timeout=POLL_SECONDS)
            except queue.Empty:
                self._check_connection()
                continue
            task = self._tasks.pop(future, None)
            if task is not None:
                self._seen = time.monotonic()
                return self._end_of(future, task)

    def _end_of(self, future: Any, task: Task) -> list[TaskEnd]:
        from distributed import CancelledError

        died = f"the connection to the scheduler {self._where} was lost"
        if future.status == "error":
            error = future.exception()
            died = f"its worker was lost ({type(error).__name__}: {str(error)[:200]})"
        elif future.status == "finished":
            # The worker holds the result, so fetching it can fail too.
            with suppress(OSError, CancelledError):
                worker, outcomes = future.result(timeout=LOST_AFTER_SECONDS)
                return [TaskEnd(one, outcome, worker) for one, outcome in zip(task.together, outcomes, strict=True)]
        return [TaskEnd(one, None, "", died=died) for one in task.together]

    def _check_connection(self) -> None:
        """Raise ``EnvironmentFailure`` if the scheduler or all workers have been away for too long."""
        if self._client.status == CLOSED:
            raise self._lost("the scheduler is gone")
        if self._workers():
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > LOST_AFTER_SECONDS:
            raise self._lost("the scheduler does not answer, or no worker is left")

    def _workers(self) -> Mapping[str, int]:
        """Return the Dask threads of every worker by address; none while the scheduler does not answer."""
        with suppress(OSError):
            found: Mapping[str, int] = self._client.nthreads(callback_timeout=CONNECT_SECONDS)
            return found
        return {}

    def _lost(self, problem: str) -> EnvironmentFailure:
        return EnvironmentFailure(
            problem, where=self._where, remedy="what was finished is kept: start it and run the release again"
        )


@contextmanager
def cluster(
    address: str, folders: Sequence[Path], progress: Progress, *, workers: int | None = None, threads: int | None = None
) -> Iterator[Executor]:
    """Yield an executor for the scheduler at ``address``, or for a cluster on this machine (``"local"``).

    ``folders`` are the releases' folders, which every worker must share. Raises ``EnvironmentFailure`` if the extra is
    not installed, nothing answers, a worker runs other versions, or one does not see the folders.
    """
    need("distributed", "dask", "--dask")
    import distributed

    connect: Any = distributed.Client
    with ExitStack() as stack:
        target: Any = address
        if address == LOCAL:
            target = stack.enter_context(_local(workers))
        try:
            # The first connection times out soon; the lasting client reconnects after a network failure.
            connect(target, timeout=CONNECT_SECONDS, set_as_default=False).close()
            client = stack.enter_context(connect(target, timeout=LOST_AFTER_SECONDS, set_as_default=False))
        except (OSError, TimeoutError, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise EnvironmentFailure(
                f"no Dask scheduler answers ({reason[:200]})", where=address, remedy="start one with `dask scheduler`"
            ) from None
        where = str(client.scheduler.address) if client.scheduler is not None else address
        if not client.nthreads():
            raise EnvironmentFailure(
                "the scheduler has no workers", where=where, remedy=f"start some: `dask worker {where} --nthreads 1`"
            )
        check_versions(client, where, worker_versions())
        check_folders(client, folders)
        progress.note(f"Dask: {len(client.nthreads())} workers at {where}; dashboard {client.dashboard_link}")
        yield Cluster(client, where, threads)


@contextmanager
def _local(workers: int | None) -> Iterator[Any]:
    import distributed

    make: Any = distributed.LocalCluster
    with make(
        n_workers=workers or 2,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        silence_logs=50,
    ) as made:
        yield made


def check_versions(client: Any, where: str, ours: Mapping[str, Any]) -> None:
    """Refuse workers whose versions differ from ``ours`` in a way that changes bytes, or whose Dask does not fit."""
    try:
        client.get_versions(check=True)
    except ValueError as error:
        raise EnvironmentFailure(f"its versions do not fit: {error}", where=where) from None
    for worker, theirs in _answers(client, worker_versions).items():
        if isinstance(theirs, BaseException):
            raise EnvironmentFailure(
                f"cannot do the work ({theirs})", where=worker, remedy="install this strata-pack there"
            )
        other = difference(theirs, ours)
        if other is not None:
            raise EnvironmentFailure(other, where=worker, remedy="install the same versions everywhere")


def check_folders(client: Any, folders: Sequence[Path]) -> None:
    """Refuse a worker that does not share the releases' folders."""
    for folder in folders:
        mark = folder / ".release" / "shared"
        token = secrets.token_hex(8)
        with disk_errors(mark):
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.write_text(token)
        for worker, seen in _answers(client, read_on_worker, str(mark.absolute())).items():
            if seen != token:
                raise EnvironmentFailure(
                    f"does not see the folder {folder}", where=worker, remedy="let all workers share it, by one path"
                )
        mark.unlink(missing_ok=True)


def _answers(client: Any, function: Any, *args: Any) -> Mapping[str, Any]:
    """Return every worker's answer; workers lost meanwhile are left out."""
    from distributed.comm.core import CommClosedError

    found: Mapping[str, Any] = client.run(function, *args, on_error="return")
    return {worker: answer for worker, answer in found.items() if not isinstance(answer, CommClosedError)}
