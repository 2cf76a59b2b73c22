"""The scenarios' data: whole, well-formed, and read right by the parser in either form, without any server."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_pack.chat.render.template import ChatTemplate
from strata_pack.chat.repair.rules import heal_conversation
from strata_pack.parsing import OutputParser
from strata_pack.smoke.call_support import beginning, call_support
from strata_pack.smoke.data_files import call_text, failures, fill, fill_messages, form_of, mentions, read, read_text
from strata_pack.smoke.generation import CALL_FORMATS, grammar_of, literal, long_text
from strata_pack.smoke.history import assistant_turns, faults
from strata_pack.smoke.offline import OFFLINE
from strata_pack.smoke.registry import SCENARIO_FUNCTIONS
from strata_pack.smoke.scenario import scenarios

FORMS = ("xml", "json")
CALL = {"name": "run_code", "arguments": {"code": "print(1)", "timeout": 5}}


def test_every_scenario_has_a_play_and_every_play_a_scenario():
    assert [scenario.id for scenario in scenarios() if "file" in scenario.needs] == list(OFFLINE)
    assert {scenario.id for scenario in scenarios()} == {*SCENARIO_FUNCTIONS, *OFFLINE}


def test_every_scenario_says_what_it_proves_and_what_is_expected_of_either_template():
    for scenario in scenarios():
        assert scenario.proves
        assert scenario.stock
        assert scenario.repaired
        assert scenario.limit_seconds > 0
        assert ("native" in scenario.needs) != ("public" in scenario.needs)


def test_there_are_four_failures_and_ten_mentions():
    assert (len(failures("xml")), len(mentions("xml"))) == (4, 10)


@pytest.mark.parametrize("form", FORMS)
def test_no_two_replays_are_the_same_text(form):
    texts = [replay.text for replay in (*failures(form), *mentions(form))]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chunk", [1, 7, 10_000])
def test_the_parser_reads_every_replay_as_the_data_says(form, chunk):
    for replay in (*failures(form), *mentions(form)):
        parser = OutputParser(thinking=True, tools=read("tools"), call_format=CALL_FORMATS[form])
        events = [
            event
            for start in range(0, len(replay.text), chunk)
            for event in parser.feed(replay.text[start : start + chunk])
        ]
        events += parser.finish()
        got = {
            "reasoning": "".join(event.text for event in events if event.kind == "reasoning"),
            "content": "".join(event.text for event in events if event.kind == "content"),
            "calls": [
                {"name": event.call.name, "arguments": event.call.arguments}
                for event in events
                if event.kind == "tool_call"
            ],
        }
        assert got == replay.expected(), replay.id


def test_a_call_is_written_in_either_form():
    assert call_text(CALL, "xml") == (
        "<tool_call>\n<function=run_code>\n<parameter=code>\nprint(1)\n</parameter>\n"
        "<parameter=timeout>\n5\n</parameter>\n</function>\n</tool_call>"
    )
    assert call_text(CALL, "json") == (
        '<tool_call>\n{"name": "run_code", "arguments": {"code": "print(1)", "timeout": 5}}\n</tool_call>'
    )


def test_places_are_filled_with_prefixes_other_forms_and_openings():
    assert fill("{{call 0|> }}", [CALL], "json").split("\n")[0] == "> <tool_call>"
    assert fill("{{other 0}}", [CALL], "json") == call_text(CALL, "xml")
    assert fill("{{opening 0}}", [CALL], "xml").endswith("<parameter=code>\nprint(1)")


def test_a_literal_is_escaped_for_the_grammar():
    assert literal('a"\n\\') == '"a\\"\\n\\\\"'
    assert grammar_of("x") == 'root ::= "x"'


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("run", ["#" * 80, "-" * 64, "= " * 8, "-"])
def test_the_long_argument_is_64_kib_in_numbered_blocks(form, run):
    _, whole, argument = long_text(form, run)
    assert 64 << 10 <= len(argument) < 66 << 10
    assert argument in whole
    assert [argument.index(f"{number:05d}:") for number in range(8)] == sorted(
        argument.index(f"{number:05d}:") for number in range(8)
    )


@pytest.mark.parametrize("form", FORMS)
def test_the_control_template_is_of_its_form_and_shows_every_fault(form):
    source = read_text(f"stock.{form}.jinja")
    assert form_of(source) == form
    template = ChatTemplate(source)
    for case in read("histories"):
        messages = [
            {key: fill(value, case["calls"], form) if isinstance(value, str) else value for key, value in entry.items()}
            for entry in case["messages"]
        ]
        prompt = template.render(messages, add_generation_prompt=True, **case["variables"])
        (turn, *_) = assistant_turns(prompt)
        assert faults(turn, case["calls"], form), case["scenario"]


@pytest.mark.parametrize("form", FORMS)
def test_every_history_has_a_healthy_form(form):
    for case in read("histories"):
        messages = fill_messages(case["messages"], case["calls"], form)
        (healthy,) = [m for m in heal_conversation(messages, form, case["variables"]) if m not in messages]
        assert all(call_text(call, form) in healthy["content"] for call in case["calls"]), case["scenario"]
        assert "<tool_call>" not in healthy["reasoning_content"]


STOCK = Path(__file__).parents[1] / "data/chat/stock"


@pytest.mark.parametrize(
    ("name", "form", "calls"),
    [
        *(("qwen3_like", "json", True), ("coder_like", "xml", True), ("qwen35_like", "xml", True)),
        *(("no_calls", "xml", False), ("other_calls", "json", False)),
    ],
)
def test_whether_a_template_writes_calls_is_read_off_what_it_renders(name, form, calls):
    support = call_support((STOCK / f"{name}.jinja").read_text())
    assert (support.calls, bool(support.missing)) == (calls, not calls)
    assert not calls or support.form == form


def test_a_model_without_a_template_has_no_calls():
    assert call_support("").missing


@pytest.mark.parametrize(
    ("prompt", "begins"),
    [
        ("<|im_start|>assistant\n<think>\n", ""),
        ("<|im_start|>assistant\n", "<think>\n"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "<think>\n"),
    ],
)
def test_a_reply_opens_the_thinking_where_the_prompt_does_not(prompt, begins):
    assert beginning(prompt) == begins


@pytest.mark.parametrize(
    ("turn", "found"),
    [
        ("<think>\na\n</think>\n\n{{call 0}}", []),
        ("{{call 0}}", []),
        ("<think>\na\n\n{{call 0}}\n</think>\n\n", ["the call of run_code is inside the thinking"]),
        (
            "<think>\na\n\n{{call 0}}",
            ["the call of run_code is inside the thinking", "the thinking is never closed"],
        ),
        ("<think>\na\n</think>\n\n", ["the call of run_code is gone"]),
        ("", ["the call of run_code is gone"]),
    ],
)
def test_faults_of_a_turn_are_named(turn, found):
    assert faults(fill(turn, [CALL], "xml"), [CALL], "xml") == found


def test_a_turn_that_is_being_generated_is_no_history():
    assert assistant_turns("<|im_start|>assistant\na<|im_end|>\n<|im_start|>assistant\n<think>\n") == ["a"]
