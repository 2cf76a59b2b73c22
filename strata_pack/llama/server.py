"""Starts, watches and always ends one llama.cpp server, whichever runtime it is.

``LlamaServer.start`` returns only when the model is loaded and answers; otherwise it raises ``StartFailed`` with the
reason and the last lines of the server's log, and nothing is left running. The process cannot outlive us: see
``supervisor``.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Literal

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.llama.answers import ServerGone
from strata_pack.llama.client import LlamaClient
from strata_pack.llama.devices import compute_in_log
from strata_pack.llama.runtimes import Runtime, ServerSettings, pick_runtime

HOST = "127.0.0.1"
START_SECONDS = 60.0
STOP_SECONDS = 10.0
POLL = 0.02
TAIL_LINES = 8
TAIL_BYTES = 16 << 10
LOG_HEAD_BYTES = 1 << 20
PORT_TRIES = 3
SPIN_COUNT = "2000"
"""Rounds of libgomp's busy waiting (GOMP_SPINCOUNT) before a thread sleeps."""

StartProblem = Literal["port", "memory", "processor", "template", "model", "timeout", "died"]

_REASONS: tuple[tuple[StartProblem, re.Pattern[str], str, str | None], ...] = (
    (
        "port",
        re.compile(r"address already in use|couldn't bind|failed to bind|bind.*failed", re.I),
        "the port is taken",
        "choose another one, or none",
    ),
    (
        "memory",
        re.compile(
            r"out of memory|bad_alloc|failed to allocate|cannot allocate|unable to allocate|cudaMalloc failed"
            r"|ended by SIGKILL",
            re.I,
        ),
        "there is not enough memory for the model and its context",
        "ask for less context, fewer GPU layers, or a smaller quantization",
    ),
    (
        "processor",
        re.compile(r"ended by SIGILL"),
        "this llama.cpp was built for a processor with instructions that this one lacks",
        "take another build, or the embedded one",
    ),
    (
        "template",
        re.compile(r"chat.?template|jinja", re.I),
        "the server refuses the chat template",
        "check it with `strata-pack template lint`",
    ),
    (
        "model",
        re.compile(r"failed to load model|error loading model|invalid magic|failed to open", re.I),
        "the server cannot load the model",
        "look at the file with `strata-pack inspect`",
    ),
)
"""What the log of a dead server means: reason, what it looks like, sentence, remedy. The first match counts."""

_ERROR_LINE = re.compile(r"(?:^| )E |error|fail|exception|child:|supervisor:", re.I)


class StartFailed(EnvironmentFailure):
    """The server did not come up. ``reason`` is one of a few words; ``log_tail`` holds its last lines."""

    def __init__(self, reason: StartProblem, problem: str, log_tail: str, *, where: Path, remedy: str | None) -> None:
        shown = f"{problem}; its last words: {log_tail}" if log_tail else problem
        super().__init__(shown, where=where, remedy=remedy)
        self.reason = reason
        self.log_tail = log_tail


