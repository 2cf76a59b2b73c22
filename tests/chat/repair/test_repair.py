"""Other people's templates get history repair in front, and nothing is returned that is not proved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.chat.engines.engines import Engine, Jinja2Engine, MinijinjaEngine, available_engines
from strata_pack.chat.library import load_shipped
from strata_pack.chat.render.template import ChatTemplate, TemplateError, TemplateRefused
from strata_pack.chat.repair.prelude import prelude
from strata_pack.chat.repair.proof import Baseline, Difference, baseline, prove_repair
from strata_pack.chat.repair.repair import RepairRefused, RepairResult, call_form, diff, repair_template
from strata_pack.chat.repair.rules import CallForm, heal, heal_conversation
from strata_pack.chat.repair.suite import Conversation, generate
from strata_pack.chat.repair.turns import CONTROLS, HEALTHY, STRANDED

pytestmark = pytest.mark.xdist_group("repair")

ROOT = Path(__file__).parents[3]
STOCK = ROOT / "tests/data/chat/stock"
REPAIR_CASES = json.loads((ROOT / "golden/qwen3.8-flash-next/repair.json").read_text(encoding="utf-8"))
FORMS: dict[str, CallForm] = {"qwen3_like": "json", "coder_like": "xml", "qwen35_like": "xml", "qwen38_like": "xml"}
ENGINES = (Jinja2Engine(), MinijinjaEngine())
ON_ALL_ENGINES = ("qwen3_like", "qwen38_like")
"""One template for each form of calls: its repair is proved on every engine that is installed."""


def stock(name: str) -> str:
    return (STOCK / f"{name}.jinja").read_text(encoding="utf-8")


@cache
def engine_of(kind: type[Engine], source: str) -> Engine:  # noqa: ARG001
    """An engine that has nothing else to render, for each compiles its template anew when it changes."""
    return kind()


def cases() -> list[dict[str, Any]]:
    return REPAIR_CASES["cases"] if isinstance(REPAIR_CASES, dict) else REPAIR_CASES


@pytest.fixture(scope="module")
def results() -> dict[str, RepairResult]:
    return {name: repair_template(stock(name), None if name in ON_ALL_ENGINES else ENGINES) for name in FORMS}


@pytest.fixture(scope="module")
def repaired(results: dict[str, RepairResult]) -> dict[str, str]:
    return {name: result.text for name, result in results.items()}


@pytest.mark.parametrize("name", FORMS)
def test_a_stock_template_is_repaired(name: str, results: dict[str, RepairResult]) -> None:
    result = results[name]
    assert (result.changed, result.how, result.proof.form) == (True, "prelude", FORMS[name])
    engines = [engine.name for engine in (available_engines() if name in ON_ALL_ENGINES else ENGINES)]
    assert [proof.engine for proof in result.proof.engines] == engines
    assert all(proof.unchanged > 100 and proof.closed > 150 for proof in result.proof.engines)


@pytest.mark.parametrize("name", FORMS)
def test_the_stock_template_is_unchanged_after_the_prelude(name: str, repaired: dict[str, str]) -> None:
    assert repaired[name] == prelude(FORMS[name]) + stock(name)
    changed = [line for line in diff(stock(name), repaired[name]).splitlines()[2:] if line.startswith("-")]
    assert changed == []


@pytest.mark.parametrize("name", ON_ALL_ENGINES)
def test_repairing_twice_changes_nothing(name: str, repaired: dict[str, str]) -> None:
    again = repair_template(repaired[name], ENGINES)
    assert (again.changed, again.text, again.how) == (False, repaired[name], "not needed")


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["name"])
@pytest.mark.parametrize("name", ["qwen35_like", "qwen38_like", "coder_like"])
def test_a_case_renders_as_if_its_call_stood_in_the_content(
    name: str, case: dict[str, Any], repaired: dict[str, str]
) -> None:
    healed = heal_conversation(case["messages"], FORMS[name], case["kwargs"])
    for kind in (Jinja2Engine, MinijinjaEngine):
        wanted = engine_of(kind, stock(name)).render(stock(name), {**case["kwargs"], "messages": healed})
        inputs = {**case["kwargs"], "messages": case["messages"]}
        assert engine_of(kind, repaired[name]).render(repaired[name], inputs) == wanted


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["name"])
def test_the_rules_touch_what_the_specification_repairs_and_nothing_else(case: dict[str, Any]) -> None:
    healed = heal_conversation(case["messages"], "xml", case["kwargs"])
    assert (healed != case["messages"]) == (not case["name"].startswith("control"))


@cache
def shipped() -> ChatTemplate:
    return ChatTemplate(load_shipped("qwen3.8-flash-next").source)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["name"])
def test_the_rules_say_what_the_shipped_template_renders(case: dict[str, Any]) -> None:
    tools = case.get("tools")
    healed = heal_conversation(case["messages"], "xml", case["kwargs"])
    assert shipped().render(healed, tools, **case["kwargs"]) == case["expected"]


def test_with_dropped_thinking_the_call_survives_without_it(repaired: dict[str, str]) -> None:
    call = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
    messages = [
        {"role": "user", "content": "One."},
        {"role": "assistant", "content": "", "reasoning_content": f"Just ask.\n\n{call}"},
        {"role": "user", "content": "Two."},
    ]
    prompt = ChatTemplate(repaired["qwen3_like"]).render(messages)
    assert f"<|im_start|>assistant\n{call}<|im_end|>" in prompt
    assert "Just ask." not in prompt
    assert call not in ChatTemplate(stock("qwen3_like")).render(messages)


FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "<function=f>", "</function>", "{", "}", "<think>", "<function="),
    *("```", "~~~ x", "````", "  ```", "\t~~~", "", "  ", "prose", "ünïcode 你好"),
    *(" <tool_call>", "<tool_call> ", "`<tool_call>`", "> <tool_call>"),
]
LINES = st.lists(st.sampled_from(FRAGMENTS), max_size=9).map("\n".join)
CALLS = st.sampled_from(["<tool_call>\n<function=f>\n</function>\n</tool_call>", "<tool_call>\n{}\n</tool_call>"])
HAYS = st.one_of(LINES, st.builds("{}\n{}".format, LINES, CALLS), st.builds("{}\n{}\n\n{}".format, LINES, CALLS, CALLS))
CONTENTS = st.one_of(
    st.none(),
    HAYS,
    HAYS.map("<think>\n{}".format),
    st.tuples(HAYS, HAYS).map(lambda two: [{"type": "text", "text": text} for text in two]),
)
TURNS = st.fixed_dictionaries(
    {"role": st.sampled_from(["assistant", "user"]), "content": CONTENTS},
    optional={
        "reasoning_content": st.one_of(st.none(), HAYS, st.just("a</think>b\n<tool_call>\n{}\n</tool_call>")),
        "tool_calls": st.sampled_from([None, [], [{"function": {"name": "g"}}]]),
    },
)
SHOWN = "{{ messages|tojson }}"


@pytest.mark.parametrize("form", ["xml", "json"])
@settings(max_examples=150, deadline=None, derandomize=True)
@given(messages=st.lists(TURNS, min_size=1, max_size=4), continued=st.booleans())
def test_the_prelude_does_to_any_messages_what_the_rules_do(
    form: CallForm, messages: list[dict[str, Any]], continued: bool
) -> None:
    variables = {"continue_final_message": continued}
    wanted = heal_conversation(messages, form, variables)
    for kind in (Jinja2Engine, MinijinjaEngine):
        engine = engine_of(kind, prelude(form) + SHOWN)
        assert json.loads(engine.render(prelude(form) + SHOWN, {**variables, "messages": messages})) == wanted


@pytest.mark.parametrize(
    "body", ["\n{{ messages|length }}", "text {{ messages|length }}", " \n x", "{#- c -#} y", "", "\n\n"]
)
def test_what_a_template_begins_with_reaches_the_prompt_as_before(body: str) -> None:
    messages = [{"role": "user", "content": "x"}]
    for engine in ENGINES:
        assert engine.render(prelude("xml") + body, {"messages": messages}) == engine.render(
            body, {"messages": messages}
        )


@pytest.mark.parametrize("messages", [None, "text", {"a": 1}, 5, ["text", 3, None, {}], [{"role": "assistant"}]])
def test_the_prelude_leaves_absurd_messages_to_the_template(messages: Any) -> None:
    for engine in ENGINES:
        shown = engine.render(prelude("json") + SHOWN, {"messages": messages})
        assert json.loads(shown) == messages


def test_the_prelude_holds_no_tag_by_which_an_engine_guesses_a_family() -> None:
    for form in ("xml", "json"):
        text = prelude(form)
        assert not [tag for tag in ("<think>", "</think>", "<tool_call>", "<function=", "<parameter=") if tag in text]


def test_calls_of_another_form_are_refused_by_naming_what_is_missing() -> None:
    with pytest.raises(RepairRefused, match=r"lacks calls of a known form .*\[TOOL_CALLS\]NAME"):
        repair_template(stock("other_calls"))


def test_a_template_that_writes_no_calls_needs_no_repair() -> None:
    result = repair_template(stock("no_calls"))
    assert (result.changed, result.how, result.why) == (False, "not needed", "it writes no tool calls")


def test_the_shipped_template_needs_no_repair() -> None:
    result = repair_template(shipped().source, ENGINES)
    assert (result.changed, result.why) == (False, "it closes every stranded call already")


def test_a_template_that_loses_the_call_all_the_same_is_refused_with_the_first_difference() -> None:
    with pytest.raises(RepairRefused) as refused:
        repair_template(stock("cuts_answers"), ENGINES)
    difference = refused.value.difference
    assert difference is not None
    assert (difference.engine, difference.stranded) == ("jinja2", True)
    assert difference.problem == "the call is not in the prompt"
    assert refused.value.exit_code == 2


def test_a_template_that_does_not_compile_is_an_error_with_its_line() -> None:
    with pytest.raises(TemplateError, match="line 2"):
        repair_template("fine\n{% if %}")


class NeverRenders:
    """An engine that takes no conversation: what a proof would have to show, it cannot."""

    name, version, known_as = "never", "1", ()

    def render(self, source: str, inputs: Mapping[str, Any]) -> str:  # noqa: ARG002
        raise TemplateRefused("no")


def test_an_engine_that_renders_nothing_proves_nothing() -> None:
    with pytest.raises(RepairRefused, match="renders no conversation with"):
        repair_template(stock("qwen38_like"), [Jinja2Engine(), NeverRenders()])


CONTINUED = "not (loop.last and continue_final_message is defined and continue_final_message)"
ENDED = "{%- set strata.running = false -%}\n          {%- if"
RESET = "{%- set strata.lines = [] -%}\n"
SABOTAGE = {
    "fences are not seen": ("{%- set strata.fence = '```' -%}", ""),
    "indented tags count": ("strata_line == strata.call and", "strata_line|trim == strata.call and"),
    "prose after a call does not matter": (ENDED, "{%- if"),
    "closed thinking is repaired": (" and strata.closing not in strata.hay", ""),
    "declared calls do not matter": (" and not strata_turn.tool_calls -%}", " -%}"),
    "continued turns are repaired": (CONTINUED, "true"),
    "users are repaired": ("strata_turn.role == 'assistant'", "true"),
    "only the last messages are kept": ("strata.messages[:loop.index0] + ", ""),
    "the thinking before the call is lost": ("'reasoning_content': strata_before", "'reasoning_content': ''"),
    "shape A is forgotten": ("strata.text.startswith(strata.opening)", "false"),
    "the body of a call is not looked at": (" and loop.nextitem.startswith(strata.body)", ""),
    "media are lost": ("strata.plain and strata.hay.endswith", "strata.hay.endswith"),
    "something is printed": (RESET, RESET.rstrip() + "{{ '' if loop.first else ' ' }}\n"),
}


@pytest.fixture(scope="module")
def suite() -> list[Conversation]:
    return generate("xml")


@pytest.fixture(scope="module")
def base(suite: list[Conversation]) -> Baseline:
    return baseline(stock("qwen38_like"), Jinja2Engine(), suite)


@pytest.mark.parametrize("fault", SABOTAGE)
def test_the_proof_finds_a_prelude_that_is_wrong(fault: str, base: Baseline) -> None:
    before, after = SABOTAGE[fault]
    assert before in prelude("xml")
    wrong = prelude("xml").replace(before, after) + stock("qwen38_like")
    assert isinstance(prove_repair(base, wrong), Difference)


def test_the_suite_is_the_same_every_time_and_covers_every_kind(suite: list[Conversation]) -> None:
    assert generate("xml") == suite
    assert len({one.name for one in suite}) == len(suite)
    for kind, stranded in [*((k, False) for k in (*HEALTHY, *CONTROLS)), *((k, True) for k in STRANDED)]:
        named = [one for one in suite if one.name.startswith(f"{kind}, ") and "continued" not in one.name]
        assert len(named) >= 4
        assert {one.stranded for one in named} == {stranded}


@pytest.mark.parametrize("form", ["xml", "json"])
def test_the_suite_holds_what_the_proof_is_about(form: CallForm) -> None:
    suite = generate(form)
    variables = [one.variables for one in suite]
    for name, value in (("enable_thinking", False), ("preserve_thinking", False), ("continue_final_message", True)):
        assert any(one.get(name) is value for one in variables)
    assert {one.tools is None for one in suite} == {True, False}
    roles = {message["role"] for one in suite for message in one.messages}
    assert roles == {"system", "user", "assistant", "tool"}


def test_healing_is_idempotent_and_keeps_the_message_it_does_not_touch() -> None:
    turn = {"role": "assistant", "content": "", "reasoning_content": "x\n<tool_call>\n{}\n</tool_call>", "name": "n"}
    healed = heal(turn, "json")
    assert healed == {**turn, "reasoning_content": "x", "content": "<tool_call>\n{}\n</tool_call>"}
    assert heal(healed, "json") is healed
    assert heal(turn, "xml") is turn


@pytest.mark.parametrize(
    ("name", "form"), [("qwen3_like", "json"), ("coder_like", "xml"), ("no_calls", None), ("cuts_answers", "json")]
)
def test_the_form_of_the_calls_is_what_the_template_renders(name: str, form: CallForm | None) -> None:
    engine: Engine = Jinja2Engine()
    assert call_form(stock(name), engine) == form


def test_a_long_history_of_stranded_turns_renders_within_the_limits(repaired: dict[str, str]) -> None:
    call = "<tool_call>\n<function=f>\n<parameter=text>\n" + "line\n" * 300 + "</parameter>\n</function>\n</tool_call>"
    turn = {"role": "assistant", "content": "", "reasoning_content": f"Thinking.\n{call}"}
    messages = [{"role": "user", "content": "Go."}, turn] * 150
    prompt = ChatTemplate(repaired["qwen38_like"]).render(messages)
    assert prompt.count(f"<think>\nThinking.\n</think>\n\n{call}<|im_end|>") == 150
