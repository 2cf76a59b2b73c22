"""An upstream for ``strata-pack serve``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tests.gateway.replay import ReplayServer


@pytest.fixture
def upstream() -> Iterator[str]:
    """A replaying upstream in a thread of its own."""
    loop = asyncio.new_event_loop()
    server = ReplayServer()
    url = loop.run_until_complete(server.start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield url
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()
