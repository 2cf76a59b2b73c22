"""One gateway serves several models: it chooses by name, waits for loading, and counts each model apart."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2 as httpx
import pytest
import uvicorn
from prometheus_client.parser import text_string_to_metric_families

from strata_pack.gateway.fleet import Fleet
from strata_pack.gateway.server.run import uvicorn_config
from strata_pack.gateway.service import Gateway
from strata_pack.gateway.settings import Served
from tests.gateway.conftest import SETTINGS, House, events
from tests.gateway.machine import Machine, of


class Several(House):
    """Two models of one gateway; ``machine`` loads them, both before the replaying upstream."""

    def config_of(self, gateway: Gateway) -> uvicorn.Config:
        del gateway
        self.machine = Machine(self.upstream_url)
        models, made = of(self.machine, "tea", "coffee", most=1)
        self.models = models
        gateways: list[Gateway] = []
        for model in made:
            settings = replace(SETTINGS, served=Served(model.name), limits=replace(SETTINGS.limits, ping_seconds=0.05))
            store = gateways[0].store if gateways else None
            gateways.append(Gateway(settings, None, host=model, store=store))
        self.fleet = Fleet(gateways)
        return uvicorn_config(self.fleet)


@pytest.fixture
def several() -> Iterator[Several]:
    with Several() as house:
        yield house


def ask(house: House, name: Any, **fields: Any) -> httpx.Response:
    return house.post({"model": name, "messages": [{"role": "user", "content": "Hi"}], **fields})


def test_the_name_decides_which_model_answers(several: Several) -> None:
    for name in ("tea", "coffee", "tea"):
        assert ask(several, name).json()["model"] == name
    assert [len(several.machine.processes[name]) for name in ("tea", "coffee")] == [2, 1]


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/embeddings", {"input": "Hi"}),
    ],
)
def test_an_unknown_name_is_a_404_with_the_names_there_are(path: str, more: Any, several: Several) -> None:
    answer = several.post({"model": "water", **more}, path)
    assert answer.status_code == 404
    assert "tea, coffee" in answer.json()["error"]["message"]
    assert several.machine.running() == []


def test_no_name_means_the_first_model(several: Several) -> None:
    assert ask(several, None).json()["model"] == "tea"


def test_all_models_are_listed_with_their_state(several: Several) -> None:
    ask(several, "coffee")
    listed = several.get("/v1/models").json()["data"]
    assert [(one["id"], one["state"]) for one in listed] == [("tea", "unloaded"), ("coffee", "loaded")]
    assert several.get("/v1/models/coffee").json()["id"] == "coffee"
    assert several.get("/v1/models/water").status_code == 404
    assert [one["model"] for one in several.get("/v1/status").json()["models"]] == ["tea", "coffee"]
    assert several.get("/health").status_code == 200


def test_a_stream_waits_for_its_model_with_pings(several: Several) -> None:
    several.machine.seconds = 0.4
    answer = ask(several, "tea", stream=True)
    assert answer.status_code == 200
    assert answer.text.startswith(": still working")
    assert events(answer.text)[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {}),
        ("/v1/chat/completions", {"stream": True}),
        ("/v1/messages/count_tokens", {}),
        ("/v1/completions", {"prompt": "Hi"}),
    ],
)
def test_a_request_that_a_dead_server_never_got_is_sent_to_the_next_one(path: str, more: Any, several: Several) -> None:
    several.machine.dying = 1
    answer = several.post({"model": "tea", "messages": [{"role": "user", "content": "Hi"}], **more}, path)
    assert answer.status_code == 200
    assert "error" not in answer.text
    assert len(several.machine.processes["tea"]) == 2


def test_streams_of_two_models_at_once_both_end(several: Several) -> None:
    answers: dict[str, httpx.Response] = {}

    def one(name: str) -> None:
        answers[name] = ask(several, name, stream=True)

    threads = [threading.Thread(target=one, args=(name,)) for name in ("tea", "coffee")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert {name: answer.text.rstrip().endswith("data: [DONE]") for name, answer in answers.items()} == {
        "tea": True,
        "coffee": True,
    }


def test_metrics_are_reported_per_model_and_in_total(several: Several) -> None:
    for name in ("tea", "tea", "coffee"):
        ask(several, name)
    ask(several, "water")
    shown = several.get("/metrics").json()
    assert {name: one["requests"] for name, one in shown["models"].items()} == {"tea": 2, "coffee": 1}
    assert shown["totals"]["requests"] == 3
    assert shown["totals"]["errors"] == {"no_model": 1}
    families = {one.name: one for one in text_string_to_metric_families(several.get("/metrics/prometheus").text)}
    counted = {sample.labels["model"]: sample.value for sample in families["strata_requests"].samples}
    assert counted == {"tea": 2.0, "coffee": 1.0}
    (refused,) = families["strata_errors"].samples
    assert (refused.labels["model"], refused.labels["kind"], refused.value) == ("", "no_model", 1.0)


def test_a_response_of_one_model_goes_on_with_another(several: Several) -> None:
    first = several.post({"model": "tea", "input": "Green or black?"}, "/v1/responses").json()
    body = {"model": "coffee", "input": "And milk?", "previous_response_id": first["id"]}
    assert several.post(body, "/v1/responses").status_code == 200
    assert "Green or black?" in several.prompt


def test_a_model_that_does_not_load_is_a_503_with_its_reason(several: Several) -> None:
    several.machine.failing = {"tea"}
    answer = ask(several, "tea")
    assert answer.status_code == 503
    assert "cannot load the model" in answer.json()["error"]["message"]
    assert ask(several, "coffee").status_code == 200
