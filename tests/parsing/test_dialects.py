"""Families with other letters: the same machine, the same promises."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.parsing import DIALECTS, Dialect, DialectName, OutputParser, dialect_of, parse, thinking_open
from tests.parsing.data import read_object
from tests.parsing.invariants import check
from tests.parsing.pieces import pieces_of

DATA = read_object("dialects.json")
TOOLS = DATA["tools"]
CASES = [(name, case) for name, cases in DATA["dialects"].items() for case in cases]
FAMILIES = ["seed-oss", "minimax-m2", "glm"]


@pytest.mark.parametrize(("dialect", "case"), CASES, ids=lambda each: each["id"] if isinstance(each, dict) else "")
def test_case_of_a_dialect_holds_for_every_cut(dialect: str, case: dict[str, Any]) -> None:
    outcome = check(case["input"], [5, 17, 40], case["finish"], thinking=case["thinking"], tools=TOOLS, dialect=dialect)
    expected = case["expect"]
    assert outcome.calls == [(call["name"], call["arguments"]) for call in expected["calls"]]
    assert (outcome.reasoning, outcome.content) == (expected["reasoning"], expected["content"])


def test_every_dialect_has_its_cases() -> None:
    assert set(get_args(DialectName)) == set(DIALECTS)
    assert set(DATA["dialects"]) == set(DIALECTS) - {"qwen"}
    assert all(len(cases) >= 20 for cases in DATA["dialects"].values())


@pytest.mark.parametrize("dialect", FAMILIES)
def test_every_cut_gives_the_same_reply_in_a_dialect(dialect: str) -> None:
    @settings(derandomize=True, deadline=None, max_examples=60)
    @given(st.lists(st.sampled_from(pieces_of(dialect)), max_size=20).map("".join), st.booleans(), st.booleans())
    def holds(text: str, thinking: bool, cut: bool) -> None:
        check(text, [len(text) // 3], "length" if cut else "stop", thinking=thinking, tools=TOOLS, dialect=dialect)

    holds()


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("... <tool_call>\n<function=example>\n<parameter=x>", "qwen"),
        ('<tool_call>\n{"name": <function-name>}', "qwen"),
        ("{{ '<seed:tool_call>' }}<function={{ name }}>", "seed-oss"),
        ('<minimax:tool_call>\n<invoke name="', "minimax-m2"),
        ("<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>", "glm"),
        ("{{ messages }}", "qwen"),
    ],
)
def test_a_template_names_its_dialect_by_its_tags(template: str, name: str) -> None:
    assert dialect_of(template).name == name
    assert OutputParser.for_template(template, thinking=False).feed("text")[0].text == "text"


@pytest.mark.parametrize(
    ("dialect", "prompt", "expected"),
    [
        ("seed-oss", "<seed:bos>assistant\n<seed:think>\n", True),
        ("seed-oss", "<seed:bos>user\n<seed:think><seed:eos><seed:bos>assistant\n", False),
        ("minimax-m2", "]~b]user\nhi[e~[\n]~b]ai\n<think>\n", True),
        ("glm", "<|user|>\nhi<|assistant|>\n<think></think>\n", False),
        ("glm", "<|user|>\nhi<|assistant|><think>", True),
    ],
)
def test_the_thinking_is_read_off_the_prompt_of_a_dialect(dialect: str, prompt: str, expected: bool) -> None:
    assert thinking_open(prompt, dialect) is expected
    assert OutputParser.for_prompt(prompt, dialect=dialect).in_thinking is expected


def test_an_unknown_dialect_is_refused() -> None:
    with pytest.raises(ValueError, match="dialect must be one of"):
        OutputParser(dialect="latin")


def test_tags_of_a_dialect_begin_with_their_only_bracket() -> None:
    with pytest.raises(ValueError, match="does not begin with its only"):
        Dialect("wrong", call_open="[TOOL_CALLS]")


ATTRIBUTES = Dialect(
    "attributes",
    call_open="<calls>",
    call_close="</calls>",
    function_open='<invoke name="',
    function_opened='">',
    function_close="</invoke>",
    parameter_open='<parameter name="',
    parameter_opened='">',
    type_attribute="string",
)


def test_an_attribute_says_whether_a_value_is_a_string_where_no_schema_does() -> None:
    text = (
        '<calls>\n<invoke name="f">\n<parameter name="a" string="true">1</parameter>\n'
        '<parameter name="b" string="false">[1]</parameter>\n<parameter name="c">2</parameter>\n</invoke>\n</calls>'
    )
    outcome = check(text, [30, 60], "stop", thinking=False, tools=None, dialect=ATTRIBUTES)
    assert outcome.calls == [("f", {"a": "1", "b": [1], "c": 2})]


def test_a_dialect_reads_the_calls_of_no_other() -> None:
    text = "<tool_call>\n<function=jobs>\n</function>\n</tool_call>"
    assert parse(text, thinking=False, tools=TOOLS, dialect="minimax-m2").content == text
