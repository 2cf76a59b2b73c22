"""Several models: loaded once when asked for, pushed out, idle, dead, too large; who waits is served in the end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import httpx2 as httpx
import pytest
import uvicorn
from prometheus_client.parser import text_string_to_metric_families

from strata_pack.chat.library import load_shipped
from strata_pack.chat.render.template import ChatTemplate
from strata_pack.errors import EnvironmentFailure
from strata_pack.gateway import models as module
from strata_pack.gateway.control_tokens import ControlTokens
from strata_pack.gateway.engine import RunningModel
from strata_pack.gateway.failures import ApiError
from strata_pack.gateway.fleet import Fleet
from strata_pack.gateway.models import Loaded, Models, NoMemory, ServedModel
from strata_pack.gateway.prompt import Prompts
from strata_pack.gateway.server.run import uvicorn_config
from strata_pack.gateway.service import Gateway
from strata_pack.gateway.settings import Served
from strata_pack.gateway.upstream import Upstream
from tests.gateway.conftest import CONTROL, SETTINGS, TEMPLATE_ID, House, events

T = TypeVar("T")


@dataclass
class Process:
    """A server that is running or not."""

    running: bool = True

    def stop(self) -> None:
        self.running = False


@dataclass
class Machine:
    """Where models are loaded: how long it takes, what room there is, and what was loaded."""

    url: str = "http://127.0.0.1:9"
    seconds: float = 0.0
    room: int = 100
    failing: set[str] = field(default_factory=set)
    processes: dict[str, list[Process]] = field(default_factory=dict)

    def running(self) -> list[str]:
        return [name for name, made in self.processes.items() if any(one.running for one in made)]

    def load(self, name: str) -> Loaded:
        time.sleep(self.seconds)
        if name in self.failing:
            raise EnvironmentFailure("the server cannot load the model", where=name)
        if len(self.running()) >= self.room:
            raise NoMemory("there is not enough memory")
        process = Process()
        self.processes.setdefault(name, []).append(process)
        upstream = Upstream(self.url)
        prompts = Prompts(ChatTemplate(load_shipped(TEMPLATE_ID).source), ControlTokens(CONTROL, guess=False), upstream)
        return Loaded(process, RunningModel(upstream, prompts, served=Served(name, quant="Q4")))


def of(machine: Machine, *names: str, most: int = 100, idle: float | None = None) -> tuple[Models, list[ServedModel]]:
    models = Models(most, idle)
    return models, [models.add(name, lambda name=name: machine.load(name)) for name in names]


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 60))


async def use(model: ServedModel, until: asyncio.Event | None = None, held: asyncio.Event | None = None) -> str:
    async with model.hold() as engine:
        if held is not None:
            held.set()
        if until is not None:
            await until.wait()
        return engine.served.model


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_many_first_requests_at_once_load_a_model_once() -> None:
    async def main() -> None:
        machine = Machine(seconds=0.05)
        _, (model,) = of(machine, "a")
        assert await asyncio.gather(*(use(model) for _ in range(20))) == ["a"] * 20
        assert len(machine.processes["a"]) == 1

    run(main())


def test_a_request_that_leaves_does_not_stop_the_loading_for_others() -> None:
    async def main() -> None:
        machine = Machine(seconds=0.1)
        _, (model,) = of(machine, "a")
        first, second = asyncio.create_task(use(model)), asyncio.create_task(use(model))
        await asyncio.sleep(0.02)
        first.cancel()
        assert await second == "a"
        assert model.waiting == 0

    run(main())


def test_the_model_used_longest_ago_makes_room() -> None:
    async def main() -> None:
        machine = Machine()
        _, (a, b, c) = of(machine, "a", "b", "c", most=2)
        for model in (a, b, a, c):
            await use(model)
        assert machine.running() == ["a", "c"]

    run(main())


def test_a_model_that_has_to_go_ends_its_requests_first_and_comes_back_for_those_that_wait() -> None:
    async def main() -> None:
        machine = Machine()
        _, (a, b) = of(machine, "a", "b", most=1)
        done, held = asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(use(a, done, held))
        await held.wait()
        other = asyncio.create_task(use(b))
        await until(lambda: a.state == "leaving")
        late = asyncio.create_task(use(a))
        await asyncio.sleep(0.02)
        assert not other.done()
        assert machine.running() == ["a"]
        done.set()
        assert await asyncio.gather(running, other, late) == ["a", "b", "a"]
        assert machine.running() == ["a"]

    run(main())


def test_models_that_take_turns_all_answer() -> None:
    async def main() -> None:
        machine = Machine(seconds=0.001)
        models, made = of(machine, "a", "b", "c", most=1)
        got = await asyncio.gather(*(use(made[number % 3]) for number in range(30)))
        assert got == ["abc"[number % 3] for number in range(30)]
        assert len(machine.running()) == 1
        await models.close()
        assert machine.running() == []

    run(main())


def test_an_idle_model_is_unloaded_and_loaded_again() -> None:
    async def main() -> None:
        machine = Machine()
        _, (model,) = of(machine, "a", idle=0.05)
        await use(model)
        await until(lambda: machine.running() == [])
        assert await use(model) == "a"

    run(main())


def test_a_model_in_use_is_not_idle() -> None:
    async def main() -> None:
        _, (model,) = of(Machine(), "a", idle=0.02)
        done, held = asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(use(model, done, held))
        await held.wait()
        await asyncio.sleep(0.1)
        assert model.state == "loaded"
        done.set()
        await running

    run(main())


def test_a_server_that_died_is_started_again_by_the_next_request() -> None:
    async def main() -> None:
        machine = Machine()
        _, (model,) = of(machine, "a")
        await use(model)
        machine.processes["a"][0].running = False
        assert await use(model) == "a"
        assert len(machine.processes["a"]) == 2

    run(main())


def test_a_model_that_does_not_load_is_a_503_for_all_that_wait_and_others_go_on() -> None:
    async def main() -> None:
        machine = Machine(failing={"a"})
        _, (a, b) = of(machine, "a", "b")
        got = await asyncio.gather(use(a), use(a), use(b), return_exceptions=True)
        assert [isinstance(one, ApiError) and one.status for one in got] == [503, 503, False]
        assert "cannot load the model" in str(got[0])

    run(main())


def test_a_model_that_did_not_load_is_tried_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FAILED_SECONDS", 0.05)

    async def main() -> None:
        machine = Machine(failing={"a"})
        _, (model,) = of(machine, "a")
        with pytest.raises(ApiError):
            await use(model)
        machine.failing.clear()
        await asyncio.sleep(0.06)
        assert await use(model) == "a"

    run(main())


def test_where_memory_does_not_suffice_another_model_goes() -> None:
    async def main() -> None:
        machine = Machine(room=1)
        _, (a, b) = of(machine, "a", "b")
        assert [await use(a), await use(b)] == ["a", "b"]
        assert machine.running() == ["b"]

    run(main())


def test_a_model_that_is_too_large_by_itself_is_a_503() -> None:
    async def main() -> None:
        _, (model,) = of(Machine(room=0), "a")
        with pytest.raises(ApiError, match="not enough memory") as caught:
            await use(model)
        assert caught.value.status == 503

    run(main())


# Behind one gateway


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
