"""Families with other tags: calls, budgets, grammars and histories follow the tags of the chat template."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from strata_pack.chat.render.template import ChatTemplate
from strata_pack.gateway.control_tokens import ControlTokens
from strata_pack.gateway.prompt import Prompts
from strata_pack.gateway.server.run import make_gateway
from strata_pack.gateway.service import Gateway
from strata_pack.gateway.turn import Turn
from strata_pack.gateway.upstream import Upstream
from strata_pack.parsing import DIALECTS, Dialect
from tests.gateway.conftest import SETTINGS, House
from tests.gateway.grammar.test_grammar import CALLS, MODE
from tests.gateway.replay import prompt_text

TOOL = {"type": "function", "function": {"name": "f", "parameters": MODE}}
ASK = {"messages": [{"role": "user", "content": "x"}]}


def template_of(dialect: Dialect) -> str:
    """Return a chat template that teaches ``dialect`` and leaves the thinking open."""
    thinking = f"{{% if m.reasoning_content %}}{dialect.think_open}{{{{ m.reasoning_content }}}}{dialect.think_close}"
    turn = f"[{{{{ m.role }}}}]{thinking}{{% endif %}}{{{{ m.content }}}}"
    begin = f"{dialect.generation_mark}\n{dialect.think_open}\n"
    return f"{{# {dialect.signs[0]} #}}{{% for m in messages %}}{turn}{{% endfor %}}{begin}"


class FamilyHouse(House):
    """A gateway before a server whose template speaks ``dialect``."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__()
        self.dialect = dialect
        self.call = CALLS[dialect.name]
        self.replay.props["chat_template"] = template_of(dialect)

    async def make(self) -> Gateway:
        return await asyncio.to_thread(make_gateway, await self.replay.start(), SETTINGS)

    def message(self, *texts: str | list[str], **fields: Any) -> dict[str, Any]:
        """Return the message of the reply whose completions generate ``texts``."""
        for text in texts:
            self.says(text)
        answer = self.post({**ASK, **fields})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["choices"][0]["message"]
        return found

    def asked(self) -> str:
        """Return the end of the last prompt."""
        return prompt_text(self.replay.bodies[-1]["prompt"])


@pytest.fixture(scope="module", params=DIALECTS.values(), ids=lambda dialect: dialect.name)
def family(request: Any) -> Iterator[FamilyHouse]:
    with FamilyHouse(request.param) as house:
        yield house


@pytest.mark.parametrize("closed", [True, False], ids=["after the thinking", "inside the thinking"])
def test_a_call_is_delivered(family: FamilyHouse, closed: bool) -> None:
    end = f"{family.dialect.think_close}\n\n" if closed else "\n"
    message = family.message(f"Hm.\n{end}{family.call}", tools=[TOOL])
    assert message["reasoning_content"].strip() == "Hm."
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"mode": "on"}'}


def test_a_demanded_call_has_the_grammar_of_the_family_after_the_thinking(family: FamilyHouse) -> None:
    close = family.dialect.think_close
    message = family.message(f"Hm.{close}", family.call, tools=[TOOL], tool_choice="required")
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["f"]
    assert close in family.replay.bodies[-2]["stop"]
    assert family.dialect.call_open in family.replay.bodies[-1]["grammar"]
    assert family.asked().endswith(f"Hm.{close}\n\n")


def test_a_spent_budget_closes_the_thinking_with_the_family_s_tag(family: FamilyHouse) -> None:
    message = family.message(["a"] * 20, "Fine.", reasoning_budget=3)
    assert message["content"] == "Fine."
    assert family.asked().endswith(f"aaa\n{family.dialect.think_close}\n\n")


def test_a_json_answer_comes_after_the_thinking(family: FamilyHouse) -> None:
    texts = (f"Hm.{family.dialect.think_close}", '{"a":1}')
    assert family.message(*texts, response_format={"type": "json_object"})["content"] == '{"a":1}'


def test_a_call_inside_the_thinking_of_the_history_is_closed(family: FamilyHouse) -> None:
    turn = {"role": "assistant", "content": f"{family.dialect.think_open}\nGo.\n\n{family.call}"}
    family.message("Hm.", messages=[*ASK["messages"], turn, {"role": "user", "content": "y"}])
    assert f"{family.dialect.think_open}Go.{family.dialect.think_close}{family.call}" in family.asked()


@pytest.mark.parametrize("guess", [False, True])
def test_the_model_s_own_tags_are_tags_where_they_are_control_tokens(guess: bool) -> None:
    dialect = DIALECTS["seed-oss"]
    control = ControlTokens([] if guess else [dialect.call_open, "<seed:eos>"], guess=guess)
    prompts = Prompts(ChatTemplate(template_of(dialect)), control, Upstream("http://127.0.0.1:1"))

    def pieces(role: str, text: str) -> int:
        return len(prompts.render(Turn([{"role": role, "content": text}])).pieces)

    assert pieces("assistant", f"a {dialect.call_open} b") == 1
    assert pieces("user", f"a {dialect.call_open} b") == 2
    assert pieces("assistant", "a <seed:eos> b") == 2
