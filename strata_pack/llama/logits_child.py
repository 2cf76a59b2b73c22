"""Evaluates a text in a child process: ``python -m strata_pack.llama.logits_child`` with settings as a JSON line on
stdin.

On stdout: one JSON line (``n_vocab``, ``windows``: the tokens of each, ``first``, ``kernels``), then for each block of
scored rows one byte, their number, once they are in the ring (``row_ring``). A byte on stdin releases the oldest block
in use. At any time, one JSON line with ``error`` ends it instead. A crash of native code only ends this process.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from strata_pack.errors import BadInput, EnvironmentFailure, StrataError
from strata_pack.llama.kernels import Missing
from strata_pack.llama.logits_native import LogitsModel, LogitsUnavailable
from strata_pack.llama.products import keeps_layouts, register_products
from strata_pack.llama.row_ring import RowRing, block_sizes
from strata_pack.llama.supervisor import die_with_parent

ERRORS: dict[str, type[StrataError]] = {
    "input": BadInput,
    "unavailable": LogitsUnavailable,
    "environment": EnvironmentFailure,
}
"""The name of each exception class on the pipe."""
MIN_TOKENS = 32
"""Minimum number of tokens of a text; a shorter one is not meaningful."""


def error_line(error: StrataError) -> bytes:
    """Return the line that reports ``error`` to the parent process."""
    kind = next((name for name, type in ERRORS.items() if isinstance(error, type)), "environment")
    return json.dumps({"error": str(error), "kind": kind}).encode() + b"\n"


def too_short(tokens: int) -> str:
    """Return the problem of a text of so few tokens."""
    return f"the text has {tokens} tokens; {MIN_TOKENS} are the least"


def cut_windows(tokens: list[int], context: int, limit: int | None, bos: int | None) -> list[list[int]]:
    """Return the windows of ``context`` tokens, one after the other, each beginning with ``bos`` if there is one.

    The rest at the end is dropped. Like this, and by scoring the second half of each window, ``llama-perplexity``
    works, so its figures are comparable.
    """
    windows = [tokens[at : at + context] for at in range(0, len(tokens) - context + 1, context)][:limit]
    return windows if bos is None else [[bos, *window[1:]] for window in windows]


def evaluate(settings: dict[str, Any], released: IO[bytes], out: IO[bytes]) -> None:
    """Write the header to ``out`` and the rows to the ring; returns early if ``released`` ends, as the parent has."""
    path, text = Path(settings["model"]), settings["text"]
    # A context longer than any text would only take memory; a token has a byte, and some models begin with a space.
    most = min(settings["context"], len(text.encode()) + MIN_TOKENS)
    kernels = Missing("not wanted") if settings["kernels"] == "ggml" else register_products()
    ggml = isinstance(kernels, Missing)
    with LogitsModel(path, context=most, threads=settings["threads"], repack=ggml or keeps_layouts(path)) as model:
        tokens = model.tokenize(text, parse_special=settings["parse_special"])
        if len(tokens) < MIN_TOKENS:
            raise BadInput(too_short(len(tokens)), where=settings["text_name"])
        context = min(most, len(tokens))
        windows = cut_windows(tokens, context, settings["limit"], model.bos)
        first, end = context // 2, context - 1
        ring = _ring(settings["ring"], model.n_vocab)
        header = {"n_vocab": model.n_vocab, "windows": windows, "first": first, "n_ctx_train": model.n_ctx_train}
        header["kernels"] = "ggml" if ggml else kernels
        out.write(json.dumps(header).encode() + b"\n")
        number = 0
        for window in windows:
            with _turn(settings["turns"]):
                model.evaluate(window, first, end)
            position = first
            for rows in block_sizes([end - first]):
                if number >= ring.slots and not released.read(1):
                    return
                for row in ring.block(number, rows):
                    row[:] = model.row(position)
                    position += 1
                out.write(bytes([rows]))
                number += 1


@contextmanager
def _turn(descriptor: int | None) -> Iterator[None]:
    """Evaluate while no other process that shares the file does; the end of a process ends its turn too."""
    if descriptor is None:
        yield
        return
    fcntl.lockf(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.lockf(descriptor, fcntl.LOCK_UN)


def _ring(descriptor: int, n_vocab: int) -> RowRing:
    try:
        return RowRing.create(descriptor, n_vocab)
    except OSError as error:
        problem = f"there is no room to share the logits of {n_vocab} tokens ({os.strerror(error.errno or 0)})"
        raise EnvironmentFailure(problem, remedy="free some memory") from error


def main() -> None:
    """Evaluate with the settings on stdin; output of native code to stdout is redirected to stderr."""
    die_with_parent()
    with os.fdopen(os.dup(1), "wb", buffering=0) as out:
        os.dup2(2, 1)
        try:
            evaluate(json.loads(sys.stdin.buffer.readline()), sys.stdin.buffer, out)
        except StrataError as error:
            out.write(error_line(error))


if __name__ == "__main__":
    main()
