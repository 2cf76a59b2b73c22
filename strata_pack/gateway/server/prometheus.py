"""The metrics as Prometheus text: the same numbers as ``/metrics``, with model and quant as labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from strata_pack.gateway.admission import Admission
from strata_pack.gateway.metrics import COUNTS, TOKENS, Histogram, Metrics
from strata_pack.gateway.settings import Served

CONTENT_TYPE = CONTENT_TYPE_LATEST

HELP = {
    "requests": "Requests that ended.",
    "tool_calls": "Calls delivered to clients.",
    "cancelled": "Requests whose client went away.",
    "implicit_reasoning_ends": "Replies whose thinking was ended by a tool call written inside it.",
    "implicit_calls": "Calls delivered from inside the thinking.",
    "stranded_calls": "Complete calls that stayed reasoning (fenced, indented, mid-line ...).",
    "unfinished_calls": "Calls that the output cut, or that can be read in two ways.",
    "undeclared_calls": "Calls of a function that the request did not declare.",
    "coercion_failures": "Arguments that do not fit their declared type.",
    "dropped_text": "Remarks between the tags of delivered calls, which were dropped.",
    "suspect_values": "Strings in delivered calls that hold a tag of a call on a line of its own.",
    "ended_inside_thinking": "Replies that ended inside the thinking, without an answer.",
    "budget_closed": "Replies whose thinking was closed because its budget was spent.",
    "prompt_tokens": "Tokens of prompts.",
    "cached_tokens": "Tokens of prompts that the server's cache saved.",
    "tokens_read_again": "Tokens of prompts that the server had to read.",
    "completion_tokens": "Tokens generated.",
    "reasoning_tokens": "Tokens generated as thinking.",
}


MetricsSource = tuple[Metrics, Admission, Served]
"""The metrics source of one model."""


class _Collector:
    def __init__(self, sources: Sequence[MetricsSource], front: Metrics | None) -> None:
        self._refused = {} if front is None else front.totals()["errors"]
        self._sources = [
            (metrics, admission, (served.model, served.quant), metrics.totals())
            for metrics, admission, served in sources
        ]

    def collect(self) -> Iterator[Metric]:
        for name in ("requests", "tool_calls", "cancelled", *COUNTS, *TOKENS):
            family = CounterMetricFamily(f"strata_{name}", HELP[name], labels=LABELS)
            for _, _, labels, totals in self._sources:
                family.add_metric(labels, totals[name])
            yield family
        for name, label, text in (
            ("rejected_candidates", "reason", "Tags in the thinking that were judged to be no call."),
            ("left_out", "what", "Tools, items, blocks and media that the model was not shown."),
            ("errors", "kind", "Requests that got an error."),
        ):
            family = CounterMetricFamily(f"strata_{name}", text, labels=(*LABELS, label))
            for _, _, labels, totals in self._sources:
                for word, count in totals[name].items():
                    family.add_metric((*labels, word), count)
            if name == "errors":
                for word, count in self._refused.items():
                    family.add_metric((*NO_MODEL, word), count)
            yield family
        for name, text, read in GAUGES:
            gauge = GaugeMetricFamily(f"strata_{name}", text, labels=LABELS)
            for metrics, admission, labels, _ in self._sources:
                gauge.add_metric(labels, read(metrics, admission))
            yield gauge
        for name, text, histogram in HISTOGRAMS:
            measured = HistogramMetricFamily(f"strata_{name}", text, labels=LABELS)
            for metrics, _, labels, _ in self._sources:
                measured.add_metric(labels, histogram(metrics).buckets(), histogram(metrics).sum)
            yield measured


LABELS = ("model", "quant")
NO_MODEL = ("", "")
"""Labels of requests that reached no model."""

GAUGES: tuple[tuple[str, str, Callable[[Metrics, Admission], float]], ...] = (
    ("running_requests", "Requests that run or wait.", lambda metrics, _: len(metrics.running)),
    ("busy_slots", "Slots that generate.", lambda _, admission: admission.busy),
    ("slots", "Slots there are.", lambda _, admission: admission.parallel),
    ("queued_requests", "Requests that wait for a slot.", lambda _, admission: admission.waiting),
    ("start_time_seconds", "When the gateway started, in Unix time.", lambda metrics, _: metrics.started),
)
HISTOGRAMS: tuple[tuple[str, str, Callable[[Metrics], Histogram]], ...] = (
    ("request_duration_seconds", "Seconds from request to end.", lambda metrics: metrics.durations),
    ("time_to_first_token_seconds", "Seconds from request to first token.", lambda metrics: metrics.first_tokens),
)


def prometheus_text(sources: Sequence[MetricsSource], front: Metrics | None = None) -> bytes:
    """Return the Prometheus text of all models; ``front`` are the metrics of requests that reached no model."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(sources, front))
    return generate_latest(registry)
