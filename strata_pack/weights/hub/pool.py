"""Runs several downloads concurrently and stops all on the first failure or interruption.

The workers are daemon threads on purpose: a thread that waits for a silent server must not delay Ctrl-C. It may be
killed at any moment, because the partial file is the only state of a download.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from strata_pack.weights.hub.body import Stopped

_LINGER_SECONDS = 2.0
"""Seconds that a stopping fetch waits for its workers."""


def run_all(jobs: Sequence[Callable[[], None]], workers: int, stop: threading.Event) -> None:
    """Run all ``jobs``, at most ``workers`` at once, in order; raise the first exception after stopping the others."""
    waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    errors: list[BaseException] = []

    def work() -> None:
        while not stop.is_set():
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                job()
            except Stopped:
                return
            except BaseException as error:  # noqa: BLE001  (handed to the caller, who raises it)
                errors.append(error)
                stop.set()
                return

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(workers, len(jobs)))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive() and not stop.is_set():
                thread.join(0.1)
    finally:
        finished = not any(thread.is_alive() for thread in threads) and not errors
        if not finished:
            stop.set()
            for thread in threads:
                thread.join(_LINGER_SECONDS / len(threads))
    if errors:
        raise errors[0]
