"""Who may ask, how much, how long; and what happens when a client leaves, does not read, or asks too much."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2 as httpx
import pytest

from tests.gateway.conftest import PATIENCE, SETTINGS, House, with_limits

BODY = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(scope="module")
def locked() -> Iterator[House]:
    with House(replace(SETTINGS, api_keys=("first-key", "second-key", "schlüssel"))) as house:
        yield house


@pytest.fixture(scope="module")
def small() -> Iterator[House]:
    """A gateway with one slot, one place in the queue and short limits."""
    settings = with_limits(
        parallel=1, queue=1, body_bytes=10_000, header_bytes=4096, header_seconds=0.5, body_seconds=0.5
    )
    with House(settings) as house:
        yield house


def raw(house: House, data: bytes) -> bytes:
    """Send ``data`` and return all that comes back until the connection ends."""
    host, port = house.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall(data)
        received = b""
        try:
            while part := connection.recv(65536):
                received += part
        except (TimeoutError, ConnectionResetError):
            pass
        return received


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first-key"},
        {"authorization": "bearer second-key"},
        {"x-api-key": "first-key"},
        {"x-api-key": "schlüssel".encode()},
    ],
)
def test_a_right_key_is_let_in(headers: dict[str, Any], locked: House) -> None:
    locked.says("</think>\n\nHi")
    assert locked.post(BODY, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "first-key"},
        {"authorization": "Bearer first-key2"},
        {"x-api-key": ""},
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_wrong_key_is_a_401(headers: dict[str, str], path: str, locked: House) -> None:
    answer = locked.post(BODY, path, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("path", ["/metrics", "/v1/live", "/v1/status", "/v1/models", "/metrics/prometheus"])
def test_data_needs_the_key(path: str, locked: House) -> None:
    assert locked.get(path).status_code == 401
    assert locked.get(path, headers={"x-api-key": "first-key"}).status_code == 200


def test_health_and_the_empty_page_need_no_key(locked: House) -> None:
    assert locked.get("/health").status_code == 200
    assert locked.get("/").status_code == 200


def test_without_keys_another_host_name_is_refused(house: House) -> None:
    answer = house.get("/v1/models", headers={"host": "evil.example"})
    assert answer.status_code == 421
    assert house.get("/v1/models", headers={"host": "localhost:1"}).status_code == 200


def test_a_body_over_the_limit_is_a_413(small: House) -> None:
    assert small.post({"messages": [{"role": "user", "content": "x" * 20_000}]}).status_code == 413


def test_a_chunked_body_over_the_limit_is_a_413(small: House) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(5):
            yield b"x" * 4000

    assert httpx.post(small.url + "/v1/chat/completions", content=parts()).status_code == 413


def test_headers_over_the_limit_are_a_431(small: House) -> None:
    whole = raw(small, b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 8000 + b"\r\n\r\n")
    assert whole.startswith(b"HTTP/1.1 431")
    endless = raw(small, b"GET /health HTTP/1.1\r\n" + b"x: aaaaaaaaaaaaaaaa\r\n" * 1000)
    assert endless.startswith(b"HTTP/1.1 431")


def test_slow_headers_are_a_408(small: House) -> None:
    assert raw(small, b"GET /health HTTP/1.1\r\nhost: loc").startswith(b"HTTP/1.1 408")


def test_a_connection_that_says_nothing_is_closed(small: House) -> None:
    assert raw(small, b"").startswith(b"HTTP/1.1 408")


def test_a_slow_body_is_a_408(small: House) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{"
    assert raw(small, head).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"POST / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
    ],
)
def test_what_is_no_http_gets_a_400(data: bytes, small: House) -> None:
    assert raw(small, data).startswith(b"HTTP/1.1 4")


def test_beyond_the_queue_it_is_429_and_one_that_leaves_the_queue_frees_its_place(small: House) -> None:
    small.replay.script.clear()
    small.says(["word "] * 4000, delay=0.02)
    with httpx.stream("POST", small.url + "/v1/chat/completions", json={**BODY, "stream": True}) as running:
        lines = running.iter_lines()  # kept: httpx closes the response when it is collected
        next(lines)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(small.url + "/v1/chat/completions", json=BODY, timeout=0.3)
        assert small.wait_for(lambda: small.gateway.admission.waiting == 0)
        waiting = _start(small)
        assert small.wait_for(lambda: small.gateway.admission.waiting == 1)
        refused = small.post(BODY)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
        waiting.close()
    assert small.wait_for(lambda: small.gateway.admission.busy == 0)


def _start(house: House, **fields: object) -> socket.socket:
    """Send a chat request and leave the connection open, unread."""
    host, port = house.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    data = json.dumps({**BODY, **fields}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_slot_within_a_second(stream: bool, house: House) -> None:
    house.says(["word "] * 500, delay=0.02)
    dropped = house.replay.dropped
    connection = _start(house, stream=stream)
    assert house.wait_for(lambda: house.replay.running == 1)
    connection.close()
    assert house.wait_for(lambda: house.gateway.admission.busy == 0)
    assert house.wait_for(lambda: house.replay.dropped == dropped + 1)


def test_a_client_that_leaves_before_the_first_token_frees_its_slot(house: House) -> None:
    house.says(["word "] * 3, delay=30)
    connection = _start(house, stream=True)
    assert house.wait_for(lambda: house.replay.running == 1)
    connection.close()
    assert house.wait_for(lambda: house.gateway.admission.busy == house.replay.running == 0)


def test_a_slow_reader_does_not_stall_others() -> None:
    with House(with_limits(stalled_client_seconds=3600)) as house:
        house.says(["x" * 10_000] * 2000)
        slow = _start(house, stream=True)
        assert house.wait_for(lambda: house.gateway.admission.busy == 1)
        assert house.chat("</think>\n\nHi")["choices"][0]["message"]["content"] == "Hi"
        assert house.gateway.admission.busy == 1
        slow.close()


def test_a_slow_reader_is_dropped_in_the_end() -> None:
    with House(with_limits(stalled_client_seconds=0.5)) as house:
        house.says(["x" * 10_000] * 2000)
        slow = _start(house, stream=True)
        assert house.wait_for(lambda: house.gateway.metrics.totals()["cancelled"] == 1)
        assert house.gateway.admission.busy == 0
        slow.close()


def test_a_long_prefill_sends_comments_until_the_first_token() -> None:
    with House(with_limits(ping_seconds=0.1)) as house:
        house.says(["</think>", "Hi"], delay=0.4)
        answer = house.post({**BODY, "stream": True})
        assert answer.text.startswith(": still working\n\n")
        assert '"content":"Hi"' in answer.text


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nothing", 404), ("GET", "/v1/messages", 405)])
def test_an_unknown_path_or_method_is_answered_in_json(method: str, path: str, status: int, house: House) -> None:
    answer = httpx.request(method, house.url + path)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_what_a_drain_cuts_off_is_logged() -> None:
    with House() as house:
        house.says(["word "] * 1000, delay=0.02)
        with httpx.stream("POST", house.url + "/v1/chat/completions", json={**BODY, "stream": True}) as running:
            lines = running.iter_lines()
            next(lines)
            house.server.should_exit = True
            assert any("shutting down" in line for line in lines)


def test_a_drain_finishes_what_runs_and_takes_nothing_new() -> None:
    with House() as house:
        house.says(["</think>", *["word "] * 30], delay=0.03)
        with httpx.stream("POST", house.url + "/v1/chat/completions", json={**BODY, "stream": True}) as running:
            lines = running.iter_lines()
            next(lines)
            house.server.should_exit = True
            time.sleep(0.3)
            with pytest.raises(httpx.ConnectError):
                httpx.get(house.url + "/health")
            assert list(lines)[-2] == "data: [DONE]"
