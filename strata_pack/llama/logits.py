"""Computes a model's logits at every scored position of a text, with llama.cpp.

The model runs in a child process (``logits_child``), which sends the logits through a pipe, a few rows at a time. So
this process needs only a few MB for any vocabulary, and two models can be read side by side.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from strata_pack.errors import EnvironmentFailure
from strata_pack.llama.logits_child import ERRORS
from strata_pack.llama.process import SPIN_COUNT

Floats = npt.NDArray[np.float32]

ROWS = 16
"""Rows per block: 16 rows for a vocabulary of 150,000 are 10 MB."""


@dataclass(frozen=True)
class LogitsHeader:
    """``windows`` are the evaluated tokens; each position from ``first`` on predicts the next token."""

    n_vocab: int
    n_ctx_train: int
    windows: tuple[tuple[int, ...], ...]
    first: int

    @property
    def scored(self) -> list[int]:
        """The number of scored positions of each window."""
        return [len(window) - self.first - 1 for window in self.windows]

    @property
    def targets(self) -> list[int]:
        """The token that followed each scored position, in the order of the rows."""
        return [token for window in self.windows for token in window[self.first + 1 :]]


class LogitStream:
    """A running evaluation: read ``header`` first, then ``blocks``. ``open_logits`` creates it."""

    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes], model: Path) -> None:
        self._process, self._log, self._model = process, log, model
        self.header = self._read_header()

    def _read_header(self) -> LogitsHeader:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        try:
            value: dict[str, Any] = json.loads(line)
        except ValueError:
            raise self._dead() from None
        if "error" in value:
            raise ERRORS[value["kind"]](value["error"])
        windows = tuple(tuple(window) for window in value["windows"])
        return LogitsHeader(value["n_vocab"], value["n_ctx_train"], windows, value["first"])

    def blocks(self) -> Iterator[Floats]:
        """Yield the logits as arrays of shape (up to 16, ``n_vocab``); each block is overwritten by the next one.

        Raises ``EnvironmentFailure`` if the process dies.
        """
        assert self._process.stdout is not None
        left = len(self.header.targets)
        block = np.empty((min(ROWS, left), self.header.n_vocab), np.float32)
        while left:
            rows = block[: min(ROWS, left)]
            view, at = rows.data.cast("B"), 0
            while at < len(view):
                got = self._process.stdout.readinto(view[at:])  # type: ignore[attr-defined]
                if not got:
                    raise self._dead()
                at += got
            left -= len(rows)
            yield rows

    def _dead(self) -> EnvironmentFailure:
        return child_died(self._process.wait(), self._log, self._model)


def quiet_threads() -> dict[str, str]:
    """Return the environment for an evaluating process: its threads spin only briefly while they wait for each
    other."""
    return {"GOMP_SPINCOUNT": SPIN_COUNT, **os.environ}


def child_died(code: int, log: IO[bytes], model: Path) -> EnvironmentFailure:
    """Return the error for a child process that died while it evaluated ``model``, with its last log line."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - 2000))
    lines = log.read().decode("utf-8", "replace").strip().splitlines()
    how = f"signal {-code}" if code < 0 else f"status {code}"
    last = f": {lines[-1][:300]}" if lines else ""
    remedy = "check that the model fits into memory and that llama.cpp supports it"
    return EnvironmentFailure(f"llama.cpp ended early ({how}){last}", where=model, remedy=remedy)


@contextlib.contextmanager
def open_logits(
    model: Path,
    text: str,
    *,
    context: int = 512,
    limit: int | None = None,
    threads: int | None = None,
    parse_special: bool = False,
) -> Iterator[LogitStream]:
    """Evaluate ``text`` in windows of ``context`` tokens (at most ``limit`` windows) and yield the stream.

    The second half of each window is scored. ``parse_special``: special tokens spelled in the text are tokenized as
    special. Raises ``BadInput`` if llama.cpp does not load the model or the text is too short, ``LogitsUnavailable`` if
    the installed xllamacpp is not the supported build, ``EnvironmentFailure`` if the process dies.
    """
    settings = {
        "model": str(model),
        "text": text,
        "context": context,
        "limit": limit,
        "parse_special": parse_special,
        "threads": threads or os.cpu_count() or 1,
    }
    command = [sys.executable, "-m", "strata_pack.llama.logits_child"]
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=quiet_threads()
        ) as process,
    ):
        assert process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(settings).encode())
                process.stdin.close()
            yield LogitStream(process, log, model)
        finally:
            process.kill()
