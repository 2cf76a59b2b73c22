"""Work that is long for large inputs, and then must not hold up the event loop and with it every other stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

LARGE = 256 << 10
"""Characters (or bytes) of input from which work leaves the event loop."""


async def offload(size: int, work: Callable[[], T]) -> T:
    """Return what ``work`` returns; in a thread if its input, of ``size``, is large."""
    return work() if size <= LARGE else await asyncio.to_thread(work)


PER_VALUE = 32
"""What a value weighs in addition to its characters."""


def weight(*values: Any) -> int:
    """Return about how many characters JSON has; what is large (``LARGE``) is not looked at to its end."""
    found = 0
    waiting: list[Any] = [values]
    while waiting and found <= LARGE:
        one = waiting.pop()
        if isinstance(one, str):
            found += len(one)
        elif isinstance(one, (dict, list, tuple)):
            found += PER_VALUE * len(one)
            if found <= LARGE:
                waiting += (*one, *one.values()) if isinstance(one, dict) else one
    return found
