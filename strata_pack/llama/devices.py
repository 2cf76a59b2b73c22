"""What computes: the devices of this machine, and what the log of a server says it uses."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass

_DEVICE = re.compile(r"using device (\w+) \((.+?)\)(?: \([\w:.]+\))? - (\d+) MiB free")
_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
QUERY_TIMEOUT = 10.0


@dataclass(frozen=True)
class Device:
    """One GPU; ``memory_total`` and ``memory_free`` in bytes."""

    name: str
    memory_total: int
    memory_free: int
    compute_capability: str = ""


def compute_in_log(log: str) -> str:
    """Return in words what a llama.cpp server computes with, from the log of its start."""
    devices = [f"{name} ({what})" for name, what, _ in _DEVICE.findall(log)]
    layers = _OFFLOADED.search(log)
    if not devices:
        return "CPU"
    on_gpu = f", {layers.group(1)} of {layers.group(2)} layers" if layers else ""
    return f"{', '.join(dict.fromkeys(devices))}{on_gpu}"


def nvidia_devices() -> list[Device]:
    """Return the NVIDIA GPUs that ``nvidia-smi`` shows; none if it is missing or fails."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    fields = "name,memory.total,memory.free,compute_cap"
    try:
        done = subprocess.run(
            [tool, f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=QUERY_TIMEOUT,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    found = []
    for line in done.stdout.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 4 and cells[1].isdigit() and cells[2].isdigit():
            found.append(Device(cells[0], int(cells[1]) << 20, int(cells[2]) << 20, cells[3]))
    return found
