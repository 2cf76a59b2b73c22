"""Send a request to a server on this machine without waiting for the event loop.

The loopback device completes a connection inside the call of ``connect``, so the request can follow at once: the server
begins to work while the event loop still adopts the connection.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from strata_pack.gateway.failures import unavailable
from strata_pack.gateway.wire import AWAY, Wire


@dataclass(frozen=True)
class SentRequest:
    """A connected socket over which the first ``size`` bytes of a request were sent."""

    socket: socket.socket
    size: int


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is an address of the loopback device; a name is not looked up."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def send_at_once(host: str, port: int, request: bytes) -> SentRequest | None:
    """Connect to a loopback address and send ``request``, or its beginning.

    ``None`` if nothing was sent, because the server refuses the connection or has too many.
    """
    connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        connection.connect_ex((host, port))
        return SentRequest(connection, connection.send(request))
    except OSError:
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise


async def adopted(connection: socket.socket, make: Callable[[], Wire]) -> Wire:
    """Return the exchange that ``make`` returns, over a connection on which its request was begun.

    Raises ``ApiError`` 503 for a lost connection, as one whose request must not be sent again.
    """
    loop = asyncio.get_running_loop()
    # uvloop closes the descriptor itself, and may do so before it learns of the socket, which must then not close the
    # same number again: it can be another connection's.
    give_up = connection.close if isinstance(loop, asyncio.BaseEventLoop) else connection.detach
    try:
        transport, wire = await loop.create_connection(make, sock=connection)
    except BaseException as error:
        give_up()
        if isinstance(error, OSError):
            raise unavailable(AWAY, kind="upstream_gone") from error
        raise
    if transport.is_closing():
        give_up()
    return wire
