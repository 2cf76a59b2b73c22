"""Processes as workers: killed, short of disk, left alone by a killed run."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from strata_pack.progress import Silent
from strata_pack.release.process_pool import ProcessPool, process_pool
from strata_pack.release.release_file import read_release
from strata_pack.release.run import MAX_WORKER_DEATHS, open_schedule, run_releases
from strata_pack.release.schedule import Failure
from tests.release.test_kills import done_twice
from tests.release.tiny_release import GATES, HEAD, MEASURED, pack_hashes, run, write_release

EIGHT = "".join(
    f'\n[[pack]]\nquant = "{quant}"\n' for quant in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "F16", "BF16", "IQ4_NL")
)


def test_two_workers_make_what_one_process_makes(tmp_path: Path) -> None:
    alone = write_release(tmp_path / "alone")
    run(alone)
    file = write_release(tmp_path / "two")
    with process_pool(2, Silent()) as executor:
        assert run_releases([open_schedule(read_release(file))], executor).exit_code == 0
    assert pack_hashes(file) == pack_hashes(alone)


class Deadly(ProcessPool):
    """Kills the worker of every task whose node is named, a few times."""

    def __init__(self, node: str, times: int) -> None:
        super().__init__(1, Silent())
        self._node, self._times = node, times

    def submit(self, task: Any, avoid: str | None = None) -> None:
        super().submit(task, avoid)
        if task.node == self._node and self._times > 0:
            self._times -= 1
            for pid in self.pids:
                os.kill(pid, signal.SIGKILL)


def test_the_task_of_a_killed_worker_goes_to_another(tmp_path: Path) -> None:
    file = write_release(tmp_path / "r")
    executor = Deadly("pack:Tiny-Q8_0", 2)
    outcome = run_releases([open_schedule(read_release(file))], executor)
    executor.close()
    assert outcome.exit_code == 0
    assert done_twice(file) == []


def test_a_task_that_kills_every_worker_fails_with_a_sentence(tmp_path: Path) -> None:
    file = write_release(tmp_path / "r")
    executor = Deadly("fetch", MAX_WORKER_DEATHS)
    (schedule,) = run_releases([open_schedule(read_release(file))], executor).schedules
    executor.close()
    assert isinstance(schedule.failures["fetch"], Failure)
    assert f"killed by signal 9, {MAX_WORKER_DEATHS} times" in schedule.failures["fetch"].sentence


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_the_workers_of_a_killed_run_end(tmp_path: Path) -> None:
    file = write_release(tmp_path / "r", HEAD + EIGHT)
    command = [sys.executable, "-m", "strata_pack", "release", "run", str(file), "--workers", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "pack:" in line and "started" in line)
        children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        process.kill()
    deadline = time.monotonic() + 60
    while any(map(alive, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, children))
    assert children


class Full(ProcessPool):
    """The first worker (or every one) can write no file of more than ``limit`` bytes: its disk is full."""

    def __init__(self, count: int, limit: int, *, every: bool = False) -> None:
        super().__init__(count, Silent())
        self._limit, self._every = limit, every

    def _new(self) -> Any:
        worker = super()._new()
        if self._every or self._started == 1:
            # As a full disk does, the limit makes the write fail; the signal that comes first is ignored by Python.
            resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE, (self._limit, self._limit))
        return worker


def test_a_worker_with_a_full_disk_leaves_its_task_to_another(tmp_path: Path) -> None:
    alone = write_release(tmp_path / "alone")
    run(alone)
    file = write_release(tmp_path / "full")
    executor = Full(2, 20_000)
    outcome = run_releases([open_schedule(read_release(file))], executor)
    executor.close()
    assert [schedule.failures for schedule in outcome.schedules] == [{}]
    assert pack_hashes(file) == pack_hashes(alone)


def test_a_disk_that_is_full_everywhere_is_one_sentence(tmp_path: Path) -> None:
    file = write_release(tmp_path / "full")
    executor = Full(1, 20_000, every=True)
    outcome = run_releases([open_schedule(read_release(file))], executor)
    executor.close()
    assert outcome.exit_code == 3
    assert all("Tiny-Q" in failure.sentence for failure in outcome.schedules[0].failures.values())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_models_of_eight_packs_survive_20_killed_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Here somebody else kills: a task is not to blame for the workers that die over it.
    monkeypatch.setattr("strata_pack.release.run.MAX_WORKER_DEATHS", 100)
    texts = [HEAD.replace("Tiny", name) + MEASURED + EIGHT + GATES for name in ("One", "Two")]
    alone = [write_release(tmp_path / f"alone{n}", text) for n, text in enumerate(texts)]
    for file in alone:
        assert run(file).exit_code == 0
    files = [write_release(tmp_path / f"killed{n}", text) for n, text in enumerate(texts)]
    executor = ProcessPool(3, Silent())
    dice, kills, stop = random.Random(4), 0, threading.Event()

    def kill() -> None:
        nonlocal kills
        while kills < 20 and not stop.wait(dice.uniform(0.2, 2.5)):
            pids = executor.pids
            if pids:
                os.kill(dice.choice(pids), signal.SIGKILL)
                kills += 1

    killer = threading.Thread(target=kill)
    killer.start()
    outcome = run_releases([open_schedule(read_release(file)) for file in files], executor)
    stop.set()
    killer.join()
    executor.close()
    assert outcome.exit_code == 0
    assert [pack_hashes(file) for file in files] == [pack_hashes(file) for file in alone]
    assert [done_twice(file) for file in files] == [[], []]
    assert kills == 20
