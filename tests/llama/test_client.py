"""The client against servers that answer wrongly, late, or not at all."""

from __future__ import annotations

import pytest

from strata_pack.llama.answers import GarbledAnswer, RequestRefused, ServerGone, ServerTimeout
from strata_pack.llama.client import LlamaClient, refusal_message
from tests.llama.http_fault import body, drip, faulty_server, hang_up, hang_up_once

GARBAGE = [
    b"",
    b"<html>Bad Gateway</html>",
    b"[]",
    b"null",
    b'"text"',
    b'{"content": 5}',
    b'{"content": "x", "timings": []}',
    b'{"content": "x", "timings": {"prompt_n": "many"}}',
    b'{"content": "x", "timings": {"prompt_n": true}}',
    b'{"content": "x", "stop": "yes"}',
    b"\xff\xfe\x00",
    b"[" * 100_000,
]


@pytest.mark.parametrize("text", GARBAGE, ids=range(len(GARBAGE)))
def test_an_answer_that_is_no_completion_is_garbled(text):
    with faulty_server(body(text)) as (url, _), pytest.raises(GarbledAnswer):
        LlamaClient(url).completion("x")


@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b'{"choices": []}',
        b'{"choices": [5]}',
        b'{"choices": [{"message": "hi"}]}',
        b'{"choices": [{"message": {"content": {"a": 1}}}]}',
        b'{"choices": [{"message": {"tool_calls": [{"id": "1"}]}}]}',
        b'{"choices": [{"message": {"tool_calls": {"id": "1"}}}]}',
    ],
)
def test_an_answer_that_is_no_chat_reply_is_garbled(text):
    with faulty_server(body(text)) as (url, _), pytest.raises(GarbledAnswer):
        LlamaClient(url).chat_completion([])


def test_arguments_that_come_as_an_object_are_taken_as_json():
    text = b'{"choices": [{"message": {"tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}}]}'
    with faulty_server(body(text)) as (url, _):
        (call,) = LlamaClient(url).chat_completion([]).tool_calls
    assert (call.name, call.decoded()) == ("f", {"a": 1})


def test_content_in_parts_is_joined():
    text = b'{"choices": [{"message": {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}}]}'
    with faulty_server(body(text)) as (url, _):
        assert LlamaClient(url).chat_completion([]).content == "ab"


@pytest.mark.parametrize("text", [b'{"tokens": "1 2"}', b'{"tokens": [1, "2"]}', b"{}"])
def test_tokens_that_are_no_numbers_are_garbled(text):
    with faulty_server(body(text)) as (url, _), pytest.raises(GarbledAnswer):
        LlamaClient(url).tokenize("x")


def test_a_question_is_asked_again_when_the_connection_breaks():
    with faulty_server(hang_up_once(body(b'{"tokens": [1]}'))) as (url, asked):
        assert LlamaClient(url).tokenize("x") == [1]
    assert len(asked) == 2


def test_a_generation_is_never_sent_twice():
    with faulty_server(hang_up) as (url, asked):
        with pytest.raises(ServerGone):
            LlamaClient(url).completion("x")
        assert asked == ["/completion"]


def test_a_server_that_is_not_there_is_gone():
    with pytest.raises(ServerGone, match="refused"):
        LlamaClient("http://127.0.0.1:9").completion("x")


def test_an_answer_shorter_than_announced_is_a_broken_connection():
    with faulty_server(body(b'{"content": "x"', length=500)) as (url, _), pytest.raises(ServerGone):
        LlamaClient(url).completion("x")


def test_a_server_that_drips_is_given_up_at_the_time_limit():
    with faulty_server(drip) as (url, _), pytest.raises(ServerTimeout):
        LlamaClient(url).completion("x", timeout_seconds=0.5)


def test_an_endless_answer_is_given_up_at_the_size_limit(monkeypatch):
    monkeypatch.setattr("strata_pack.llama.client.ANSWER_LIMIT", 1000)
    with faulty_server(body(b" " * 5000)) as (url, _), pytest.raises(GarbledAnswer, match="larger than 1000"):
        LlamaClient(url).completion("x")


def test_an_endless_line_of_a_stream_is_given_up_at_its_limit(monkeypatch):
    monkeypatch.setattr("strata_pack.llama.client.LINE_LIMIT", 1000)
    with faulty_server(body(b"data: " + b"x" * 5000)) as (url, _), pytest.raises(GarbledAnswer, match="one event"):
        list(LlamaClient(url).stream_completion("x"))


def test_a_stream_that_stops_before_the_end_is_an_error():
    with faulty_server(body(b'data: {"content": "half"}\n\n')) as (url, _):
        stream = LlamaClient(url).stream_completion("x")
        assert next(stream).text == "half"
        with pytest.raises(ServerGone, match="ended before"):
            next(stream)


def test_an_error_inside_a_stream_is_a_refusal():
    text = b'data: {"content": "a"}\n\nerror: {"error": {"message": "out of context"}}\n\n'
    with faulty_server(body(text)) as (url, _), pytest.raises(RequestRefused, match="out of context"):
        list(LlamaClient(url).stream_completion("x"))


def test_a_stream_s_comments_events_and_crlf_are_read_over():
    text = b': hello\r\nevent: x\r\ndata: {"content": "a", "stop": true}\r\n\r\ndata: [DONE]\r\n\r\n'
    with faulty_server(body(text)) as (url, _):
        assert [chunk.text for chunk in LlamaClient(url).stream_completion("x")] == ["a"]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"error": {"message": "no", "code": 500}}', "no"),
        (b'{"error": "no"}', "no"),
        (b'{"message": "no"}', "no"),
        (b"plain words", "plain words"),
        (b'{"detail": [1]}', '{"detail": [1]}'),
        (b"", ""),
    ],
)
def test_the_human_part_of_an_error_is_found(raw, message):
    assert refusal_message(raw) == message


def test_a_refusal_has_the_status_and_the_message():
    with faulty_server(body(b'{"error": {"message": "too long"}}', 400)) as (url, _):
        with pytest.raises(RequestRefused) as caught:
            LlamaClient(url).completion("x")
        assert (caught.value.status, caught.value.message) == (400, "too long")


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with faulty_server(body(b'{"tokens": [7]}')) as (url, _):
        assert LlamaClient(url).tokenize("x") == [7]
