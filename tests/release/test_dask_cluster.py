"""A Dask cluster as the workers: same result, its faults borne or named."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strata_pack.errors import EnvironmentFailure
from strata_pack.progress import Silent
from strata_pack.release import dask_cluster
from strata_pack.release.dask_cluster import check_folders, check_versions, cluster, run_on_worker, worker_versions
from strata_pack.release.release_file import read_release
from strata_pack.release.run import open_schedule, run_releases
from strata_pack.release.schedule import Failure
from tests.release.test_kills import done_twice
from tests.release.test_process_pool import EIGHT
from tests.release.tiny_release import GATES, HEAD, MEASURED, pack_hashes, run, write_release

pytest.importorskip("distributed", reason="the extra dask is not installed")


@contextmanager
def dask(folder: Path, workers: int) -> Iterator[tuple[str, subprocess.Popen[bytes], list[subprocess.Popen[bytes]]]]:
    """Yield a scheduler's address, its process and those of its workers (each a nanny that starts another)."""
    file = folder / "scheduler.json"
    base = [sys.executable, "-m"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    with ExitStack() as stack:

        def start(*words: str) -> subprocess.Popen[bytes]:
            process = stack.enter_context(subprocess.Popen([*base, *words], **quiet))
            stack.callback(process.kill)
            return process

        arguments = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file))
        scheduler = start("distributed.cli.dask_scheduler", *arguments)
        nannies = [
            start(
                *("distributed.cli.dask_worker", "--scheduler-file", str(file), "--nthreads", "1"),
                *("--no-dashboard", "--host", "127.0.0.1", "--death-timeout", "60"),
            )
            for _ in range(workers)
        ]
        deadline = time.monotonic() + 120
        from distributed import Client

        while not file.is_file() and time.monotonic() < deadline:
            time.sleep(0.1)
        with Client(scheduler_file=str(file), timeout=60, set_as_default=False) as client:
            address = str(client.scheduler.address)
            client.wait_for_workers(workers, timeout=120)
        yield address, scheduler, nannies


def test_nobody_at_the_address_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_cluster, "CONNECT_SECONDS", 0.5)
    with pytest.raises(EnvironmentFailure, match=r"tcp://127.0.0.1:9: no Dask scheduler answers"):
        cluster("tcp://127.0.0.1:9", [tmp_path], Silent()).__enter__()


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(EnvironmentFailure, match=r"--dask needs the package distributed.*\[dask\]"):
        cluster("local", [tmp_path], Silent()).__enter__()


def test_a_worker_that_joins_late_with_other_versions_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributed.get_worker", lambda: SimpleNamespace(address="tcp://late"))
    task = open_schedule(read_release(write_release(tmp_path))).task("fetch")
    worker, outcomes = run_on_worker(task, {**worker_versions(), "kernels": "others 1"})
    assert worker == "tcp://late"
    assert [one.exit_code for one in outcomes if isinstance(one, Failure)] == [3]
    assert not (tmp_path / "packs/.release/results").exists()


@pytest.mark.slow
def test_a_local_cluster_makes_the_same(tmp_path: Path) -> None:
    alone, file = write_release(tmp_path / "alone"), write_release(tmp_path / "dask")
    run(alone)
    with cluster("local", [tmp_path / "dask/packs"], Silent(), workers=2) as executor:
        assert run_releases([open_schedule(read_release(file))], executor).exit_code == 0
    assert pack_hashes(file) == pack_hashes(alone)


@pytest.mark.slow
def test_a_worker_of_other_versions_or_another_disk_is_refused(tmp_path: Path) -> None:
    from distributed import Client

    with dask(tmp_path, 1) as (address, _, _), Client(address, set_as_default=False) as client:
        theirs = {**worker_versions(), "kernels": "others 1"}
        with pytest.raises(EnvironmentFailure, match="has another kernels"):
            check_versions(client, address, theirs)
        with pytest.raises(EnvironmentFailure, match="does not see the folder"):
            check_folders(Elsewhere(client), [tmp_path])


class Elsewhere:
    """A client whose workers look for every path below another folder."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, function: Any, path: str, **options: Any) -> Any:
        return self._client.run(function, f"/nowhere{path}", **options)


def workers_of(nanny: subprocess.Popen[bytes]) -> list[int]:
    """Return the process ids of a nanny's worker: it starts it from a thread, whose children are its own."""
    found = []
    with suppress(OSError):
        for children in Path(f"/proc/{nanny.pid}/task").glob("*/children"):
            found += [int(pid) for pid in children.read_text().split()]
    with suppress(OSError):
        return [pid for pid in found if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]
    return []


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_workers_of_a_cluster_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata_pack.release.run.MAX_WORKER_DEATHS", 100)
    texts = [HEAD.replace("Tiny", name) + MEASURED + EIGHT + GATES for name in ("One", "Two")]
    wanted = []
    for n, text in enumerate(texts):
        file = write_release(tmp_path / f"alone{n}", text)
        run(file)
        wanted.append(pack_hashes(file))
    dice, kills, stop, rounds = random.Random(5), 0, threading.Event(), 0
    with dask(tmp_path, 3) as (address, _, nannies):

        def kill() -> None:
            nonlocal kills
            while kills < 20 and not stop.wait(dice.uniform(0.5, 3.0)):
                if workers := workers_of(dice.choice(nannies)):
                    os.kill(dice.choice(workers), signal.SIGKILL)
                    kills += 1

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            while kills < 20:
                rounds += 1
                files = [write_release(tmp_path / f"dask{rounds}-{n}", text) for n, text in enumerate(texts)]
                with cluster(address, [file.parent / "packs" for file in files], Silent(), threads=1) as executor:
                    outcome = run_releases([open_schedule(read_release(file)) for file in files], executor)
                assert outcome.exit_code == 0
                assert [pack_hashes(file) for file in files] == wanted
                assert [done_twice(file) for file in files] == [[], []]
        finally:
            stop.set()
            killer.join()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_scheduler_that_is_away_for_10_s_changes_nothing(tmp_path: Path) -> None:
    alone, file = write_release(tmp_path / "alone", HEAD + EIGHT), write_release(tmp_path / "dask", HEAD + EIGHT)
    run(alone)
    with dask(tmp_path, 2) as (address, scheduler, _), cluster(address, [file.parent / "packs"], Silent()) as executor:

        def away() -> None:
            time.sleep(1.0)
            scheduler.send_signal(signal.SIGSTOP)
            time.sleep(10.0)
            scheduler.send_signal(signal.SIGCONT)

        break_ = threading.Thread(target=away)
        break_.start()
        outcome = run_releases([open_schedule(read_release(file))], executor)
        break_.join()
    assert outcome.exit_code == 0
    assert pack_hashes(file) == pack_hashes(alone)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_scheduler_that_is_gone_ends_the_run_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_cluster, "LOST_AFTER_SECONDS", 5.0)
    alone, file = write_release(tmp_path / "alone", HEAD + EIGHT), write_release(tmp_path / "dask", HEAD + EIGHT)
    run(alone)
    with dask(tmp_path, 2) as (address, scheduler, _), cluster(address, [file.parent / "packs"], Silent()) as executor:
        threading.Timer(2.0, scheduler.kill).start()
        with pytest.raises(EnvironmentFailure, match=r"scheduler is gone|does not answer"):
            run_releases([open_schedule(read_release(file))], executor)
    assert run(file).exit_code == 0
    assert pack_hashes(file) == pack_hashes(alone)
