"""A release killed at any moment goes on: the end is the same to the byte, and nothing finished is done twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.pack.faults import arm, forked
from tests.release.tiny_release import GATES, HEAD, MEASURED, PACKS, pack_hashes, run, run_again, write_release

FEW, MANY = 6, 100
STEPS = 120
"""Changes to the disk within which a run is killed; a whole one makes about as many."""


def killed_run(file: Path, deadly: int) -> bool:
    """Run the release in a process that dies before its ``deadly``-th change to the disk; return whether it died."""

    def work() -> None:
        arm(deadly)
        assert run(file).exit_code == 0

    status = forked(work)
    assert status == 0 or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)
    return status != 0


def done_twice(file: Path) -> list[tuple[str, str]]:
    """Return the nodes whose result was made twice from the same inputs."""
    lines = (file.parent / "packs/.release/log.jsonl").read_text().splitlines()
    counts = Counter((entry["node"], entry["key"]) for entry in map(json.loads, lines))
    return [made for made, count in counts.items() if count > 1]


def kill_until(deaths: int, folder: Path, text: str, seed: int) -> None:
    """Kill runs at random until ``deaths`` have died, starting a new release whenever one is whole; check each end."""
    reference = write_release(folder / "reference", text)
    run(reference)
    wanted, dice, number = pack_hashes(reference), random.Random(seed), 0
    while deaths > 0:
        number += 1
        file = write_release(folder / str(number), text)
        while deaths > 0 and killed_run(file, dice.randint(1, STEPS)):
            deaths -= 1
        run_again(file)
        assert pack_hashes(file) == wanted
        assert done_twice(file) == []
        assert not list((file.parent / "packs").glob("*.partial"))
        assert not list(file.parent.rglob("*.tmp"))


def test_a_release_killed_a_few_times_ends_the_same(tmp_path: Path) -> None:
    kill_until(FEW, tmp_path, HEAD + PACKS, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_release_killed_100_times_ends_the_same(tmp_path: Path) -> None:
    kill_until(MANY, tmp_path, HEAD + PACKS, seed=2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_command_killed_at_random_times_ends_the_same(tmp_path: Path) -> None:
    """The processes of llama.cpp that a killed command has started are at work while the next command is."""
    text = HEAD + MEASURED + PACKS + GATES
    reference = write_release(tmp_path / "reference", text)
    run(reference)
    file = write_release(tmp_path / "killed", text)
    dice = random.Random(3)
    command = [sys.executable, "-m", "strata_pack", "release", "run", str(file), "--quiet"]
    for _ in range(12):
        with subprocess.Popen(command) as process:
            time.sleep(dice.uniform(0.5, 9.0))
            process.kill()
    assert subprocess.run(command, check=False).returncode == 0
    assert pack_hashes(file) == pack_hashes(reference)
    assert done_twice(file) == []
