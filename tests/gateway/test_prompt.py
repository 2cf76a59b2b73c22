"""A large request is rendered beside the event loop, so that the streams of others go on."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from strata_pack.gateway.offload import LARGE, weight
from strata_pack.gateway.prompt import Prompt
from strata_pack.gateway.turn import Turn
from tests.gateway.conftest import House, tool

USER = {"role": "user", "content": "Hi"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"text": "x" * LARGE}}}


@pytest.mark.parametrize(
    ("turn", "beside"),
    [
        (Turn([USER]), False),
        (Turn([{"role": "user", "content": "x" * LARGE}]), True),
        (Turn([USER, {"role": "assistant", "content": "", "reasoning_content": "x" * LARGE}, USER]), True),
        (Turn([USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, USER]), True),
        (Turn([USER] * 10_000), True),
        (Turn([USER], tools=[tool(f"t{number}") for number in range(3000)]), True),
    ],
    ids=["small", "content", "reasoning", "arguments", "many messages", "many tools"],
)
def test_what_is_large_is_rendered_in_another_thread(
    turn: Turn, beside: bool, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    render = house.gateway.engine.prompts.render

    def watched(turn: Turn) -> Prompt:
        threads.append(threading.get_ident())
        return render(turn)

    async def build() -> Any:
        await house.gateway.engine.prompts.build(turn)
        return threading.get_ident()

    monkeypatch.setattr(house.gateway.engine.prompts, "render", watched)
    assert (house.call(build()) not in threads) is beside


@pytest.mark.parametrize(
    "value",
    [
        "x" * (LARGE + 1),
        {"x" * (LARGE + 1): 1},
        [{"a": [{"b": "x" * (LARGE + 1)}]}],
        [0] * 10_000,
        [[]] * 10_000,
        dict.fromkeys(map(str, range(10_000))),
        [{"role": "user"}] * 10_000,
    ],
    ids=["text", "key", "inside", "numbers", "lists", "fields", "messages"],
)
def test_what_is_large_weighs_much(value: Any) -> None:
    assert weight("x", value) > LARGE


def test_a_value_weighs_about_its_characters() -> None:
    assert LARGE // 2 < weight({"a": ["x" * (LARGE // 2)]}) < LARGE // 2 + 1000
    assert weight([USER] * 100, None, {}, 5) < 30_000


def test_what_is_large_is_not_looked_at_to_its_end() -> None:
    class Messages(list[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("was looked at")

    assert weight(Messages([USER] * 100_000)) > LARGE
