"""A fetch that is killed at random moments: the next one fetches exactly the bytes that are missing."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from strata_pack.weights.hub.tree import STATE_FOLDER
from tests.hub_repos import Fault, etag_of
from tests.hub_server import HubServer
from tests.weights.hub.fixtures import BODY, REPO, WEIGHTS

EXIT = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}
KILLS = 2
PATIENCE = 120.0
"""Seconds that only a failure reaches."""


def start(hub: HubServer, dest: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "strata_pack", "fetch", REPO, "--out", str(dest), "--json"],
        env={**os.environ, "HF_ENDPOINT": hub.endpoint},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def arrived(dest: Path) -> int:
    """Return the bytes of the weights' partial body."""
    parts = (dest / STATE_FOLDER / "parts").glob(f"{etag_of(BODY)}-*")
    return max((path.stat().st_size for path in parts), default=0)


def wait_for_bytes(process: subprocess.Popen[str], dest: Path, more_than: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while arrived(dest) <= more_than:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("kind", EXIT, ids=lambda kind: kind.name)
def test_only_the_missing_bytes_travel_after(kind: signal.Signals, hub: HubServer, dest: Path) -> None:
    moments = random.Random(int(kind))
    hub.fail(WEIGHTS, *(Fault(rate=30_000) for _ in range(KILLS)))
    kept = [0]
    for _ in range(KILLS):
        process = start(hub, dest)
        wait_for_bytes(process, dest, kept[-1])
        time.sleep(moments.uniform(0, 0.2))
        process.send_signal(kind)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == EXIT[kind], (out, err)
        assert not (dest / WEIGHTS).exists()
        kept.append(arrived(dest))
    process = start(hub, dest)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    # Every request began at the exact byte that had arrived before, so no byte of the file came twice.
    hits = hub.body_hits(WEIGHTS)
    asked = [int(hit.range.removeprefix("bytes=").rstrip("-")) if hit.range else 0 for hit in hits]
    assert sorted(asked) == kept
    assert json.loads(out)["bytes_travelled"] == len(BODY) - kept[-1]
    assert (dest / WEIGHTS).read_bytes() == BODY


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM], ids=lambda kind: kind.name)
def test_slow_server_does_not_hold_up_the_end(kind: signal.Signals, hub: HubServer, dest: Path) -> None:
    hub.fail(WEIGHTS, Fault(rate=5_000, times=-1))
    process = start(hub, dest)
    wait_for_bytes(process, dest, 0)
    process.send_signal(kind)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == EXIT[kind]
    assert arrived(dest) < len(BODY)


def test_lock_of_a_killed_fetch_does_not_stay(hub: HubServer, dest: Path) -> None:
    hub.fail(WEIGHTS, Fault(rate=30_000))
    first = start(hub, dest)
    wait_for_bytes(first, dest, 0)
    second = start(hub, dest)
    _, err = second.communicate(timeout=PATIENCE)
    assert second.returncode == 3
    assert f"process {first.pid} is fetching into this folder" in err
    first.kill()
    first.communicate()
    third = start(hub, dest)
    third.communicate(timeout=PATIENCE)
    assert third.returncode == 0
