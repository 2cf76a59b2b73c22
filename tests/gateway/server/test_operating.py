"""What an operator has: an access log without content, telemetry, keys that change, TLS, native endpoints."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from strata_pack.errors import BadInput
from strata_pack.gateway.server.access import Access, json_line, text_line
from strata_pack.gateway.server.keys import Keys
from strata_pack.gateway.server.listening import Tls
from strata_pack.gateway.server.rereading import reread
from strata_pack.gateway.server.run import GatewayServer, read_keys, uvicorn_config
from strata_pack.gateway.service import Gateway
from tests.e2e.command import run
from tests.gateway.conftest import SETTINGS, House
from tests.gateway.server.running import SECRET_TEXT, Running, certificate


class Observed(House):
    """A gateway whose finished requests are kept in ``seen``."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.seen: list[Access] = []

    def config_of(self, gateway: Any) -> Any:
        return uvicorn_config(gateway, sinks=[self.seen.append])


@pytest.fixture(scope="module")
def observed() -> Iterator[Observed]:
    with Observed() as house:
        yield house


def last(house: Observed) -> Access:
    assert house.wait_for(lambda: bool(house.seen))
    return house.seen[-1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_logged_with_its_tokens_and_its_end(stream: bool, observed: Observed) -> None:
    observed.seen.clear()
    observed.says("Hm.\n</think>\n\nHi")
    body = {"messages": [{"role": "user", "content": SECRET_TEXT}], "stream": stream}
    assert observed.post(body, headers={"x-request-id": "one"}).status_code == 200
    access = last(observed)
    assert (access.request_id, access.status, access.outcome, access.path) == ("one", 200, "ok", "/v1/chat/completions")
    assert access.record is not None
    assert access.record.completion_tokens > 0
    for line in (json_line(access), text_line(access)):
        assert SECRET_TEXT not in line
        assert "\n" not in line
    shown = json.loads(json_line(access))
    assert shown["finish_reason"] == "stop"
    assert shown["prompt_tokens"] > 0


@pytest.mark.parametrize(
    ("path", "body", "status", "outcome"),
    [
        ("/v1/chat/completions", {"messages": 5}, 400, "bad_request"),
        ("/v1/nothing", {}, 404, "no_route"),
    ],
)
def test_a_refused_request_is_logged_too(
    path: str, body: Any, status: int, outcome: str, observed: Observed
) -> None:  # fmt: skip
    observed.seen.clear()
    observed.post(body, path)
    assert (last(observed).status, last(observed).outcome) == (status, outcome)


def test_a_path_cannot_begin_a_second_line(observed: Observed) -> None:
    observed.seen.clear()
    observed.get("/v1/models/a%0Ab%22c")
    assert "\n" not in text_line(last(observed))
    assert "\n" not in json_line(last(observed))


# Keys


def test_keys_can_be_replaced_while_the_gateway_runs() -> None:
    keys = Keys(("old",))
    before = keys.owner({"authorization": "Bearer old"})
    keys.replace(("old", "new"))
    assert keys.owner({"authorization": "Bearer old"}) == before
    assert keys.owner({"x-api-key": "new"}) != before
    assert "new" not in keys.owner({"x-api-key": "new"})


def test_serve_speaks_tls_logs_as_json_and_reads_its_keys_again(upstream: str, tmp_path: Path) -> None:
    import ssl

    cert, key = certificate(tmp_path)
    keys = tmp_path / "keys"
    keys.write_text("first\n", encoding="utf-8")
    with Running(
        *("--upstream", upstream, "--template", "qwen3.8-flash-next", "--api-key-file", str(keys)),
        *("--tls-cert", str(cert), "--tls-key", str(key), "--access-log", "json"),
    ) as gateway:
        url = gateway.facts()["url"]
        assert url.startswith("https://")
        trusted = ssl.create_default_context(cafile=str(cert))
        body = {"messages": [{"role": "user", "content": SECRET_TEXT}]}

        def status(key: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, verify=trusted, timeout=120)
            return answer.status_code

        assert status("first") == 200
        line = json.loads(gateway.wait_for('"status": 200'))
        assert line["completion_tokens"] == 2
        assert line["client"].startswith("key ")
        assert status("second") == 401
        keys.write_text("second\n", encoding="utf-8")
        gateway.process.send_signal(signal.SIGHUP)
        gateway.wait_for("SIGHUP: the API keys were read again")
        assert (status("first"), status("second")) == (401, 200)
        keys.write_text("# none\n", encoding="utf-8")
        gateway.process.send_signal(signal.SIGHUP)
        gateway.wait_for("SIGHUP: the old API keys stay in use")
        assert status("second") == 200
        assert SECRET_TEXT not in "".join(gateway.errors)


def test_a_key_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"\xef\xbb\xbffirst\r\nsecond\r\n")
    assert read_keys(None, tmp_path / "keys") == ("first", "second")


