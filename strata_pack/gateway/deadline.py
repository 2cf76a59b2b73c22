"""A time limit on a block: ``asyncio.timeout`` (Python 3.11) for every Python that this package supports.

Unlike ``asyncio.wait_for`` it creates no task, so a block that does not wait costs no event-loop iteration.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any


class Deadline:
    """Context manager that raises ``TimeoutError`` if its block is still waiting after ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._expired = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[Any] = task
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if not self._expired:
            return
        # If the task was cancelled from outside too, that cancellation wins.
        others = self._task.uncancel() if hasattr(self._task, "uncancel") else 0
        if kind is asyncio.CancelledError and not others:
            raise TimeoutError from error

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()
