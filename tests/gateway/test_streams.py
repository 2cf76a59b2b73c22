"""A stream of events: signs of life while nothing comes, and an end that tells what happened."""

from __future__ import annotations

import logging

import pytest

from strata_pack.gateway.chat_reply import ChatWriter
from strata_pack.gateway.streams import PING
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
        house.says(["a"] * 10, delay=0.2)
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
    from strata_pack.gateway.messages_reply import MessagesWriter
    from strata_pack.gateway.responses_reply import ResponsesWriter

    with House() as house:
        for kind in (ChatWriter, MessagesWriter, ResponsesWriter):
            monkeypatch.setattr(kind, "finish", lambda *_: 1 / 0)
        house.says("</think>\n\nHi")
        body = {**BODY, "max_tokens": 50} if path != "/v1/responses" else {"input": "Hi", "stream": True}
        with caplog.at_level(logging.ERROR):
            last = events(house.post(body, path).text)[-1]
        told = last.get("error") or last["response"]["error"]
        assert "its log says why" in told["message"]
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
