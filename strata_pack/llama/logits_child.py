"""Evaluates a text in a child process: ``python -m strata_pack.llama.logits_child`` with settings as JSON on stdin.

On stdout: one JSON line (``n_vocab``, ``windows``: the tokens of each, ``first``), then the logits of every scored
position, window after window, as raw float32 rows of ``n_vocab``. Or one JSON line with ``error``. A crash of native
code only ends this process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import IO, Any

from strata_pack.errors import BadInput, EnvironmentFailure, StrataError
from strata_pack.llama.logits_native import LogitsModel, LogitsUnavailable
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


def cut_windows(tokens: list[int], context: int, limit: int | None, bos: int | None) -> list[list[int]]:
    """Return the windows of ``context`` tokens, one after the other, each beginning with ``bos`` if there is one.

    The rest at the end is dropped. Like this, and by scoring the second half of each window, ``llama-perplexity``
    works, so its figures are comparable.
    """
    windows = [tokens[at : at + context] for at in range(0, len(tokens) - context + 1, context)][:limit]
    return windows if bos is None else [[bos, *window[1:]] for window in windows]


def evaluate(settings: dict[str, Any], out: IO[bytes]) -> None:
    """Write the header and the rows to ``out``."""
    path = Path(settings["model"])
    with LogitsModel(path, context=settings["context"], threads=settings["threads"]) as model:
        tokens = model.tokenize(settings["text"], parse_special=settings["parse_special"])
        if len(tokens) < MIN_TOKENS:
            raise BadInput(f"the text has {len(tokens)} tokens; {MIN_TOKENS} are the least")
        context = min(settings["context"], len(tokens))
        windows = cut_windows(tokens, context, settings["limit"], model.bos)
        first = context // 2
        header = {"n_vocab": model.n_vocab, "windows": windows, "first": first, "n_ctx_train": model.n_ctx_train}
        out.write(json.dumps(header).encode() + b"\n")
        for window in windows:
            out.writelines(row.data for row in model.rows(window, first, context - 1))
            out.flush()


def main() -> None:
    """Evaluate with the settings on stdin; output of native code to stdout is redirected to stderr."""
    die_with_parent()
    with os.fdopen(os.dup(1), "wb", buffering=0) as out:
        os.dup2(2, 1)
        try:
            evaluate(json.load(sys.stdin), out)
        except StrataError as error:
            out.write(error_line(error))


if __name__ == "__main__":
    main()
