"""Computes a model's logits at every scored position of a text, with llama.cpp.

The model runs in a child process (``logits_child``), which shares a few blocks of rows at a time. So this process
needs only some tens of MB for any vocabulary, and two models can be read side by side.
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

from strata_pack.errors import EnvironmentFailure
from strata_pack.llama.logits_child import ERRORS
from strata_pack.llama.process import SPIN_COUNT
from strata_pack.llama.products import ProductKernels
from strata_pack.llama.row_ring import Floats, RowRing, block_sizes, shared_file


@dataclass(frozen=True)
class LogitsHeader:
    """``windows`` are the evaluated tokens; each position from ``first`` on predicts the next token.

    ``kernels``: the library that multiplied weights, or ``ggml``.
    """

    n_vocab: int
    n_ctx_train: int
    windows: tuple[tuple[int, ...], ...]
    first: int
    kernels: str

    @property
    def scored(self) -> list[int]:
        """The number of scored positions of each window."""
        return [len(window) - self.first - 1 for window in self.windows]

    @property
    def blocks(self) -> list[int]:
        """The number of rows of each block."""
        return list(block_sizes(self.scored))

    @property
    def targets(self) -> list[int]:
        """The token that followed each scored position, in the order of the rows."""
        return [token for window in self.windows for token in window[self.first + 1 :]]


class LogitStream:
    """A running evaluation: read ``header`` first, then ``blocks``. ``open_logits`` creates it."""

    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes], model: Path, ring: int) -> None:
        """``ring``: the descriptor of the file in which the child puts the rows."""
        self._process, self._log, self._model, self._ring = process, log, model, ring
        self.header = self._read_header()

    def _read_header(self) -> LogitsHeader:
        value = self._read_line()
        windows = tuple(tuple(window) for window in value["windows"])
        return LogitsHeader(value["n_vocab"], value["n_ctx_train"], windows, value["first"], value["kernels"])

    def _read_line(self, start: bytes = b"") -> dict[str, Any]:
        """Return the object in the next line, whose ``start`` is read already; raise the child's error."""
        assert self._process.stdout is not None
        try:
            value: dict[str, Any] = json.loads(start + self._process.stdout.readline())
        except ValueError:
            raise self._dead() from None
        if "error" in value:
            raise ERRORS[value["kind"]](value["error"])
        return value

    def blocks(self) -> Iterator[Floats]:
        """Yield the logits as arrays of shape (up to 16, ``n_vocab``); a block is valid until the next is asked for.

        Raises ``EnvironmentFailure`` if the process dies.
        """
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        try:
            ring = RowRing(self._ring, self.header.n_vocab)
        except (ValueError, OSError):
            raise self._dead() from None
        for number, rows in enumerate(self.header.blocks):
            announced = self._process.stdout.read(1)
            if announced == b"{":
                self._read_line(announced)
            if announced != bytes([rows]):
                raise self._dead()
            yield ring.block(number, rows)
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(b"\0")
                self._process.stdin.flush()

    def _dead(self) -> EnvironmentFailure:
        # A process that runs on, after an unexpected answer, ends when its pipes do.
        close_pipes(self._process)
        return child_died(self._process.wait(), self._log, self._model)


def close_pipes(process: subprocess.Popen[bytes]) -> None:
    """Close this side of the process's pipes, whether or not it still reads what is in them."""
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(BrokenPipeError):
            if pipe is not None:
                pipe.close()


def quiet_threads() -> dict[str, str]:
    """Return the environment for an evaluating process: its threads spin only briefly while they wait for each
    other, and the reason of an abort is the last line of its log."""
    return {"GOMP_SPINCOUNT": SPIN_COUNT, "GGML_NO_BACKTRACE": "1", **os.environ}


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
    text_name: str,
    context: int = 512,
    limit: int | None = None,
    threads: int | None = None,
    parse_special: bool = False,
    turns: int | None = None,
    kernels: ProductKernels = "auto",
) -> Iterator[LogitStream]:
    """Evaluate ``text`` in windows of ``context`` tokens (at most ``limit`` windows) and yield the stream.

    The second half of each window is scored. ``parse_special``: special tokens spelled in the text are tokenized as
    special. ``text_name`` is for messages. Processes with the same file descriptor ``turns`` (from ``shared_file``)
    evaluate their windows in turn: otherwise their threads wait for each other's cores. ``kernels``: whether this
    project's kernels may multiply weights.

    Raises ``BadInput`` if llama.cpp does not load the model or the text is too short, ``LogitsUnavailable`` if the
    installed xllamacpp is not the supported build, ``EnvironmentFailure`` if the process dies.
    """
    settings = {
        "model": str(model),
        "text": text,
        "text_name": text_name,
        "context": context,
        "limit": limit,
        "parse_special": parse_special,
        "threads": threads or os.cpu_count() or 1,
        "turns": turns,
        "kernels": kernels,
    }
    command = [sys.executable, "-m", "strata_pack.llama.logits_child"]
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile() as log,
        shared_file() as ring,
        subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=log,
            env=quiet_threads(),
            pass_fds=(ring,) if turns is None else (ring, turns),
        ) as process,
    ):
        assert process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps({**settings, "ring": ring}).encode() + b"\n")
                process.stdin.flush()
            yield LogitStream(process, log, model, ring)
        finally:
            process.kill()
            close_pipes(process)
