"""An upstream that is away, loading, broken or silent: every request is answered, and service comes back."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from strata_pack.errors import WrongUse
from strata_pack.gateway.upstream import Upstream
from strata_pack.gateway.wire import Wire
from tests.gateway.conftest import House, events, free_port

BODY = {"messages": [{"role": "user", "content": "Hi"}]}
CONTROL = {"messages": [{"role": "user", "content": "Hi<|im_end|>"}]}


@contextmanager
def upstream_that_answers(answer: bytes) -> Iterator[House]:
    """A gateway before a server that answers everything with these bytes and hangs up."""
    port = free_port()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0]))
            writer.write(answer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    with House(upstream_url=f"http://127.0.0.1:{port}") as house:
        server = house.call(asyncio.start_server(serve, "127.0.0.1", port))
        yield house
        server.close()


@pytest.mark.parametrize("url", ["", "localhost:8080", "ftp://x", "http://", "http://user@host", "http://h/?q"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(WrongUse, match="not the URL"):
        Upstream(url)


def test_an_upstream_that_restarts_is_survived() -> None:
    with House() as house:
        port = int(house.upstream_url.rpartition(":")[2])
        assert house.chat("</think>\n\nbefore")["choices"]
        house.call(house.replay.stop())
        for stream in (False, True):
            answer = house.post({**BODY, "stream": stream})
            assert answer.status_code == 503
            assert "does not answer" in answer.json()["error"]["message"]
            assert answer.headers["retry-after"]
        assert house.get("/health").status_code == 503
        assert house.get("/v1/status").json()["upstream_ready"] is False
        house.call(house.replay.start(port))
        assert house.chat("</think>\n\nafter")["choices"][0]["message"]["content"] == "after"
        assert house.get("/health").status_code == 200
        assert house.totals()["errors"]["upstream_unavailable"] >= 2


def test_a_loading_upstream_is_a_503(house: House) -> None:
    house.says("x", error={"code": 503, "message": "Loading model", "type": "unavailable_error"}, status=503)
    answer = house.post(BODY)
    assert answer.status_code == 503
    assert "loading" in answer.json()["error"]["message"]


def test_a_generation_that_breaks_is_a_503(house: House) -> None:
    house.says(["a"] * 10, break_after=4)
    answer = house.post(BODY)
    assert answer.status_code == 503
    assert "died" in answer.json()["error"]["message"]


def test_a_stream_that_breaks_ends_with_an_error_event(house: House) -> None:
    house.says(["a"] * 10, break_after=4)
    answer = house.post({**BODY, "stream": True})
    assert answer.status_code == 200
    assert events(answer.text)[-1]["error"]["type"] == "service_unavailable_error"
    assert house.wait_for(lambda: house.gateway.admission.busy == 0)


def test_a_prompt_that_is_too_long_is_a_400_with_openais_code(house: House) -> None:
    error = {"code": 400, "message": "m", "type": "exceed_context_size_error", "n_prompt_tokens": 6001, "n_ctx": 2048}
    house.says("x", error=error, status=400)
    answer = house.post(BODY)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert (error["type"], error["n_prompt_tokens"], error["n_ctx"]) == ("exceed_context_size_error", 6001, 2048)
    assert "6001" in error["message"]


def test_a_grammar_that_the_server_refuses_is_a_400(house: House) -> None:
    error = {"code": 400, "message": "failed to parse grammar", "type": "invalid_request_error"}
    house.says("x", error=error, status=400)
    answer = house.post({**BODY, "response_format": {"type": "json_object"}, "stream": True})
    assert answer.status_code == 400
    assert "failed to parse grammar" in answer.json()["error"]["message"]


def test_a_failing_server_is_a_502(house: House) -> None:
    house.says("x", error={"code": 500, "message": "boom", "type": "server_error"}, status=500)
    assert house.post(BODY).status_code == 502


def test_a_silent_upstream_is_a_504() -> None:
    with House(idle=0.3) as house:
        house.says(["a", "b"], delay=30)
        assert house.post(BODY).status_code == 504


def test_an_upstream_that_hangs_up_at_once_is_a_503() -> None:
    port = free_port()

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    with House(upstream_url=f"http://127.0.0.1:{port}") as house:
        server = house.call(asyncio.start_server(hang_up, "127.0.0.1", port))
        assert {house.post(BODY).status_code for _ in range(20)} == {503}
        server.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ndata: {",
        b"HTTP/1.1 200 OK\r\n\r\ndata: {not json}\n\n",
        b"HTTP/1.1 200 OK\r\n\r\ndata: [1]\n\n",
        b'HTTP/1.1 200 OK\r\n\r\ndata: {"error":{"message":"slot failed"}}\n\n',
        b'HTTP/1.1 200 OK\r\n\r\ndata: {"content":5}\n\n',
        b'HTTP/1.1 200 OK\r\n\r\ndata: {"content":"x","stop":false}\n\n',
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>It works!</html>\n\n",
        b"HTTP/1.1 200 OK\r\n\r\ndata: " + b"[" * 100_000 + b"\n\n",
        b"HTTP/1.1 200 OK\r\n\r\n: only a comment\n\n",
        b"HTTP/1.1 301 Moved\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_an_upstream_that_talks_nonsense_never_makes_a_500(answer: bytes) -> None:
    with upstream_that_answers(answer) as house:
        assert house.post(BODY).status_code in (502, 503)
        assert house.post({**CONTROL, "stream": True}).status_code in (502, 503)


def test_odd_numbers_of_the_upstream_are_no_numbers() -> None:
    odd = {
        "content": "x",
        "stop": True,
        "tokens_evaluated": "x",
        "tokens_predicted": None,
        "timings": 5,
        "stop_type": 7,
    }
    answer = b"HTTP/1.1 200 OK\r\n\r\ndata: " + json.dumps(odd).encode() + b"\n\n"
    with upstream_that_answers(answer) as house:
        reply = house.post(BODY)
        assert reply.status_code == 200
        assert reply.json()["usage"]["prompt_tokens"] == 0


def test_an_unreachable_upstream_leaves_no_connection_open() -> None:
    with House() as house:
        house.call(house.replay.stop())
        for _ in range(20):
            assert house.post(BODY).status_code == 503
            assert house.post(CONTROL).status_code == 503
        gc.collect()
        assert not [one for one in gc.get_objects() if isinstance(one, Wire)]


def test_a_note_before_the_answer_is_not_the_answer() -> None:
    final = b'data: {"content":"x","stop":true}\n\n'
    answer = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (
        len(final),
        final,
    )
    with upstream_that_answers(answer) as house:
        assert house.post(BODY).status_code == 200


def test_a_whole_completion_may_take_longer_than_a_stream_may_be_silent() -> None:
    port = free_port()
    served = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(1.2)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()
        served += 1

    with House(upstream_url=f"http://127.0.0.1:{port}", idle=0.3) as house:
        server = house.call(asyncio.start_server(serve, "127.0.0.1", port))
        assert house.post({"prompt": "x"}, "/v1/completions").status_code == 200
        assert house.post({"prompt": "x", "stream": True}, "/v1/completions").status_code == 504
        assert house.wait_for(lambda: served == 2)
        server.close()


def test_a_too_long_prompt_of_a_completion_is_named_prompt() -> None:
    error = {"code": 400, "message": "m", "type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 4}
    body = json.dumps({"error": error}).encode()
    with upstream_that_answers(b"HTTP/1.1 400 X\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)) as answering:
        assert answering.post({"prompt": "x"}, "/v1/completions").json()["error"]["param"] == "prompt"
