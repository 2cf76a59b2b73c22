"""A large request is rendered beside the event loop, so that the streams of others go on."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from strata_pack.gateway.aside import LARGE
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
    render = house.gateway.prompts.render

    def watched(turn: Turn) -> Prompt:
        threads.append(threading.get_ident())
        return render(turn)

    async def build() -> Any:
        await house.gateway.prompts.build(turn)
        return threading.get_ident()

    monkeypatch.setattr(house.gateway.prompts, "render", watched)
    assert (house.call(build()) not in threads) is beside
