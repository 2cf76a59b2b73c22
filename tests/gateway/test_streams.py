"""A stream of events: signs of life while nothing comes, and an end that tells what happened."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from strata_pack.gateway.api.chat.reply import ChatWriter
from strata_pack.gateway.streams import PING, EventStream, whole_events
from tests.gateway.conftest import House, events, with_limits

BODY = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}


def test_a_stream_shows_life_before_its_first_token_and_later() -> None:
    with House(with_limits(ping_seconds=0.1)) as house:
        house.says(["a", "b", "c"], delay=0.25)
        text = house.post(BODY).text
        pieces = [part for part in text.split("\n\n") if part]
        comments = [number for number, part in enumerate(pieces) if part == PING.decode().strip()]
        assert comments[0] == 0
        assert any('"reasoning_content":"a"' in part for part in pieces[: comments[-1]])
        assert text.endswith("data: [DONE]\n\n")


def test_a_refusal_after_a_sign_of_life_is_an_event() -> None:
    with House(with_limits(ping_seconds=0.1, parallel=1, queue_seconds=0.4)) as house:
        house.says(["a"] * 200, delay=0.2)
        with house.http.stream("POST", f"{house.url}/v1/chat/completions", json=BODY) as first:
            pieces = first.iter_bytes()
            assert next(pieces)
            waiting = house.post(BODY)
            assert waiting.status_code == 200
            assert waiting.text.startswith(PING.decode())
            assert events(waiting.text)[-1]["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_a_failure_of_the_gateway_in_a_stream_is_an_event(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from strata_pack.gateway.api.messages.reply import MessagesWriter
    from strata_pack.gateway.api.responses.reply import ResponsesWriter

    with House() as house:
        for kind in (ChatWriter, MessagesWriter, ResponsesWriter):
            monkeypatch.setattr(kind, "finish", lambda *_: 1 / 0)
        house.says("</think>\n\nHi")
        body = {**BODY, "max_tokens": 50} if path != "/v1/responses" else {"input": "Hi", "stream": True}
        with caplog.at_level(logging.ERROR):
            last = events(house.post(body, path).text)[-1]
        error = last.get("error") or last["response"]["error"]
        assert "its log has the reason" in error["message"]
        assert "ZeroDivisionError" in caplog.text
        assert house.totals()["errors"] == {"internal": 1}


def test_a_failure_of_the_gateway_before_a_stream_is_a_500(monkeypatch: pytest.MonkeyPatch) -> None:
    with House() as house:
        monkeypatch.setattr(ChatWriter, "finish", lambda *_: 1 / 0)
        monkeypatch.setattr(ChatWriter, "delta", lambda *_: 1 / 0)
        house.says("</think>\n\nHi")
        answer = house.post(BODY)
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "server_error"
        assert house.totals()["errors"] == {"internal": 1}


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_that_takes_too_long_is_cut_off(stream: bool) -> None:
    with House(with_limits(request_seconds=0.5)) as house:
        house.says(["</think>\n\n", *["word "] * 100], delay=0.1)
        answer = house.post({**BODY, "stream": stream})
        if stream:
            assert events(answer.text)[-1]["error"]["type"] == "timeout_error"
        else:
            assert answer.status_code == 504
        assert house.totals()["errors"] == {"request_timeout": 1}
        assert house.wait_for(lambda: house.replay.running == 0)
        assert house.gateway.admission.busy == 0


def test_a_ping_that_waits_for_its_reader_does_not_cost_the_end_of_the_stream() -> None:
    sent: list[dict[str, object]] = []

    async def main() -> None:
        reads = asyncio.Event()

        async def send(message: Any) -> None:
            if message.get("body") == PING:
                await reads.wait()
            sent.append(message)

        async def body() -> AsyncGenerator[bytes, None]:
            yield b"first\n\n"
            await asyncio.sleep(0.1)

        asyncio.get_running_loop().call_later(0.3, reads.set)
        stream = EventStream(body(), lambda error: str(error).encode(), ping_seconds=0.03)
        await stream({"type": "http"}, None, send)  # type: ignore[arg-type]

    asyncio.run(main())
    assert [message.get("body") for message in sent] == [None, b"first\n\n", PING, b""]
    assert sent[-1]["more_body"] is False


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_what_passes_through_passes_in_whole_events(size: int) -> None:
    text = b"data: one\n\ndata: two\nid: 2\n\n: comment\n\ndata: [DONE]\n\nrest"

    async def pieces() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(text), size):
            yield text[start : start + size]

    async def main() -> list[bytes]:
        return [part async for part in whole_events(pieces())]

    parts = asyncio.run(main())
    assert b"".join(parts) == text
    assert all(part.endswith(b"\n\n") for part in parts[:-1])
