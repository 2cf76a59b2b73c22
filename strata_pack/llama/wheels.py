"""Fetches and unpacks wheels of the package index with pip, each pinned by its hash.

pip verifies the hash of every file before it unpacks it; installing a wheel runs no code.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from strata_pack.errors import EnvironmentFailure

FETCH_SECONDS = 1800.0

_WARNINGS = (
    (re.compile(r"connection broken by .*\[Errno -?\d+\] ([\w ]+)"), "no connection: {}"),
    (re.compile(r"connection broken by '(\w+)"), "no connection: {}"),
    (re.compile(r"located at (\S+) is not a trusted or secure host"), "{} is refused without https"),
)
"""pip's warnings that precede "no such package", and the actual reason."""


@dataclass(frozen=True)
class PinnedWheel:
    """One release of a package; ``sha256`` has the hash of the wheel for each supported platform."""

    package: str
    version: str
    sha256: tuple[str, ...]

    @property
    def requirement(self) -> str:
        """The line of a requirements file."""
        return " ".join([f"{self.package}=={self.version}", *(f"--hash=sha256:{one}" for one in self.sha256)])


def run_pip(arguments: Sequence[str], where: str, variables: Mapping[str, str] | None = None) -> None:
    """Run pip with ``variables`` in its environment; ``EnvironmentFailure`` with pip's message if it fails."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS,
            check=False,
            env={**os.environ, **(variables or {})},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFailure(f"pip could not fetch it ({error})", where=where) from error
    if done.returncode == 0:
        return
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")] or done.stderr.splitlines()
    last = (lines or ["no message"])[-1].removeprefix("ERROR:").strip()
    for warning, words in _WARNINGS:
        found = warning.search(done.stderr)
        if found is not None:
            last = words.format(*found.groups())
            break
    remedy = f"install it: {sys.executable} -m ensurepip" if "No module named pip" in last else "look at the index"
    raise EnvironmentFailure(f"pip could not fetch it ({last})", where=where, remedy=remedy)


def unpack_wheels(wheels: Sequence[PinnedWheel], folder: Path) -> Path:
    """Unpack ``wheels`` into ``folder`` atomically and return it; an existing folder is kept.

    Raises ``EnvironmentFailure`` if one cannot be fetched, or is not the pinned one.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".wheels-", dir=folder.parent) as fresh:
        wanted = Path(fresh, "requirements.txt")
        wanted.write_text("".join(f"{wheel.requirement}\n" for wheel in wheels), encoding="ascii")
        options = [
            "--no-deps",
            "--require-hashes",
            "--only-binary",
            ":all:",
            "--no-compile",
            "--no-warn-script-location",
        ]
        names = ", ".join(f"{wheel.package} {wheel.version}" for wheel in wheels)
        run_pip(["install", *options, "--target", f"{fresh}/unpacked", "--requirement", str(wanted)], names)
        try:
            os.replace(f"{fresh}/unpacked", folder)
        except OSError:
            # Another process may have been faster; its folder is complete.
            if not folder.is_dir():
                raise
    return folder
