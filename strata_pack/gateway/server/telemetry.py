"""OpenTelemetry: a span and a few metrics for every request, configured by the standard environment variables.

Nothing runs unless one of the exporter variables is set. A span is created when its request has ended, with
its recorded times, so nothing here runs per token; the exporter sends in a separate thread.
Sources: OpenTelemetry, "Environment Variable Specification"; semantic conventions for HTTP and for generative AI.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strata_pack.errors import WrongUse
from strata_pack.extras import missing
from strata_pack.gateway.server.about import ABOUT
from strata_pack.gateway.server.access import Access, Sink
from strata_pack.gateway.server.generate import GENERATING, NATIVE

STARTS = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_TRACES_EXPORTER",
    "OTEL_METRICS_EXPORTER",
)
"""Variables that enable telemetry."""

log = logging.getLogger("strata_pack.gateway")

END_SECONDS = 3.0
"""Seconds for the last data at the end."""

SERVICE = "strata-pack"
PROTOCOL = "http/protobuf"
OPERATIONS: Mapping[str, str] = {"completions": "text_completion", "embeddings": "embeddings"}
OTHER_ROUTE = "{other}"
ROUTES = frozenset(route.path for route in (*GENERATING, *NATIVE, *ABOUT))
SECONDS = "s"
TOKENS = "{token}"


def telemetry(environment: Mapping[str, str] = os.environ) -> tuple[list[Sink], Callable[[], None]]:
    """Return the sinks configured by the environment, and a function that sends the rest at the end.

    Raises ``EnvironmentFailure`` if telemetry is enabled and packages are missing, ``WrongUse`` for an unknown exporter
    or protocol.
    """
    wanted = any(environment.get(name, "").strip() for name in STARTS)
    if not wanted or environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return [], lambda: None
    exporters = {
        signal: environment.get(f"OTEL_{signal}_EXPORTER", "").strip().lower() or "otlp"
        for signal in ("TRACES", "METRICS")
    }
    for signal, exporter in exporters.items():
        if exporter not in ("otlp", "console", "none"):
            raise WrongUse(
                f"OTEL_{signal}_EXPORTER={exporter} is not supported", remedy="set it to otlp, console or none"
            )
        names = (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        protocol = next((environment[name] for name in names if environment.get(name)), PROTOCOL)
        if exporter == "otlp" and protocol != PROTOCOL:
            raise WrongUse(
                f"the protocol {protocol} of OTEL_EXPORTER_OTLP_PROTOCOL is not supported",
                remedy=f"set it to {PROTOCOL}",
            )
    try:
        return _set_up(exporters["TRACES"], exporters["METRICS"])
    except ModuleNotFoundError as error:
        raise missing(str(error.name), "otel", "telemetry (OTEL_* is set)") from error


def _set_up(traces: str, metrics: str) -> tuple[list[Sink], Callable[[], None]]:
    from opentelemetry.sdk.resources import Resource

    # The resource reads OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES itself, and they take precedence.
    resource = Resource({"service.name": SERVICE}).merge(Resource.create())
    if resource.attributes["service.name"] == "unknown_service":
        resource = resource.merge(Resource({"service.name": SERVICE}))
    sinks: list[Sink] = []
    ends: list[Callable[[], Any]] = []
    for make, exporter in ((_tracing, traces), (_measuring, metrics)):
        if exporter != "none":
            sink, end = make(exporter, resource)
            sinks.append(sink)
            ends.append(end)

    def end_all() -> None:
        if not end_within(ends, END_SECONDS):
            log.warning("telemetry: the collector did not take the last data within %g s; they are lost", END_SECONDS)

    return sinks, end_all


def end_within(ends: Sequence[Callable[[], Any]], seconds: float) -> bool:
    """Run all of ``ends`` at once, for ``seconds`` at most; return whether they have ended.

    An exporter sends its last data again and again if the collector does not answer, longer than a service may take to
    stop.
    """
    threads = [threading.Thread(target=end, daemon=True) for end in ends]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


def _tracing(exporter: str, resource: Any) -> tuple[Sink, Callable[[], Any]]:
    from opentelemetry.propagate import extract
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
    from opentelemetry.trace import SpanKind, Status, StatusCode

    target: SpanExporter
    if exporter == "otlp":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        target = OTLPSpanExporter()
    else:
        target = ConsoleSpanExporter()
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(target))
    tracer = provider.get_tracer("strata_pack.gateway")

    def sink(access: Access) -> None:
        span = tracer.start_span(
            f"{access.method} {_route(access)}",
            context=extract({"traceparent": access.traceparent}) if access.traceparent else None,
            kind=SpanKind.SERVER,
            start_time=int(access.at * 1e9),
            attributes=_attributes(access),
        )
        if access.record is not None and access.record.time_to_first_token is not None:
            first = access.record.started_at + access.record.time_to_first_token
            span.add_event("first token", timestamp=int(first * 1e9))
        if access.status >= 500 or access.outcome not in ("ok", "cancelled"):
            span.set_status(Status(StatusCode.ERROR, access.outcome))
            span.set_attribute("error.type", access.outcome)
        span.end(int((access.at + access.seconds) * 1e9))

    return sink, provider.shutdown


def _measuring(exporter: str, resource: Any) -> tuple[Sink, Callable[[], Any]]:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, MetricExporter, PeriodicExportingMetricReader

    target: MetricExporter
    if exporter == "otlp":
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        target = OTLPMetricExporter()
    else:
        target = ConsoleMetricExporter()
    provider = MeterProvider([PeriodicExportingMetricReader(target)], resource=resource, shutdown_on_exit=False)
    meter = provider.get_meter("strata_pack.gateway")
    requests = meter.create_histogram("http.server.request.duration", SECONDS, "Duration of a request.")
    durations = meter.create_histogram("gen_ai.server.request.duration", SECONDS, "Duration of a generation.")
    firsts = meter.create_histogram("gen_ai.server.time_to_first_token", SECONDS, "Time to the first token.")
    usage = meter.create_histogram("gen_ai.client.token.usage", TOKENS, "Tokens read and generated.")
    calls = meter.create_counter("strata.tool_calls", "{call}", "Tool calls delivered.")
    ends = meter.create_counter(
        "strata.implicit_reasoning_ends", "{reply}", "Replies that a call ended the thinking of."
    )

    def sink(access: Access) -> None:
        http: dict[str, Any] = {
            "http.request.method": access.method,
            "http.route": _route(access),
            "http.response.status_code": access.status,
        }
        if access.outcome != "ok":
            http["error.type"] = access.outcome
        requests.record(access.seconds, http)
        record = access.record
        if record is None:
            return
        model = {"gen_ai.operation.name": _operation(record.api), "gen_ai.request.model": access.model}
        durations.record(access.seconds, model if access.outcome == "ok" else {**model, "error.type": access.outcome})
        if record.time_to_first_token is not None:
            firsts.record(record.time_to_first_token, model)
        usage.record(record.prompt_tokens, {**model, "gen_ai.token.type": "input"})
        usage.record(record.completion_tokens, {**model, "gen_ai.token.type": "output"})
        calls.add(record.tool_calls, model)
        ends.add(record.implicit_reasoning_ends, model)

    return sink, provider.shutdown


def _operation(api: str) -> str:
    return OPERATIONS.get(api, "chat")


def _route(access: Access) -> str:
    """Return the route of a request without client-chosen parts, so that the number of routes stays small."""
    if access.path in ROUTES:
        return access.path
    parts = access.path.split("/")
    known = len(parts) > 3 and parts[1] == "v1" and parts[2] in ("models", "responses") and parts[3] != "input_tokens"
    return "/".join([*parts[:3], "{id}", *parts[4:5]]) if known else OTHER_ROUTE


def _attributes(access: Access) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "http.request.method": access.method,
        "http.response.status_code": access.status,
        "url.path": access.path[:200],
        "http.route": _route(access),
        "strata.request_id": access.request_id,
        "strata.outcome": access.outcome,
    }
    record = access.record
    if record is not None:
        attributes |= {
            "gen_ai.operation.name": _operation(record.api),
            "gen_ai.request.model": access.model,
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.completion_tokens,
            "strata.cached_tokens": record.cached_tokens,
            "strata.reasoning_tokens": record.reasoning_tokens,
            "strata.tool_calls": record.tool_calls,
            "strata.implicit_reasoning_ends": record.implicit_reasoning_ends,
            "strata.queued_seconds": record.queued,
        }
        if record.finish_reason:
            attributes["gen_ai.response.finish_reasons"] = [record.finish_reason]
    return attributes
