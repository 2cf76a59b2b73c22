"""What clients do to connections: bytes that nobody asked for, answers that nobody reads, leaving when it hurts."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2 as httpx
import pytest

from strata_pack.gateway.server.protocol import LimitedProtocol
from tests.gateway.conftest import PATIENCE, House, with_limits

BODY = {"messages": [{"role": "user", "content": "Hi"}]}
CONTROL = {"messages": [{"role": "user", "content": "Hi<|im_end|>"}]}
MIB = 1 << 20
LIMIT = 64 * MIB
CHUNKED = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
)
HALF = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{"


@pytest.fixture(scope="module")
def shared_hasty() -> Iterator[House]:
    with House(with_limits(header_seconds=0.5, body_seconds=0.5, stalled_client_seconds=1.0)) as house:
        yield house


@pytest.fixture
def hasty(shared_hasty: House) -> House:
    """A gateway with short limits, and an upstream with an empty script."""
    return shared_hasty.emptied()


def connect(house: House, *, receive_buffer: int | None = None) -> socket.socket:
    host, port = house.url.removeprefix("http://").split(":")
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect((host, int(port)))
    connection.settimeout(PATIENCE)
    return connection


def chat(**fields: object) -> bytes:
    data = json.dumps({**BODY, **fields}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


def bytes_taken(connection: socket.socket, piece: bytes) -> int:
    """Send ``piece`` again and again; return how many bytes went until the gateway hung up, ``LIMIT`` if it did not."""
    sent = 0
    try:
        while sent < LIMIT:
            connection.sendall(piece)
            sent += len(piece)
    except ConnectionError:
        return sent
    return LIMIT


def read_to_the_end(connection: socket.socket) -> bytes:
    received = b""
    try:
        while part := connection.recv(1 << 20):
            received += part
    except ConnectionResetError:
        pass
    return received


def test_trailers_without_end_are_cut_off(house: House) -> None:
    with connect(house) as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\n")
        line = b"x: " + b"a" * 16_000 + b"\r\n"
        assert bytes_taken(connection, line) < LIMIT


def test_a_header_of_a_trailer_without_end_is_cut_off(house: House) -> None:
    with connect(house) as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: ")
        assert bytes_taken(connection, b"a" * 16_000) < LIMIT


def test_the_body_of_a_request_that_offers_another_protocol_is_read(house: House) -> None:
    house.says("</think>\n\nHi")
    offer = b"Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    with connect(house) as connection:
        connection.sendall(chat().replace(b"\r\n", b"\r\n" + offer, 1))
        assert read_to_the_end(connection).startswith(b"HTTP/1.1 200")


def test_a_request_with_two_hosts_is_refused(house: House) -> None:
    with connect(house) as connection:
        connection.sendall(chat().replace(b"\r\n", b"\r\nhost: elsewhere\r\n", 1))
        assert read_to_the_end(connection).startswith(b"HTTP/1.1 400")


def test_trailers_are_no_headers(house: House) -> None:
    house.says("</think>\n\nHi")
    data = json.dumps(BODY).encode()
    chunked = b"%x\r\n%b\r\n0\r\nx-request-id: trailer\r\n\r\n" % (len(data), data)
    with connect(house) as connection:
        connection.sendall(CHUNKED + chunked)
        answer = read_to_the_end(connection)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"trailer" not in answer


def test_a_body_in_chunks_of_one_byte_is_a_body(house: House) -> None:
    house.says("</think>\n\nHi")
    data = json.dumps({**BODY, "ignored": "x" * 20_000}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in data)
    with connect(house) as connection:
        connection.sendall(CHUNKED + chunks + b"0\r\n\r\n")
        assert read_to_the_end(connection).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n", b"\r\n"),
        (b"POST /nowhere HTTP/1.1\r\nhost: elsewhere\r\ncontent-length: 100\r\n\r\n", b"{"),
    ],
    ids=["a line end after the answer", "a byte of a refused body"],
)
def test_a_connection_that_asks_nothing_ends(first: bytes, later: bytes, hasty: House) -> None:
    with connect(hasty) as connection:
        connection.sendall(first)
        assert connection.recv(12).startswith(b"HTTP/1.1 ")
        time.sleep(0.1)
        connection.sendall(later)
        read_to_the_end(connection)  # it ends, or the socket's own time limit fails the test


def test_a_slow_request_after_another_does_not_change_its_answer(hasty: House) -> None:
    hasty.says(["</think>", *["word "] * 12], delay=0.1)
    with connect(hasty) as connection:
        connection.sendall(chat(stream=True) + b"GE")
        received = read_to_the_end(connection)
    before, _, after = received.partition(b"data: [DONE]")
    assert b"HTTP/1.1 4" not in before
    assert b"HTTP/1.1 408" in after


def test_invalid_bytes_after_a_request_write_nothing_into_its_answer(hasty: House) -> None:
    hasty.says(["</think>", *["word "] * 5], delay=0.1)
    with connect(hasty) as connection:
        connection.sendall(chat(stream=True) + b"\x00\x00\r\n\r\n")
        assert b"HTTP/1.1 400" not in read_to_the_end(connection)[20:]


def test_a_whole_answer_that_nobody_reads_is_dropped(hasty: House) -> None:
    hasty.says(["</think>", *["x" * MIB] * 24])
    with connect(hasty, receive_buffer=4096) as connection:
        connection.sendall(chat())
        assert hasty.wait_for(lambda: hasty.gateway.admission.busy == 1)
        assert hasty.wait_for(lambda: hasty.gateway.admission.busy == 0)
        assert hasty.wait_for(lambda: not hasty.server.server_state.connections)


class Clock:
    """The event loop of one connection, whose check of the client's reading comes when the test says."""

    def __init__(self, protocol: LimitedProtocol) -> None:
        self._loop = protocol.loop
        self._check = protocol._check_taken
        self.due: tuple[int, ...] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        if callback != self._check:
            return self._loop.call_later(seconds, callback, *args)
        self.due = args
        return self._loop.call_later(3600, callback, *args)

    async def passes(self) -> None:
        """Let the check come now."""
        assert self.due is not None
        due, self.due = self.due, None
        self._check(*due)


