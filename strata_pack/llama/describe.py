"""Asks a runtime what it is: version, build, devices."""

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
    """``version`` and ``build`` in the runtime's own words; ``devices`` that it uses in addition to the CPU."""

    version: str
    build: str
    devices: tuple[Device, ...]


def describe_runtime(runtime: Runtime) -> Description:
    """Ask ``runtime`` what it is; ``EnvironmentFailure`` if it cannot even say that."""
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
        last = (said.strip().splitlines() or ["it says nothing"])[-1]
        raise EnvironmentFailure(f"is no llama-server that works ({last})", where=runtime.path)
    return Description(version.group(1), built.group(1) if built else "unknown", runtime_devices(runtime))
