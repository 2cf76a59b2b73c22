"""Collects activations in a child process: ``python -m strata_pack.llama.activations_child`` with settings as JSON on
stdin.

On stdout, one JSON object a line: first the plan (``chunks``, ``done``: chunks of an interrupted run), then
``done`` after each chunk; or ``error``. The sums are written atomically to the state file, so that an interrupted run
resumes after the last saved chunk. A crash of native code only ends this process.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from strata_pack.errors import BadInput, EnvironmentFailure, StrataError
from strata_pack.files import atomic_writer
from strata_pack.llama.activations import ActivationCollector, Sums
from strata_pack.llama.logits_child import cut_windows, error_line
from strata_pack.llama.logits_native import LogitsModel
from strata_pack.llama.supervisor import die_with_parent

SAVING_SHARE = 0.02
"""Maximum share of the time for saving; the sums of a model with many experts have hundreds of megabytes."""
_SQUARES, _PLAIN, _COUNTS, _HEAD = "squares:", "plain:", "counts:", "head"


def save_state(path: Path, sums: dict[str, Sums], key: str, done: int) -> None:
    """Write all sums and the number of chunks in them."""
    arrays: dict[str, Any] = {_HEAD: np.frombuffer(json.dumps({"key": key, "done": done}).encode(), np.uint8)}
    for name, entry in sums.items():
        arrays |= {_SQUARES + name: entry.squares, _PLAIN + name: entry.plain, _COUNTS + name: entry.counts}
    with atomic_writer(path) as file:
        np.savez(file, **arrays)


def load_state(path: Path, key: str) -> tuple[dict[str, Sums], int]:
    """Return the saved sums and their number of chunks; empty and 0 without a state, or with that of another run."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            head = json.loads(file[_HEAD].tobytes())
            if head["key"] != key:
                return {}, 0
            names = [name.removeprefix(_COUNTS) for name in file.files if name.startswith(_COUNTS)]
            parts = (_SQUARES, _PLAIN, _COUNTS)
            return {name: Sums(*(file[part + name] for part in parts)) for name in names}, int(head["done"])
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error):
        return {}, 0


def collect(settings: dict[str, Any], say: Any) -> None:
    """Evaluate the missing chunks and write all sums to the state file."""
    state, key, context = Path(settings["state"]), settings["key"], settings["context"]
    collector = ActivationCollector(process_output=settings["process_output"])
    collector.sums, done = load_state(state, key)
    with LogitsModel(
        Path(settings["model"]), context=context, threads=settings["threads"], eval_callback=collector.callback
    ) as model:
        tokens = [
            token
            for text in settings["texts"]
            for token in model.tokenize(text, parse_special=settings["parse_special"])
        ]
        windows = cut_windows(tokens, context, settings["limit"], model.bos)
        if not windows:
            raise BadInput(
                f"the text has {len(tokens)} tokens and one chunk needs {context}",
                remedy="give more text, or fewer tokens a chunk with --ctx",
            )
        if done > len(windows):
            collector.sums, done = {}, 0
        say({"chunks": len(windows), "done": done, "tokens": len(tokens)})
        saved_at, cost = time.monotonic(), 0.0
        for number, window in enumerate(windows[done:], done + 1):
            collector.next_graph()
            model.evaluate(window, 0, len(window))
            if collector.error is not None:
                raise collector.error
            now = time.monotonic()
            if number == len(windows) or now - saved_at >= cost / SAVING_SHARE:
                save_state(state, collector.sums, key, number)
                saved_at = time.monotonic()
                cost = saved_at - now
            say({"done": number})


def main() -> None:
    """Collect with the settings on stdin; output of native code to stdout is redirected to stderr."""
    die_with_parent()
    with os.fdopen(os.dup(1), "wb", buffering=0) as out:
        os.dup2(2, 1)

        def say(value: dict[str, Any]) -> None:
            out.write(json.dumps(value).encode() + b"\n")

        try:
            collect(json.load(sys.stdin), say)
        except StrataError as error:
            out.write(error_line(error))
        except OSError as error:
            out.write(error_line(EnvironmentFailure(f"the sums cannot be saved ({error})")))


if __name__ == "__main__":
    main()
