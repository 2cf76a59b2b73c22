"""What operators see: totals, the last requests, Prometheus text, the log line, the dashboard."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

import strata_pack.gateway.server
from strata_pack.gateway.metrics import HISTORY, Metrics, RequestRecord
from strata_pack.gateway.server.prometheus import HELP
from tests.gateway.conftest import IMPLICIT, LIST_JOBS, LOOKUP, House

BODY = {"messages": [{"role": "user", "content": "Hi"}]}


def test_totals_and_requests_tell_the_same(fresh_house: House) -> None:
    house = fresh_house
    house.chat(IMPLICIT, tools=[LIST_JOBS])
    house.chat("`<tool_call>` is a tag.\n    <tool_call>\n</think>\n\nok", tools=[LIST_JOBS])
    house.chat("</think>\n\n<tool_call>\n<function=nope>\n</function>\n</tool_call>", tools=[LIST_JOBS])
    bad = "<tool_call>\n<function=lookup>\n<parameter=limit>\nmany\n</parameter>\n</function>\n</tool_call>"
    house.chat(f"</think>\n\n{bad}", tools=[LOOKUP])
    house.chat("only thinking")
    assert house.post({"messages": 5}).status_code == 400
    seen = house.get("/metrics").json()
    totals = seen["totals"]
    assert totals["requests"] == 5
    assert totals["implicit_reasoning_ends"] == totals["implicit_calls"] == 1
    assert totals["undeclared_calls"] == 1
    assert totals["coercion_failures"] == 1
    assert totals["ended_inside_thinking"] == 1
    assert totals["tool_calls"] == 3
    assert sum(totals["rejected_candidates"].values()) == 2
    assert totals["errors"] == {"bad_request": 1}
    assert len(seen["requests"]) == 5
    newest = seen["requests"][0]
    assert newest["ended_inside_thinking"] == 1
    assert newest["outcome"] == "ok"
    assert newest["finish_reason"] == "stop"
    assert 0 < newest["time_to_first_token"] <= newest["duration"]
    assert newest["tokens_read_again"] == newest["prompt_tokens"] > 0
    for name in ("implicit_calls", "completion_tokens", "prompt_tokens"):
        assert sum(request[name] for request in seen["requests"]) == totals[name]


def test_only_the_last_requests_are_kept_newest_first() -> None:
    metrics = Metrics()
    for number in range(HISTORY + 50):
        record = RequestRecord(str(number), "chat")
        metrics.start(record)
        metrics.end(record, "ok")
        metrics.end(record, "ok")
    shown = metrics.to_dict()
    assert shown["totals"]["requests"] == HISTORY + 50
    assert len(shown["requests"]) == HISTORY
    assert shown["requests"][0]["id"] == str(HISTORY + 49)


def test_two_requests_with_one_id_at_a_time_are_both_counted() -> None:
    metrics = Metrics()
    records = [RequestRecord("same", "chat"), RequestRecord("same", "chat")]
    for record in records:
        metrics.start(record)
    for record in records:
        metrics.end(record, "ok")
    assert metrics.totals()["requests"] == 2


@pytest.mark.parametrize(
    "accept", ["application/json, text/plain, */*", "text/plain;q=0", "*/*", "text/html", "text/plain;q=x"]
)
def test_metrics_are_json_unless_text_is_preferred(accept: str, house: House) -> None:
    answer = house.get("/metrics", headers={"accept": accept})
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("path", "accept"),
    [
        ("/metrics", "text/plain;version=0.0.4"),
        ("/metrics", "TEXT/PLAIN"),
        ("/metrics", "text/plain, application/json"),
        ("/metrics", "application/openmetrics-text"),
        ("/metrics", "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.1"),
        ("/metrics/prometheus", "*/*"),
    ],
)
def test_prometheus_text_parses_and_has_the_labels(path: str, accept: str, house: House) -> None:
    house.chat(IMPLICIT, tools=[LIST_JOBS])
    answer = house.get(path, headers={"accept": accept})
    assert answer.headers["content-type"].startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    samples = families["strata_implicit_reasoning_ends"].samples
    assert samples[0].labels == {"model": "test-model", "quant": "Q4_K_M"}
    assert samples[0].value == house.totals()["implicit_reasoning_ends"]
    reasons = {sample.labels["reason"] for sample in families["strata_rejected_candidates"].samples}
    assert reasons == {"mid_line", "indented", "fenced", "quoted", "no_function"}
    buckets = [s.value for s in families["strata_request_duration_seconds"].samples if s.name.endswith("_bucket")]
    assert buckets == sorted(buckets)
    assert {f"strata_{name}" for name in HELP} <= set(families)
    assert openmetrics is not None


def test_a_failure_is_counted_once(fresh_house: House) -> None:
    fresh_house.says("x", error={"code": 503, "message": "Loading model"}, status=503)
    assert fresh_house.post(BODY).status_code == 503
    assert fresh_house.totals()["errors"] == {"upstream_loading": 1}


def test_json_is_the_default(house: House) -> None:
    assert house.get("/metrics", headers={"accept": "text/html,*/*"}).json()["totals"]


def test_an_implicit_end_is_logged_with_the_request_id(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "strata_pack.gateway")
    house.says(IMPLICIT)
    house.post({**BODY, "tools": [LIST_JOBS]}, headers={"x-request-id": "req-77"})
    assert (
        "[strata] implicit end of thinking: 1 tool call(s) written inside the thinking without </think> "
        "were read as calls" in caplog.text
    )
    assert "req-77" in caplog.text


def test_a_suspect_value_is_counted_and_logged_by_its_name_alone(
    fresh_house: House, caplog: pytest.LogCaptureFixture
) -> None:
    call = (
        "<tool_call>\n<function=lookup>\n<parameter=limit>\n3\n</parameter>\n"
        "<parameter=q>\nsecret\n</parameter>\nmore\n</parameter>\n</function>\n</tool_call>"
    )
    caplog.set_level(logging.INFO, "strata_pack.gateway")
    fresh_house.chat(f"</think>\n\n{call}", tools=[LOOKUP])
    assert fresh_house.get("/metrics").json()["totals"]["suspect_values"] == 1
    assert "the value of parameter 'q' holds a tag of a tool call" in caplog.text
    assert "secret" not in caplog.text


def test_the_live_data_have_the_text_before_an_implicit_end(fresh_house: House) -> None:
    fresh_house.chat(IMPLICIT, tools=[LIST_JOBS])
    (end,) = fresh_house.get("/v1/live").json()["implicit_ends"]
    assert end["text"] == "Go.\n\n"
    assert end["calls"] == ["list_jobs"]


def test_the_dashboard_asks_for_metrics_that_there_are(house: House) -> None:
    folder = Path(strata_pack.gateway.server.__file__).parent
    dashboard = json.loads((folder / "grafana.json").read_text(encoding="utf-8"))
    text = house.get("/metrics/prometheus").text
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) > 15
    import re

    names = {name for expression in expressions for name in re.findall(r"strata_\w+", expression)}
    known = set(re.findall(r"^# TYPE (\w+)", text, re.M))
    assert {re.sub(r"_bucket$", "", name) for name in names} <= known
    assert house.get("/grafana.json").json() == dashboard