def protocol_of(house: House, connection: socket.socket) -> LimitedProtocol:
    """Return the gateway's side of ``connection``."""
    found: list[LimitedProtocol] = []

    def look() -> bool:
        every = tuple(house.server.server_state.connections)
        found[:] = [one for one in every if one.transport.get_extra_info("peername") == connection.getsockname()]
        return bool(found)

    assert house.wait_for(look)
    return found[0]


def test_a_whole_answer_that_is_read_slowly_comes_whole(house: House) -> None:
    house.says(["</think>", *["x" * MIB] * 16])
    with connect(house, receive_buffer=65536) as connection:
        protocol = protocol_of(house, connection)
        # Small buffers: a client that has got a further MiB has got some of what waited to be sent.
        protocol.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        clock = protocol.loop = Clock(protocol)
        connection.sendall(chat())
        for _ in range(12):
            receive(connection, MIB)
            assert house.wait_for(lambda: clock.due is not None)
            house.call(clock.passes())
        receive(connection, 4 * MIB)


def receive(connection: socket.socket, size: int) -> None:
    """Receive exactly ``size`` bytes."""
    while size:
        part = connection.recv(size)
        assert part
        size -= len(part)


async def stop(server: asyncio.Server) -> None:
    server.close()


def test_clients_that_disconnect_during_tokenization_leave_no_connection_open() -> None:
    open_now = 0

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now
        open_now += 1
        try:
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.05)
            writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 17\r\n\r\n{"status": "ok"} ')
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            open_now -= 1
            writer.close()

    class Slow(House):
        async def make(self):  # type: ignore[no-untyped-def]
            self.slow = await asyncio.start_server(slow, "127.0.0.1", 0)
            self._upstream_url = f"http://127.0.0.1:{self.slow.sockets[0].getsockname()[1]}"
            return await super().make()

    with Slow() as house:

        def leave(pause: float) -> None:
            data = json.dumps(CONTROL).encode()
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(data)
            with connect(house) as connection:
                connection.sendall(head + data)
                time.sleep(pause)

        for _ in range(10):
            threads = [threading.Thread(target=leave, args=(0.002 * number,)) for number in range(32)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert house.wait_for(lambda: open_now == 0)
        assert house.get("/health").status_code == 200
        house.call(stop(house.slow))


def test_a_client_still_sending_its_body_is_answered_during_a_drain() -> None:
    with House(with_limits(drain_seconds=0)) as house:
        with connect(house) as connection:
            connection.sendall(HALF)
            time.sleep(0.2)
            house.server.should_exit = True
            answer = read_to_the_end(connection)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"shutting down" in answer


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_drain_cuts_off_is_counted_once_and_not_as_a_client_that_left(stream: bool) -> None:
    with House(with_limits(drain_seconds=0)) as house:
        house.says(["word "] * 1000, delay=0.02)
        with connect(house) as connection:
            connection.sendall(chat(stream=stream))
            assert house.wait_for(lambda: house.replay.running == 1)
            house.server.should_exit = True
            read_to_the_end(connection)
    totals = house.gateway.metrics.totals()
    assert totals["errors"] == {"draining": 1}
    assert totals["cancelled"] == 0


def test_clients_that_leave_with_several_requests_are_no_errors(house: House, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        house.says(["word "] * 100, delay=0.02)
    with connect(house) as connection:
        connection.sendall(chat() * 3)
        assert house.wait_for(lambda: house.replay.running == 1)
    assert house.wait_for(lambda: house.gateway.admission.busy == 0)
    assert house.wait_for(lambda: not house.gateway.metrics.running)
    house.replay.script.clear()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert httpx.get(house.url + "/health").status_code == 200


def test_a_client_that_reads_all_the_time_gets_every_answer_whole(hasty: House) -> None:
    with connect(hasty, receive_buffer=65536) as connection:
        for number in range(6):
            size = (3 + number) * MIB
            hasty.says(["</think>", *["x" * MIB] * (size // MIB)])
            connection.sendall(chat())
            received = b""
            while b"\r\n\r\n" not in received:
                received += connection.recv(4096)
            head, _, body = received.partition(b"\r\n\r\n")
            (length,) = [
                int(line.partition(b":")[2]) for line in head.split(b"\r\n") if line.startswith(b"content-length")
            ]
            left = length - len(body)
            while left:
                part = connection.recv(MIB)
                assert part, f"answer {number} was cut"
                left -= len(part)
                time.sleep(0.02)


@pytest.mark.parametrize(
    "data",
    [
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        chat() + b"\x00\x00\r\n\r\n",
    ],
    ids=["no size of a chunk", "nonsense before the answer has begun"],
)
def test_broken_framing_is_a_400_while_no_answer_has_begun(data: bytes, hasty: House) -> None:
    hasty.says(["</think>", "x"], delay=0.3)
    with connect(hasty) as connection:
        connection.sendall(data)
        assert read_to_the_end(connection).startswith(b"HTTP/1.1 400")


def test_the_rest_of_a_refused_body_costs_the_connection_nothing(hasty: House) -> None:
    with connect(hasty) as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nhost: elsewhere\r\ncontent-length: 4\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 421")
        connection.sendall(b"rest")
        time.sleep(1.0)
        connection.sendall(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert b"HTTP/1.1 200" in read_to_the_end(connection)


def test_answers_are_sent_without_waiting_for_more(house: House) -> None:
    with connect(house) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert connection.recv(4096)
        sockets = [one.transport.get_extra_info("socket") for one in house.server.server_state.connections]
        assert sockets
        assert all(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for one in sockets)
