"""The metrics as Prometheus text: the same numbers as ``/metrics``, with model and quant as labels."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from strata_pack.gateway.admission import Admission
from strata_pack.gateway.metrics import COUNTS, TOKENS, Metrics
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


class _Collector:
    def __init__(self, metrics: Metrics, admission: Admission, served: Served) -> None:
        self._metrics = metrics
        self._admission = admission
        self._labels = {"model": served.model, "quant": served.quant}

    def collect(self) -> Iterator[Metric]:
        names = tuple(self._labels)
        values = tuple(self._labels.values())
        totals = self._metrics.totals()
        for name in ("requests", "tool_calls", "cancelled", *COUNTS, *TOKENS):
            family = CounterMetricFamily(f"strata_{name}", HELP[name], labels=names)
            family.add_metric(values, totals[name])
            yield family
        for name, label, text in (
            ("rejected_candidates", "reason", "Tags in the thinking that were judged to be no call."),
            ("left_out", "what", "Tools, items, blocks and media that the model was not shown."),
            ("errors", "kind", "Requests that got an error."),
        ):
            family = CounterMetricFamily(f"strata_{name}", text, labels=(*names, label))
            for word, count in totals[name].items():
                family.add_metric((*values, word), count)
            yield family
        for name, text, value in (
            ("running_requests", "Requests that run or wait.", len(self._metrics.running)),
            ("busy_slots", "Slots that generate.", self._admission.busy),
            ("slots", "Slots there are.", self._admission.parallel),
            ("queued_requests", "Requests that wait for a slot.", self._admission.waiting),
            ("start_time_seconds", "When the gateway started, in Unix time.", self._metrics.started),
        ):
            gauge = GaugeMetricFamily(f"strata_{name}", text, labels=names)
            gauge.add_metric(values, value)
            yield gauge
        for name, text, histogram in (
            ("request_duration_seconds", "Seconds from request to end.", self._metrics.durations),
            ("time_to_first_token_seconds", "Seconds from request to first token.", self._metrics.first_tokens),
        ):
            measured = HistogramMetricFamily(f"strata_{name}", text, labels=names)
            measured.add_metric(values, histogram.buckets(), histogram.sum)
            yield measured


def prometheus_text(metrics: Metrics, admission: Admission, served: Served) -> bytes:
    """Return the exposition of all metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(metrics, admission, served))
    return generate_latest(registry)