def test_sighup_while_the_gateway_starts_does_not_end_it() -> None:
    with Running("--upstream", "http://127.0.0.1:9", "--start-timeout", "100") as gateway:
        gateway.wait_for("waiting for a llama-server", 60)
        gateway.process.send_signal(signal.SIGHUP)
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(60) == 143


def test_a_sighup_noted_at_the_start_is_served_then(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "strata_pack.gateway")
    hung_up = threading.Event()
    hung_up.set()
    gateway = Gateway(SETTINGS, None)
    config = uvicorn_config(gateway)
    config.load()
    server = GatewayServer(config, gateway, partial(reread, config, Keys(()), None, None), hung_up=hung_up)
    server.lifespan = config.lifespan_class(config)
    asyncio.run(server.startup([]))
    assert "nothing to read again" in caplog.text


def test_serve_says_at_once_what_it_waits_for() -> None:
    with Running("--upstream", "http://127.0.0.1:9", "--start-timeout", "100") as gateway:
        line = gateway.wait_for("waiting for a llama-server", 60)
        assert "http://127.0.0.1:9" in line


@pytest.mark.parametrize(
    ("content", "words"), [("nonsense", "cannot be used"), (None, "no such file")], ids=["nonsense", "missing"]
)
def test_a_certificate_that_cannot_be_served_is_named(content: str | None, words: str, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    if content is None:
        cert.unlink()
    else:
        cert.write_text(content, encoding="utf-8")
    with pytest.raises(BadInput, match=words):
        Tls(cert, key).check()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--upstream", "http://127.0.0.1:1", "--tls-cert", "x"], "belong together"),
        (["DAMAGED"], "DAMAGED"),
        (["--upstream", "http://127.0.0.1:1", "--", "-ngl", "9"], "PACK"),
        (["GOOD", "--", "--port", "1"], "--port is set by the gateway"),
        (["GOOD", "--runtime", "embedded", "--", "--mlockk"], "does not support --mlockk"),
    ],
    ids=["half", "damaged", "upstream", "own", "embedded"],
)
def test_what_cannot_be_started_exits_with_2(options: list[str], words: str, tmp_path: Path, smollm2: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\x00" * 4)
    paths = {"DAMAGED": str(damaged), "GOOD": str(smollm2)}
    given = [paths.get(option, option) for option in options]
    done = run("serve", "--port", "0", *given)
    assert done.code == 2, done.err
    assert paths.get(words, words) in done.err
    assert "Traceback" not in done.err


def test_a_model_that_does_not_fit_in_memory_is_not_started(smollm2: Path) -> None:
    done = run("serve", smollm2, "--port", "0", "--context", "2000000000")
    assert done.code == 3, done.err
    assert "of KV cache and buffers" in done.err
    assert "--anyway" in done.err


def test_a_damaged_gguf_gets_the_sentence_of_inspect(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\x00" * 4)
    assert run("inspect", damaged).err == run("serve", "--port", "0", damaged).err != ""


# llama-server's own endpoints


def test_native_endpoints_are_shut_by_default(house: House) -> None:
    assert house.get("/props").status_code == 404
    assert house.post({"content": "x"}, "/tokenize").status_code == 404


def test_native_endpoints_are_passed_on_when_opened() -> None:
    with House(replace(SETTINGS, pass_native=True)) as house:
        assert house.post({"content": "tea"}, "/tokenize").json()["tokens"]
        assert house.get("/props").json()["total_slots"] == 4
        assert len(house.get("/slots").json()) == 4


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/rerank"])
def test_a_server_that_cannot_embed_says_so(path: str, house: House) -> None:
    answer = house.post({"input": "tea", "query": "tea", "documents": ["a"]}, path)
    assert answer.status_code == 501
    assert "embeddings" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank"])
def test_embeddings_and_ranks_are_passed_on(path: str, fresh_house: House) -> None:
    fresh_house.replay.embeds = True
    answer = fresh_house.post({"input": "tea"}, path)
    assert answer.status_code == 200
    assert answer.json()["asked"] == {"input": "tea"}
    assert fresh_house.totals()["requests_by_api"] == {path.rpartition("/")[2]: 1}


def test_the_log_of_the_gateway_and_the_access_log_are_two() -> None:
    assert logging.getLogger("strata_pack.access") is not logging.getLogger("strata_pack.gateway")
