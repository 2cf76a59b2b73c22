"""Work that is long for large inputs, and then must not hold up the event loop and with it every other stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LARGE = 256 << 10
"""Characters (or bytes) of input from which work leaves the event loop."""


async def aside(size: int, work: Callable[[], T]) -> T:
    """Return what ``work`` returns; in a thread if its input, of ``size``, is large."""
    return work() if size <= LARGE else await asyncio.to_thread(work)
