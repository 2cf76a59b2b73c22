"""Run work on large inputs in a thread, so that it does not block the event loop and all other streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

LARGE = 256 << 10
"""Characters (or bytes) of input from which work runs in a thread."""


async def offload(size: int, work: Callable[[], T]) -> T:
    """Return the result of ``work``, run in a thread if its input of ``size`` is large."""
    return work() if size <= LARGE else await asyncio.to_thread(work)


PER_VALUE = 32
"""Weight of a value in addition to its characters."""


def weight(*values: Any) -> int:
    """Return the approximate size of values as JSON in characters; counting stops above ``LARGE``."""
    found = 0
    waiting: list[Any] = [*values]
    while waiting and found <= LARGE:
        one = waiting.pop()
        if isinstance(one, str):
            found += len(one)
        elif isinstance(one, (dict, list, tuple)):
            found += PER_VALUE * len(one)
            if found > LARGE:
                break
            if isinstance(one, dict):
                found += sum(map(len, one))
                waiting += one.values()
            else:
                waiting += one
    return found
