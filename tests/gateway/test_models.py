"""Several models: loaded once when asked for, pushed out, idle, dead, too large; who waits is served in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from strata_pack.gateway import models as module
from strata_pack.gateway.failures import ApiError
from strata_pack.gateway.models import Loaded, LoadingStopped, Models, ServedModel
from strata_pack.llama.server import StartFailed
from tests.gateway.machine import Machine, of

T = TypeVar("T")


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


def test_a_shutdown_while_a_model_loads_is_no_failure_of_the_model() -> None:
    def load() -> Loaded:
        raise LoadingStopped("the start was aborted")

    async def main() -> None:
        model = Models(1).add("a", load)
        with pytest.raises(ApiError, match="the gateway is shutting down"):
            await use(model)

    run(main())


def test_clients_do_not_get_the_paths_and_the_log_of_a_server_that_did_not_start() -> None:
    def load() -> Loaded:
        raise StartFailed("model", "the server cannot load the model", "SECRET", where=Path("/home/me"), remedy=None)

    async def main() -> None:
        with pytest.raises(ApiError, match="cannot load the model") as caught:
            await use(Models(1).add("a", load))
        assert "SECRET" not in str(caught.value)
        assert "/home/me" not in str(caught.value)

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