class LlamaServer(LlamaClient):
    """A llama.cpp server process and the client that talks to it. Use it as a context manager."""

    def __init__(
        self,
        url: str,
        settings: ServerSettings,
        runtime: Runtime,
        process: subprocess.Popen[bytes],
        log_path: Path,
        log_start: int,
    ) -> None:
        super().__init__(url)
        self.settings = settings
        self.runtime = runtime
        self.log_path = log_path
        self._log_start = log_start
        self._log_is_temporary = False
        self._process = process

    @classmethod
    def start(
        cls,
        model: Path,
        *,
        runtime: Runtime | None = None,
        template_file: Path | None = None,
        port: int | None = None,
        context: int = 4096,
        parallel: int = 1,
        shared: bool = False,
        gpu_layers: int | None = None,
        threads: int | None = None,
        prefill_assistant: bool = True,
        warmup: bool = True,
        projector: Path | None = None,
        drafts: bool = False,
        timeout_seconds: float = START_SECONDS,
        log_path: Path | None = None,
        extra: Sequence[str] = (),
    ) -> LlamaServer:
        """Start serving ``model`` on loopback and return when it answers.

        ``parallel`` is the number of slots, ``context`` the tokens of each, or of all together if it is ``shared``;
        ``port`` None takes a free one; ``gpu_layers`` None lets llama.cpp put all that fit on the GPU; ``projector``
        lets the model see, ``drafts`` guesses ahead with its draft head; ``extra`` are options for a ``llama-server``
        binary. Without ``log_path`` the log is a temporary file, which a clean stop removes and any other end leaves.
        Raises ``StartFailed``, ``BadInput`` for a missing file.
        """
        for file in (model, template_file, projector):
            if file is not None and not file.is_file():
                raise BadInput("no such file", where=file)
        chosen = runtime or pick_runtime()
        if port is not None and not _is_free(port):
            raise StartFailed("port", f"port {port} is taken", "", where=model, remedy="choose another one, or none")
        log = log_path or _temporary_log()
        for attempt in range(PORT_TRIES):
            number = port if port is not None else 0 if chosen.kind == "embedded" else _free_port()
            settings = ServerSettings(
                model=model.absolute(),
                host=HOST,
                port=number,
                context=context,
                parallel=parallel,
                shared=shared,
                template_file=template_file,
                gpu_layers=gpu_layers,
                threads=threads,
                prefill_assistant=prefill_assistant,
                warmup=warmup,
                projector=None if projector is None else projector.absolute(),
                drafts=drafts,
                extra=tuple(extra),
            )
            try:
                server = cls._launch(settings, chosen, log, timeout_seconds)
            except StartFailed as failure:
                # Another process may take our free port before the server binds it.
                if failure.reason != "port" or port is not None or attempt + 1 == PORT_TRIES:
                    raise
            else:
                server._log_is_temporary = log_path is None
                return server
        raise AssertionError("unreachable")

    @classmethod
    def _launch(cls, settings: ServerSettings, runtime: Runtime, log: Path, timeout_seconds: float) -> LlamaServer:
        folder = Path(tempfile.mkdtemp(prefix="strata-llama-"))
        ready = folder / "url"
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as sink:
                # The log may hold what servers before this one said; their last words are not ours.
                start = sink.tell()
                process = _spawn(runtime.command(settings, ready), sink)
            server = cls(f"http://{settings.host}:{settings.port}", settings, runtime, process, log, start)
            try:
                server._wait_until_ready(ready, timeout_seconds)
            except BaseException:
                server.stop()
                raise
            return server
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _wait_until_ready(self, ready: Path, timeout_seconds: float) -> None:
        end = time.monotonic() + timeout_seconds
        pause = POLL
        while self._process.poll() is None:
            if self.runtime.kind == "embedded":
                if ready.is_file():
                    self.url = ready.read_text(encoding="utf-8")
                    return
            elif self._answers(end):
                return
            if time.monotonic() >= end:
                raise StartFailed(
                    "timeout",
                    f"the server was not ready after {timeout_seconds:.0f} s",
                    self.log_tail(),
                    where=self.settings.model,
                    remedy="give it more time",
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25)
        raise self._post_mortem()

    def _answers(self, end: float) -> bool:
        """Whether the server is healthy, and it is ours: after a lost race for the port somebody else would answer."""
        with self.time_limit(max(end - time.monotonic(), POLL)):
            return self.health() and self.running

    def _post_mortem(self) -> StartFailed:
        errors, tail = "\n".join(self._error_lines()), self.log_tail()
        for reason, pattern, sentence, remedy in _REASONS:
            if pattern.search(errors):
                return StartFailed(reason, sentence, tail, where=self.settings.model, remedy=remedy)
        sentence = f"the server ended with status {self._process.returncode} before it was ready"
        return StartFailed("died", sentence, tail, where=self.settings.model, remedy=f"read {self.log_path}")

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the supervisor, the parent of the server."""
        return self._process.pid

    def _alive(self) -> bool:
        return self.running

    def _gone(self, path: str, error: Exception) -> ServerGone:
        """Say that the process died, if it did, rather than that a connection broke."""
        try:
            status = self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            return super()._gone(path, error)
        return ServerGone(
            f"the server died (status {status}); its last words: {self.log_tail()}", where=self.url + path
        )

    def compute(self) -> str:
        """Return in words what computes: the GPU and the layers on it, or the CPU, as the log of the start says."""
        with self.log_path.open("rb") as file:
            file.seek(self._log_start)
            return compute_in_log(file.read(LOG_HEAD_BYTES).decode("utf-8", "replace"))

    def log_tail(self, lines: int = TAIL_LINES) -> str:
        """Return the last lines of the log that tell of an error, or simply the last ones, joined with ``" | "``."""
        telling = self._error_lines() or [line.strip() for line in self.log_since(0).splitlines() if line.strip()]
        return " | ".join(telling[-lines:])

    def _error_lines(self) -> list[str]:
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
        self.close()
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

    def __enter__(self) -> LlamaServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _spawn(command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start ``command`` under its supervisor, in a session of its own so that Ctrl-C reaches only us."""
    # A thread that waits spins for a few microseconds only: libgomp's default (milliseconds) is 30 times slower where
    # cores are shared, not spinning at all 2.5 times slower where they are not.
    environment = dict(os.environ)
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    return subprocess.Popen(
        [sys.executable, "-m", "strata_pack.llama.supervisor", *command],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        start_new_session=True,
        env=environment,
    )


def _temporary_log() -> Path:
    descriptor, name = tempfile.mkstemp(prefix="strata-llama-", suffix=".log")
    os.close(descriptor)
    return Path(name)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
