"""Lists the compute devices of this machine, and reads a server's devices from its log."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

_DEVICE = re.compile(r"using device (\w+) \((.+?)\)(?: \([\w:.]+\))? - (\d+) MiB free")
_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
QUERY_SECONDS = 10.0


@dataclass(frozen=True)
class Device:
    """One compute device of llama.cpp; ``memory_total`` and ``memory_free`` in bytes."""

    name: str
    description: str
    memory_total: int
    memory_free: int


def compute_in_log(log: str) -> str:
    """Return a description of the devices of a llama.cpp server, from the log of its start."""
    devices = [f"{name} ({what})" for name, what, _ in _DEVICE.findall(log)]
    layers = _OFFLOADED.search(log)
    if not devices:
        return "CPU"
    on_gpu = f", {layers.group(1)} of {layers.group(2)} layers" if layers else ""
    return f"{', '.join(dict.fromkeys(devices))}{on_gpu}"


def _answer(command: Sequence[str]) -> str:
    """Return the output of ``command``, ``""`` if it cannot be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


@cache
def nvidia_devices() -> tuple[Device, ...]:
    """Return the NVIDIA GPUs that ``nvidia-smi`` lists; none if it is missing or fails."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    fields = "index,name,memory.total,memory.free"
    rows = _answer([tool, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]).splitlines()
    cells = [[cell.strip() for cell in row.split(",")] for row in rows]
    return tuple(
        Device(f"GPU {row[0]}", row[1], int(row[2]) << 20, int(row[3]) << 20)
        for row in cells
        if len(row) == 4 and row[2].isdigit() and row[3].isdigit()
    )


def child_command(python: Path | None, argument: str) -> list[str]:
    """Return the command of the embedded library's process; ``python`` is the interpreter of another environment."""
    if python is None:
        return [sys.executable, "-m", "strata_pack.llama.child", argument]
    # -I: neither this installation's packages nor PYTHONPATH may shadow that environment's packages.
    return [str(python), "-I", str(Path(__file__).with_name("child.py")), argument]


@cache
def embedded_devices(python: Path | None = None) -> tuple[Device, ...]:
    """Return the devices of the embedded library, which runs in a separate process for this."""
    text = _answer(child_command(python, "about"))
    return tuple(Device(**entry) for entry in json.loads(text)["devices"]) if text else ()


SAMPLES = 5
SAMPLE_SECONDS = 0.02
_RUNNING = re.compile(r"^procs_running (\d+)$", re.MULTILINE)


def free_cores() -> int | None:
    """Return the number of this process's cores that are idle now, at least 1; None if all are idle, or unknown.

    Threads that compute one layer together wait for the slowest one, so more threads than idle cores slow the work down
    several times. If all cores are idle, llama.cpp's own default is best.
    """
    others = []
    for sample in range(SAMPLES):
        if sample:
            time.sleep(SAMPLE_SECONDS)
        try:
            running = _RUNNING.search(Path("/proc/stat").read_text(encoding="ascii"))
        except OSError:
            return None
        if running is None:
            return None
        others.append(int(running.group(1)) - 1)
    busy, cpus = int(median(others)), os.sched_getaffinity(0)
    return None if busy < 1 else max(1, min(_physical_cores(cpus), len(cpus) - busy))


def _physical_cores(cpus: Iterable[int]) -> int:
    """Return the number of physical cores of the logical ``cpus``; llama.cpp starts one thread per physical core."""
    found = set()
    for number in cpus:
        siblings = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        found.add(siblings.read_text(encoding="ascii") if siblings.is_file() else str(number))
    return len(found)


_LISTED = re.compile(r"^\s+(\w+): (.+) \((\d+) MiB, (\d+) MiB free\)$", re.MULTILINE)


@cache
def binary_devices(path: Path) -> tuple[Device, ...]:
    """Return the GPUs that a ``llama-server`` binary lists (``--list-devices``); none for a CPU build."""
    found = _LISTED.findall(_answer([str(path), "--list-devices"]))
    return tuple(Device(name, what, int(total) << 20, int(free) << 20) for name, what, total, free in found)
