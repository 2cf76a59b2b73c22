"""Looking at processes, without help from the code under test."""

from __future__ import annotations

import os
import time
from pathlib import Path


def children(pid: int) -> list[int]:
    """Return the process ids whose parent is ``pid``."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(entry.parent.name))
    return found


def tree(pid: int) -> list[int]:
    """Return ``pid`` and everything below it."""
    return [pid, *(below for child in children(pid) for below in tree(child))]


def alive(pid: int) -> bool:
    """Return whether ``pid`` runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int], seconds: float = 15.0) -> bool:
    """Wait until none of ``pids`` runs; return whether that came true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def wait_for(path: Path, seconds: float = 60.0) -> str:
    """Wait until ``path`` has content and return it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if path.is_file() and (text := path.read_text()):
            return text
        time.sleep(0.02)
    raise AssertionError(f"{path} did not appear")


def server_pid(supervisor: int) -> int:
    """Return the id of the server process under a supervisor."""
    (child,) = children(supervisor)
    assert child != os.getpid()
    return child
