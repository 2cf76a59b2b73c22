"""Bodies as agents and proxies send them: halves of emojis, compressed, without chunks, with a byte order mark."""

from __future__ import annotations

import gzip
import json
import socket
import zlib
from typing import Any

import httpx2 as httpx
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from strata_pack.gateway.api.fields import sound_json
from strata_pack.gateway.failures import ApiError
from strata_pack.gateway.server.encodings import decoded
from tests.gateway.conftest import House, with_limits

BODY = {"messages": [{"role": "user", "content": "squeezed tea"}], "max_tokens": 9}
REPLACED = "\N{REPLACEMENT CHARACTER}"


def send(house: House, data: bytes, path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
    return house.http.post(house.url + path, content=data, headers={"content-type": "application/json", **headers})


# Halves of surrogate pairs


@pytest.mark.parametrize("half", ["\\ud83d", "\\uD83D", "\\ude00", "\\ud83d\\ud83d", "\\ud83dx", "\\ud83d\\n"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"])
def test_half_of_an_emoji_is_read_as_a_replacement_character(half: str, path: str, house: House) -> None:
    data = '{"max_tokens":9,"messages":[{"role":"user","content":"cut HALF"}]}'.replace("HALF", half)
    assert send(house, data.encode(), path).status_code == 200
    if not path.endswith("tokens"):
        assert f"cut {REPLACED}" in house.prompt


def test_half_of_an_emoji_in_the_arguments_of_a_call_is_read(house: House) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "cut \\ud83d."}'}}
    history = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
    ]
    assert send(house, json.dumps({"messages": history}).encode()).status_code == 200
    assert f"cut {REPLACED}." in house.prompt


def test_a_whole_emoji_and_an_escaped_backslash_stay_as_they_are() -> None:
    data = rb'{"a": "\ud83d\ude00 \\ud83d \\\\ud83d"}'
    assert sound_json(data) == data


def test_a_surrogate_in_raw_bytes_is_replaced() -> None:
    assert json.loads(sound_json(b'{"a": "\xed\xa0\xbd"}')) == {"a": REPLACED}


def test_a_byte_order_mark_is_passed_over(house: House) -> None:
    assert send(house, b"\xef\xbb\xbf" + json.dumps(BODY).encode()).status_code == 200


@given(st.text(st.characters(codec=None), max_size=40))
def test_any_text_becomes_one_that_can_be_encoded(text: str) -> None:
    read = json.loads(sound_json(json.dumps({"a": text}).encode()))["a"]
    read.encode("utf-8")
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert read == whole


# Encodings

ENCODERS = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstandard.compress, "x-gzip": gzip.compress}


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_compressed_body_is_read(name: str, path: str, house: House) -> None:
    answer = send(house, ENCODERS[name](json.dumps(BODY).encode()), path, **{"content-encoding": name})
    assert answer.status_code == 200, answer.text
    assert "squeezed tea" in house.prompt


def test_two_encodings_are_undone_in_turn() -> None:
    assert decoded(zstandard.compress(gzip.compress(b"x")), "gzip, zstd", 100) == b"x"


def test_members_and_frames_that_follow_each_other_are_one_body() -> None:
    assert decoded(gzip.compress(b"a") + gzip.compress(b"b"), "gzip", 100) == b"ab"
    assert decoded(zstandard.compress(b"a") + zstandard.compress(b"b"), "zstd", 100) == b"ab"


def test_a_deflated_body_may_lack_the_header_of_zlib() -> None:
    assert decoded(zlib.compress(b"squeezed tea", wbits=-15), "deflate", 100) == b"squeezed tea"


@pytest.mark.parametrize("name", ENCODERS)
def test_a_bomb_is_refused_before_it_is_whole(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        decoded(ENCODERS[name](bytes(10_000_000)), name, 1000)
    assert caught.value.status == 413


def test_the_limit_holds_for_what_a_body_unpacks_to() -> None:
    with House(with_limits(body_bytes=1000)) as house:
        data = gzip.compress(json.dumps({**BODY, "user": "x" * 5000}).encode())
        assert send(house, data, **{"content-encoding": "gzip"}).status_code == 413


@pytest.mark.parametrize(("encoding", "status"), [("br", 415), ("gzip, gzip, gzip", 415), ("gzip", 400), ("zstd", 400)])
def test_what_is_in_no_known_encoding_is_refused(encoding: str, status: int, house: House) -> None:
    answer = send(house, b"\x1f\x8bnonsense", **{"content-encoding": encoding})
    assert answer.status_code == status
    if status == 415:
        assert "zstd" in answer.headers["accept-encoding"]


@pytest.mark.parametrize("name", ENCODERS)
def test_a_body_that_ends_too_early_is_a_400(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        decoded(ENCODERS[name](b"x" * 1000)[:-3], name, 10_000)
    assert caught.value.status == 400


# HTTP/1.0


@pytest.mark.parametrize("host", [b"", b"Host: localhost\r\n"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_of_http_1_0_gets_no_chunks(stream: bool, host: bytes, house: House) -> None:
    house.says("</think>\n\nHello there.")
    body = json.dumps({**BODY, "stream": stream}).encode()
    address, port = house.url.removeprefix("http://").split(":")
    with socket.create_connection((address, int(port)), timeout=120) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.0\r\n%bContent-Length: %d\r\n\r\n%b" % (host, len(body), body)
        )
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, content = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    if stream:
        assert content.startswith(b"data: {")
        assert content.endswith(b"data: [DONE]\n\n")
    else:
        value: Any = json.loads(content)
        assert value["choices"][0]["message"]["content"] == "Hello there."
