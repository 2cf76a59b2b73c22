"""Manages the process of a llama.cpp server: starts it under its supervisor, reads its log, always ends it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from strata_pack.llama.devices import compute_in_log

STOP_SECONDS = 10.0
DEATH_SECONDS = 0.5
"""Seconds by which a broken connection may precede the end of the process that caused it."""

TAIL_LINES = 8
TAIL_BYTES = 16 << 10
LOG_HEAD_BYTES = 1 << 20
SPIN_COUNT = "2000"
"""Rounds of libgomp's busy waiting (GOMP_SPINCOUNT) before a thread sleeps."""

_ERROR_LINE = re.compile(r"(?:^| )E |error|fail|exception|child:|supervisor:", re.I)


class ServerProcess:
    """A running supervisor with its server.

    The log is appended to ``log_path``. If it ``is_temporary``, a clean stop removes it; after any other end it is
    kept.
    """

    def __init__(self, command: list[str], log_path: Path, *, is_temporary: bool = False) -> None:
        self._log_is_temporary = is_temporary
        self.log_path = log_path
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as sink:
            # The log may contain lines of earlier servers, which must not be taken for this one's.
            self._log_start = sink.tell()
            # In a new session, so that Ctrl-C reaches only this process.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "strata_pack.llama.supervisor", *command],
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
                env=_environment(),
            )

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the supervisor, the parent of the server."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status, ``None`` while it runs."""
        return self._process.poll()

    def death(self) -> str | None:
        """Return how the process ended, with its last error lines; ``None`` while it runs."""
        try:
            status = self._process.wait(DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        return f"the server died (status {status}); its last words: {self.log_tail()}"

    def compute(self) -> str:
        """Return a description of the compute device from the log of the start: the GPU and its layers, or the CPU."""
        with self.log_path.open("rb") as file:
            file.seek(self._log_start)
            return compute_in_log(file.read(LOG_HEAD_BYTES).decode("utf-8", "replace"))

    def log_tail(self, lines: int = TAIL_LINES) -> str:
        """Return the last error lines of the log, or else its last lines, joined with ``" | "``."""
        telling = self.error_lines() or [line.strip() for line in self.log_since(0).splitlines() if line.strip()]
        return " | ".join(telling[-lines:])

    def error_lines(self) -> list[str]:
        """Return the error lines at the end of the log."""
        return [line.strip() for line in self.log_since(0).splitlines() if _ERROR_LINE.search(line)]

    def log_position(self) -> int:
        """Return the length of the log in bytes, for a later ``log_since``."""
        return self.log_path.stat().st_size if self.log_path.exists() else 0

    def log_since(self, position: int, limit: int = TAIL_BYTES) -> str:
        """Return this server's log since ``position``, at most its last ``limit`` bytes."""
        with self.log_path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(position, self._log_start, end - limit))
            return file.read(limit).decode("utf-8", "replace")

    def stop(self) -> None:
        """End the process and wait for it; does nothing if it has already ended."""
        clean = self.running
        stdin = self._process.stdin
        if stdin is not None:
            stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the server dies with its supervisor
            self._process.wait()
        if clean and self._log_is_temporary:
            self.log_path.unlink(missing_ok=True)


def _environment() -> dict[str, str]:
    # A waiting thread spins only for a few microseconds: libgomp's default (milliseconds) is 30 times slower on shared
    # cores, and no spinning is 2.5 times slower on free cores.
    environment = dict(os.environ)
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    return environment


def temporary_log() -> Path:
    """Return a new empty file for a log."""
    descriptor, name = tempfile.mkstemp(prefix="strata-llama-", suffix=".log")
    os.close(descriptor)
    return Path(name)
