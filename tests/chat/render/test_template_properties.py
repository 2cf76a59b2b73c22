"""What holds for every conversation, not only for the recorded ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata_pack.chat.engines.engines import Jinja2Engine, MinijinjaEngine
from strata_pack.chat.engines.server import LlamaServerEngine, serve_template
from strata_pack.chat.library import load_shipped
from strata_pack.chat.normalize import normalize_messages
from strata_pack.chat.render.template import ChatTemplate, TemplateRefused, in_thinking
from strata_pack.chat.repair.rules import heal

SOURCE = load_shipped("qwen3.8-flash-next").source
REPAIR_CALL = "      {{- close_thinking(turn) -}}\n"
UNREPAIRED = ChatTemplate(SOURCE.replace(REPAIR_CALL, ""))
TEMPLATE = ChatTemplate(SOURCE)

CALL = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
PIECES = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", CALL, f"\n{CALL}", f"\n{CALL}\n", "```", "~~~", "\n", "\n\n",
    " ", "prose", "é✅", "<tool_response>", "</tool_response>", "<|im_end|>",
]  # fmt: skip
TEXT = st.lists(st.sampled_from(PIECES), max_size=7).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abé"), inner, max_size=2),
    max_leaves=4,
)
PART = st.builds(lambda text: {"type": "text", "text": text}, TEXT)
CALLS = st.lists(
    st.builds(
        lambda arguments: {"type": "function", "function": {"name": "f", "arguments": arguments}},
        st.dictionaries(st.sampled_from(["a", "b"]), VALUES, max_size=2),
    ),
    max_size=2,
)
ASSISTANT = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": TEXT},
    optional={"reasoning_content": TEXT.filter(bool), "tool_calls": CALLS},
)
OTHER = st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": TEXT})
MESSAGES = st.builds(
    lambda system, turns: [*system, *turns],
    st.lists(
        st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["system", "developer"]), TEXT),
        max_size=2,
    ),
    st.lists(st.one_of(ASSISTANT, OTHER), min_size=1, max_size=5),
)
TOOLS = st.none() | st.just([{"type": "function", "function": {"name": "f", "description": "F", "parameters": {}}}])
VARIABLES = st.fixed_dictionaries(
    {"add_generation_prompt": st.booleans()},
    optional={
        "enable_thinking": st.booleans(),
        "preserve_thinking": st.booleans(),
        "reasoning_effort": st.sampled_from(["low", "medium", "high", "xhigh"]),
    },
)

EXAMPLES = settings(max_examples=120, derandomize=True, deadline=None)


@given(MESSAGES, TOOLS, VARIABLES)
@EXAMPLES
def test_repaired_is_unrepaired_on_the_healed_conversation(messages: list[Any], tools: Any, variables: Any) -> None:
    healed = [heal(message, "xml") for message in messages]
    assert TEMPLATE.render(messages, tools, **variables) == UNREPAIRED.render(healed, tools, **variables)


@given(MESSAGES, TOOLS, VARIABLES)
@EXAMPLES
def test_a_conversation_that_is_continued_is_not_repaired_at_its_end(
    messages: list[Any], tools: Any, variables: Any
) -> None:
    variables = {**variables, "continue_final_message": True}
    healed = [*(heal(message, "xml") for message in messages[:-1]), messages[-1]]
    assert TEMPLATE.render(messages, tools, **variables) == UNREPAIRED.render(healed, tools, **variables)


@given(MESSAGES, TOOLS, VARIABLES)
@EXAMPLES
def test_repair_is_idempotent(messages: list[Any], tools: Any, variables: Any) -> None:
    healed = [heal(message, "xml") for message in messages]
    assert TEMPLATE.render(healed, tools, **variables) == TEMPLATE.render(messages, tools, **variables)


@given(MESSAGES, TOOLS, VARIABLES)
@EXAMPLES
def test_minijinja_renders_the_same(messages: list[Any], tools: Any, variables: Any) -> None:
    pytest.importorskip("minijinja")
    inputs = {**variables, "messages": messages, **({"tools": tools} if tools else {})}
    assert MINIJINJA.render(SOURCE, inputs) == JINJA2.render(SOURCE, inputs)


JINJA2, MINIJINJA = Jinja2Engine(), MinijinjaEngine()


@pytest.fixture(scope="module")
def server_engine() -> Iterator[LlamaServerEngine]:
    with serve_template(SOURCE) as server:
        yield LlamaServerEngine(server)


@pytest.mark.xdist_group("template-server")
@given(MESSAGES, TOOLS, VARIABLES)
@settings(EXAMPLES, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_llama_server_renders_the_same(
    server_engine: LlamaServerEngine, messages: list[Any], tools: Any, variables: Any
) -> None:
    inputs = {**variables, "messages": messages, **({"tools": tools} if tools else {})}
    assert server_engine.render(SOURCE, inputs) == JINJA2.render(SOURCE, inputs)


@given(MESSAGES, TOOLS, VARIABLES)
@EXAMPLES
def test_generation_starts_in_thinking_exactly_if_thinking_is_on(
    messages: list[Any], tools: Any, variables: Any
) -> None:
    prompt = TEMPLATE.render(messages, tools, **{**variables, "add_generation_prompt": True})
    assert in_thinking(prompt) is (variables.get("enable_thinking") is not False)


WILD = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["assistant", "assistant", "user", "tool", "developer", None, 3]),
            "content": TEXT | VALUES | st.lists(PART, max_size=2),
            "reasoning_content": TEXT | VALUES,
            "reasoning": TEXT | VALUES,
            "tool_calls": CALLS | VALUES,
            "function_call": VALUES | st.just({"name": "f", "arguments": '{"a": 1'}),
        },
    ),
    min_size=1,
    max_size=4,
)
"""What a client might send."""


@given(WILD)
@EXAMPLES
def test_any_messages_are_normalized_once_and_for_all(messages: list[Any]) -> None:
    once = normalize_messages(messages)
    assert len(once) == len(messages)
    assert normalize_messages(once) == once


@given(WILD)
@EXAMPLES
def test_any_normalized_messages_render_or_are_refused_in_the_templates_words(messages: list[Any]) -> None:
    with contextlib.suppress(TemplateRefused):
        TEMPLATE.render(normalize_messages(messages))
