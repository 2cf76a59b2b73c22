"""Determines version, build and devices of a runtime."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass

from strata_pack.errors import EnvironmentFailure
from strata_pack.llama.devices import Device
from strata_pack.llama.runtimes import Runtime, runtime_devices

TIMEOUT_SECONDS = 30.0
_VERSION = re.compile(r"^version: (.+)$", re.MULTILINE)
_BUILT = re.compile(r"^built with (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Description:
    """``version`` and ``build`` as the runtime reports them; ``devices`` that it uses in addition to the CPU."""

    version: str
    build: str
    devices: tuple[Device, ...]


def describe_runtime(runtime: Runtime) -> Description:
    """Return the description of ``runtime``; ``EnvironmentFailure`` if it cannot be run."""
    if runtime.path is None:
        return Description(str(runtime.package_version), "prebuilt wheel", runtime_devices(runtime))
    try:
        done = subprocess.run(
            [str(runtime.path), "--version"], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFailure(f"cannot be run ({error})", where=runtime.path) from error
    said = done.stdout + done.stderr
    version, built = _VERSION.search(said), _BUILT.search(said)
    if done.returncode != 0 or version is None:
        last = (said.strip().splitlines() or ["no output"])[-1]
        raise EnvironmentFailure(f"is not a working llama-server ({last})", where=runtime.path)
    return Description(version.group(1), built.group(1) if built else "unknown", runtime_devices(runtime))
