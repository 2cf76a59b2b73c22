"""A request to a server on this machine is sent in the call that connects."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from strata_pack.gateway.failures import ApiError
from strata_pack.gateway.loopback import adopted, is_loopback, send_at_once
from strata_pack.gateway.upstream import Upstream
from strata_pack.gateway.wire import Wire
from tests.gateway.conftest import free_port

ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"a": 1}'
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


async def answer_and_hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0]))
    writer.write(ANSWER)
    writer.close()


async def asked(serve: Serve, body: dict[str, Any], times: int = 1) -> list[dict[str, Any]]:
    """Return the answers to requests at a time to a server on this machine."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    upstream = Upstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        return await asyncio.gather(*(upstream.json("POST", "/x", body) for _ in range(times)))
    finally:
        server.close()


@pytest.mark.parametrize(
    ("host", "is_one"),
    [("127.0.0.1", True), ("127.8.0.1", True), ("::1", True), ("localhost", False), ("10.0.0.1", False)],
)
def test_an_address_of_the_loopback_device_is_known(host: str, is_one: bool) -> None:
    assert is_loopback(host) is is_one


def test_a_request_is_sent_without_the_event_loop() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sent = send_at_once("127.0.0.1", server.getsockname()[1], b"request")
        assert sent is not None
        with sent.socket, server.accept()[0] as accepted:
            assert accepted.recv(100) == b"request"


def test_nothing_is_sent_where_no_server_listens() -> None:
    assert send_at_once("127.0.0.1", free_port(), b"request") is None


def test_a_request_larger_than_the_sockets_buffer_arrives_whole() -> None:
    assert asyncio.run(asked(answer_and_hang_up, {"prompt": "x" * (16 << 20)})) == [{"a": 1}]


def test_a_connection_lost_after_its_request_is_not_one_that_may_be_tried_again() -> None:
    async def adopt() -> None:
        loop = asyncio.get_running_loop()
        lost = socket.socket()
        lost.close()
        await adopted(lost, lambda: Wire(loop, 1.0, 1.0))

    with pytest.raises(ApiError) as error:
        asyncio.run(adopt())
    assert error.value.kind == "upstream_gone"


def test_servers_that_hang_up_at_once_cost_no_other_connection_its_descriptor() -> None:
    uvloop = pytest.importorskip("uvloop")
    answers = uvloop.run(asked(answer_and_hang_up, {"prompt": "x"}, times=200))
    assert answers == [{"a": 1}] * 200
