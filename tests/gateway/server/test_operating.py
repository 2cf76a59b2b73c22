"""What an operator has: an access log without content, telemetry, keys that change, TLS, native endpoints."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from strata_pack.errors import BadInput, EnvironmentFailure, WrongUse
from strata_pack.gateway.server.access import Access, json_line, text_line
from strata_pack.gateway.server.keys import Keys
from strata_pack.gateway.server.listening import Tls
from strata_pack.gateway.server.telemetry import telemetry
from tests.e2e.command import run
from tests.gateway.conftest import SETTINGS, House
from tests.gateway.replay import ReplayServer
from tests.gateway.server.served import COMMAND

SECRET_TEXT = "squeezed tea"


class Observed(House):
    """A gateway whose finished requests are kept in ``seen``."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.seen: list[Access] = []

    def config_of(self, gateway: Any) -> Any:
        from strata_pack.gateway.server.run import uvicorn_config

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


@pytest.fixture
def upstream() -> Iterator[str]:
    """A replaying upstream in a thread of its own."""
    loop = asyncio.new_event_loop()
    server = ReplayServer()
    url = loop.run_until_complete(server.start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield url
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


class Running:
    """``strata-pack serve`` before a replaying upstream; ``errors`` are the lines on stderr so far."""

    def __init__(self, *options: str, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [COMMAND, "serve", *options, "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.errors: list[str] = []
        self._said = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def facts(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        text = ""
        for line in self.process.stdout:
            text += line
            if line.rstrip() == "}":
                break
        value: dict[str, Any] = json.loads(text)
        return value

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._said:
                self.errors.append(line)
                self._said.notify_all()

    def wait_for(self, words: str, seconds: float = 30.0) -> str:
        with self._said:
            found = self._said.wait_for(lambda: any(words in line for line in self.errors), seconds)
            assert found, "".join(self.errors)
            return next(line for line in self.errors if words in line)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._reader.join(30)
        self.process.stdout.close()
        self.process.stderr.close()


def certificate(folder: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate for 127.0.0.1 and its key."""
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "gateway")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    cert_path, key_path = folder / "cert.pem", folder / "key.pem"
    cert_path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )  # fmt: skip
    return cert_path, key_path


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
        gateway.wait_for("SIGHUP: keys")
        assert (status("first"), status("second")) == (401, 200)
        keys.write_text("# none\n", encoding="utf-8")
        gateway.process.send_signal(signal.SIGHUP)
        gateway.wait_for("what held before still holds")
        assert status("second") == 200
        assert SECRET_TEXT not in "".join(gateway.errors)


def test_serve_says_at_once_what_it_waits_for() -> None:
    with Running("--upstream", "http://127.0.0.1:9", "--start-timeout", "100") as gateway:
        line = gateway.wait_for("waiting for a llama-server", 60)
        assert "http://127.0.0.1:9" in line


@pytest.mark.parametrize(
    ("content", "words"), [("nonsense", "cannot be served"), (None, "no such file")], ids=["nonsense", "missing"]
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
        (["GOOD", "--", "--port", "1"], "the gateway's own matter"),
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


# OpenTelemetry


def test_without_its_variables_nothing_is_sent() -> None:
    assert telemetry({})[0] == []
    assert telemetry({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"})[0] == []
    assert telemetry({"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"})[0] == []


@pytest.mark.parametrize(
    "environment",
    [{"OTEL_TRACES_EXPORTER": "jaeger"}, {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}],
)
def test_an_exporter_that_is_not_known_is_named(environment: dict[str, str]) -> None:
    with pytest.raises(WrongUse, match="OTEL_"):
        telemetry(environment)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(EnvironmentFailure, match="needs the package") as caught:
        telemetry({"OTEL_TRACES_EXPORTER": "console"})
    assert "[otel]" in str(caught.value)


class _Collector(BaseHTTPRequestHandler):
    """Takes what an exporter of OTLP over HTTP sends."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append((self.path, body))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_spans_and_metrics_reach_a_collector(upstream: str) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    collector = HTTPServer(("127.0.0.1", 0), _Collector)
    collector.got = []  # type: ignore[attr-defined]
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        "OTEL_SERVICE_NAME": "tea-room",
    }
    parent = "4bf92f3577b34da6a3ce929d0e0e4736"
    with Running("--upstream", upstream, "--template", "qwen3.8-flash-next", environment=environment) as gateway:
        url = gateway.facts()["url"]
        body = {"messages": [{"role": "user", "content": SECRET_TEXT}]}
        headers = {"traceparent": f"00-{parent}-00f067aa0ba902b7-01"}
        assert httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=120).status_code == 200
    collector.shutdown()
    collector.server_close()
    got: dict[str, bytes] = dict(collector.got)  # type: ignore[attr-defined]
    traces = ExportTraceServiceRequest.FromString(got["/v1/traces"])
    (span,) = traces.resource_spans[0].scope_spans[0].spans
    assert span.name == "POST /v1/chat/completions"
    assert span.trace_id.hex() == parent
    attributes = {one.key: one.value for one in span.attributes}
    assert attributes["gen_ai.usage.output_tokens"].int_value == 2
    service = {one.key: one.value.string_value for one in traces.resource_spans[0].resource.attributes}
    assert service["service.name"] == "tea-room"
    metrics = ExportMetricsServiceRequest.FromString(got["/v1/metrics"])
    names = {metric.name for scope in metrics.resource_metrics[0].scope_metrics for metric in scope.metrics}
    assert {"http.server.request.duration", "gen_ai.server.time_to_first_token", "gen_ai.client.token.usage"} <= names
    assert all(SECRET_TEXT.encode() not in data for data in got.values())


def test_the_log_of_the_gateway_and_the_access_log_are_two() -> None:
    assert logging.getLogger("strata_pack.access") is not logging.getLogger("strata_pack.gateway")
