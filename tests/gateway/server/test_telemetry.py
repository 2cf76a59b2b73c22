"""OpenTelemetry: nothing is sent without its variables, spans and metrics reach a collector."""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx2 as httpx
import pytest

from strata_pack.errors import EnvironmentFailure, WrongUse
from strata_pack.gateway.server.telemetry import end_within, telemetry
from tests.gateway.server.running import SECRET_TEXT, Running


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


def test_a_collector_that_does_not_answer_holds_up_the_end_only_for_a_moment() -> None:
    answered = threading.Event()
    assert not end_within([answered.wait, lambda: None], 0.01)
    answered.set()
    assert end_within([answered.wait], 60)


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
        assert httpx.get(f"{url}/scan/12345", timeout=120).status_code == 404
    collector.shutdown()
    collector.server_close()
    got: dict[str, bytes] = dict(collector.got)  # type: ignore[attr-defined]
    traces = ExportTraceServiceRequest.FromString(got["/v1/traces"])
    spans = {span.name: span for span in traces.resource_spans[0].scope_spans[0].spans}
    assert spans.keys() == {"POST /v1/chat/completions", "GET {other}"}
    span = spans["POST /v1/chat/completions"]
    assert span.trace_id.hex() == parent
    attributes = {one.key: one.value for one in span.attributes}
    assert attributes["gen_ai.usage.output_tokens"].int_value == 2
    service = {one.key: one.value.string_value for one in traces.resource_spans[0].resource.attributes}
    assert service["service.name"] == "tea-room"
    metrics = ExportMetricsServiceRequest.FromString(got["/v1/metrics"])
    names = {metric.name for scope in metrics.resource_metrics[0].scope_metrics for metric in scope.metrics}
    assert {"http.server.request.duration", "gen_ai.server.time_to_first_token", "gen_ai.client.token.usage"} <= names
    assert all(SECRET_TEXT.encode() not in data for data in got.values())
