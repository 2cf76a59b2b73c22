"""Starts, monitors and always ends one llama.cpp server, of any runtime.

``LlamaServer.start`` returns when the model is loaded and answers; otherwise it raises ``StartFailed`` with the reason
and the last lines of the server's log, and no process is left. The server cannot outlive this process: see
``supervisor``.
"""

from __future__ import annotations

import re
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.llama.client import LlamaClient
from strata_pack.llama.process import ServerProcess, temporary_log
from strata_pack.llama.runtimes import Runtime, ServerSettings, pick_runtime

HOST = "127.0.0.1"
START_SECONDS = 60.0
POLL_SECONDS = 0.02
PORT_TRIES = 3

StartProblem = Literal["port", "memory", "processor", "template", "model", "timeout", "died", "ended"]

_REASONS: tuple[tuple[StartProblem, re.Pattern[str], str, str | None], ...] = (
    (
        "port",
        re.compile(r"address already in use|couldn't bind|failed to bind|bind.*failed", re.I),
        "the port is in use",
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
        "use a smaller context, fewer GPU layers, or a smaller quantization",
    ),
    (
        "processor",
        re.compile(r"ended by SIGILL"),
        "this llama.cpp was built for a processor with instructions that this one lacks",
        "use another build, or the embedded one",
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
        "check the file with `strata-pack inspect`",
    ),
)
"""Causes of a server's death by its log: reason, pattern, sentence, remedy. The first match is used."""


class StartFailed(EnvironmentFailure):
    """The server did not start. ``reason`` is one of a few words; ``log_tail`` has the last lines of its log."""

    def __init__(self, reason: StartProblem, problem: str, log_tail: str, *, where: Path, remedy: str | None) -> None:
        shown = f"{problem}; the end of its log: {log_tail}" if log_tail else problem
        super().__init__(shown, where=where, remedy=remedy)
        self.problem = problem
        self.reason = reason
        self.log_tail = log_tail


Spawn = Callable[[list[str]], ServerProcess]


class LlamaServer:
    """A llama.cpp server started by this process: its ``process`` and a ``client`` for it. Use it as a context
    manager."""

    def __init__(
        self, client: LlamaClient, settings: ServerSettings, runtime: Runtime, process: ServerProcess
    ) -> None:  # fmt: skip
        self.client = client
        self.settings = settings
        self.runtime = runtime
        self.process = process

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
        alias: str | None = None,
        timeout_seconds: float = START_SECONDS,
        log_path: Path | None = None,
        extra: Sequence[str] = (),
        end: threading.Event | None = None,
    ) -> LlamaServer:
        """Start a server with ``model`` on loopback and return when it answers.

        ``parallel`` is the number of slots, ``context`` the tokens of each, or of all together if ``shared``; ``port``
        None takes a free one; ``gpu_layers`` None lets llama.cpp put all that fit on the GPU; ``projector`` is the file
        of a vision projector, ``drafts`` enables speculative decoding with the draft head; ``alias`` is the model's
        name in replies; ``extra`` are arguments for a ``llama-server`` binary; setting ``end`` aborts the start.
        Without ``log_path`` the log is a temporary file, which only a clean stop removes. Raises ``StartFailed``,
        ``BadInput`` for a missing file.
        """
        for file in (model, template_file, projector):
            if file is not None and not file.is_file():
                raise BadInput("no such file", where=file)
        chosen = runtime or pick_runtime()
        if port is not None and not _is_free(port):
            raise StartFailed("port", f"port {port} is in use", "", where=model, remedy="choose another one, or none")
        log = log_path or temporary_log()
        spawn = partial(ServerProcess, log_path=log, is_temporary=log_path is None)
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
                alias=alias,
                extra=tuple(extra),
            )
            try:
                return cls._launch(settings, chosen, spawn, timeout_seconds, end or threading.Event())
            except StartFailed as failure:
                # Another process may take the free port before the server binds it.
                if failure.reason != "port" or port is not None or attempt + 1 == PORT_TRIES:
                    raise
        raise AssertionError("unreachable")

    @classmethod
    def _launch(
        cls, settings: ServerSettings, runtime: Runtime, spawn: Spawn, timeout_seconds: float, end: threading.Event
    ) -> LlamaServer:
        folder = Path(tempfile.mkdtemp(prefix="strata-llama-"))
        ready = folder / "url"
        try:
            process = spawn(runtime.command(settings, ready))
            client = LlamaClient(f"http://{settings.host}:{settings.port}", process=process)
            server = cls(client, settings, runtime, process)
            try:
                server._wait_until_ready(ready, time.monotonic() + timeout_seconds, end)
            except BaseException:
                server.stop()
                raise
            return server
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _wait_until_ready(self, ready: Path, until: float, end: threading.Event) -> None:
        began = time.monotonic()
        pause_seconds = POLL_SECONDS
        while self.running:
            if self.runtime.kind == "embedded":
                if ready.is_file():
                    self.client.url = ready.read_text(encoding="utf-8")
                    return
            elif self._answers(until):
                return
            if end.is_set():
                raise StartFailed("ended", "the start was aborted", "", where=self.settings.model, remedy=None)
            if time.monotonic() >= until:
                raise StartFailed(
                    "timeout",
                    f"the server was not ready after {until - began:.0f} s",
                    self.process.log_tail(),
                    where=self.settings.model,
                    remedy="give it more time",
                )
            end.wait(pause_seconds)
            pause_seconds = min(pause_seconds * 1.5, 0.25)
        raise self._post_mortem()

    def _answers(self, until: float) -> bool:
        """Return whether our server is healthy: after a lost race for the port, another process would answer."""
        with self.client.time_limit(max(until - time.monotonic(), POLL_SECONDS)):
            return self.client.health() and self.running

    def _post_mortem(self) -> StartFailed:
        errors, tail = "\n".join(self.process.error_lines()), self.process.log_tail()
        for reason, pattern, sentence, remedy in _REASONS:
            if pattern.search(errors):
                return StartFailed(reason, sentence, tail, where=self.settings.model, remedy=remedy)
        sentence = f"the server ended with status {self.process.status} before it was ready"
        return StartFailed("died", sentence, tail, where=self.settings.model, remedy=f"read {self.process.log_path}")

    @property
    def url(self) -> str:
        """The URL at which it listens."""
        return self.client.url

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self.process.running

    def stop(self) -> None:
        """End the process and wait for it; does nothing if it has already ended."""
        self.client.close()
        self.process.stop()

    def __enter__(self) -> LlamaServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


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
