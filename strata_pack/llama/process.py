"""The process of a llama.cpp server of ours: started under its supervisor, read by its log, and always ended."""

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
"""How long a connection may break before the process that caused it is over."""

TAIL_LINES = 8
TAIL_BYTES = 16 << 10
LOG_HEAD_BYTES = 1 << 20
SPIN_COUNT = "2000"
"""Rounds of libgomp's busy waiting (GOMP_SPINCOUNT) before a thread sleeps."""

_ERROR_LINE = re.compile(r"(?:^| )E |error|fail|exception|child:|supervisor:", re.I)


class ServerProcess:
    """A running supervisor with its server.

    ``log_path`` is the log, which is appended to. A clean stop removes it if it ``is_temporary``; any other end leaves
    it.
    """

    def __init__(self, command: list[str], log_path: Path, *, is_temporary: bool = False) -> None:
        self._log_is_temporary = is_temporary
        self.log_path = log_path
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as sink:
            # The log may hold what servers before this one said; their last words are not ours.
            self._log_start = sink.tell()
            # In a session of its own, so that Ctrl-C reaches only us.
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
        """Whether the process is there."""
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
        """Return how the process ended and its last words; ``None`` while it runs."""
        try:
            status = self._process.wait(DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        return f"the server died (status {status}); its last words: {self.log_tail()}"

    def compute(self) -> str:
        """Return in words what computes: the GPU and the layers on it, or the CPU, as the log of the start says."""
        with self.log_path.open("rb") as file:
            file.seek(self._log_start)
            return compute_in_log(file.read(LOG_HEAD_BYTES).decode("utf-8", "replace"))

    def log_tail(self, lines: int = TAIL_LINES) -> str:
        """Return the last lines of the log that tell of an error, or simply the last ones, joined with ``" | "``."""
        telling = self.error_lines() or [line.strip() for line in self.log_since(0).splitlines() if line.strip()]
        return " | ".join(telling[-lines:])

    def error_lines(self) -> list[str]:
        """Return the lines at the end of the log that tell of an error."""
        return [line.strip() for line in self.log_since(0).splitlines() if _ERROR_LINE.search(line)]

    def log_position(self) -> int:
        """Return the length of the log in bytes; give it to ``log_since`` later."""
        return self.log_path.stat().st_size if self.log_path.exists() else 0

    def log_since(self, position: int, limit: int = TAIL_BYTES) -> str:
        """Return what this server has logged since ``position``, at most its last ``limit`` bytes."""
        with self.log_path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(position, self._log_start, end - limit))
            return file.read(limit).decode("utf-8", "replace")

    def stop(self) -> None:
        """End the process and wait for it; harmless when it has ended already."""
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
    # A thread that waits spins for a few microseconds only: libgomp's default (milliseconds) is 30 times slower where
    # cores are shared, not spinning at all 2.5 times slower where they are not.
    environment = dict(os.environ)
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    return environment


def temporary_log() -> Path:
    """Return a new empty file for a log."""
    descriptor, name = tempfile.mkstemp(prefix="strata-llama-", suffix=".log")
    os.close(descriptor)
    return Path(name)
