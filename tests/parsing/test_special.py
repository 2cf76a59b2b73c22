"""What callers know better than the text: which pieces are special tokens, and where the thinking begins and ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.parsing import Event, OutputParser
from tests.parsing.invariants import TOOLS, Outcome, check_specials, read_events
from tests.parsing.pieces import PIECES

TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
STAND_INS = {tag: f"\ue000{number}" for number, tag in enumerate(TAGS)}
CALL = "<tool_call>\n<function=jobs>\n</function>\n</tool_call>"


def read(pieces: list[tuple[str, bool | None]], **options: Any) -> Outcome:
    parser = OutputParser(tools=TOOLS, **options)
    events = [event for text, special in pieces for event in parser.feed(text, special)]
    events += parser.finish()
    outcome = read_events(events, stream_tools=bool(options.get("stream_tools")))
    outcome.counters = parser.counters.to_dict()
    return outcome


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize("stream_tools", [False, True])
def test_tags_that_ordinary_tokens_spell_are_text(size: int, stream_tools: bool) -> None:
    thought = "I end with </think> and call:\n<tool_call>\n<function=jobs>\n</function>\n"
    value = "a\n</tool_call>\n<think>"
    pieces: list[tuple[str, bool | None]] = [
        *((thought[at : at + size], False) for at in range(0, len(thought), size)),
        ("</think>", True),
        ("\n\nSo <tool", False),
        ("_call> is it.\n", False),
        ("<tool_call>", True),
        ("\n<function=save>\n<parameter=text>\n", False),
        *((value[at : at + size], False) for at in range(0, len(value), size)),
        ("\n</parameter>\n</function>\n", False),
        ("</tool_call>", True),
    ]
    outcome = read(pieces, stream_tools=stream_tools)
    assert outcome.reasoning == thought
    assert outcome.content == "So <tool_call> is it."
    assert outcome.calls == [("save", {"text": value})]


def test_a_whole_tag_that_ordinary_tokens_spell_keeps_its_letters_between_words() -> None:
    assert read([("a b", False), ("<think>", False), (" c", False)], thinking=False).content == "a b<think> c"


def test_the_beginning_of_a_spelled_tag_is_pending_and_let_go_when_it_goes_on_as_text() -> None:
    parser = OutputParser(thinking=False)
    assert parser.feed("a </thi", False) == [Event("content", "a ")]
    assert parser.pending
    assert parser.feed("ng>", False) == [Event("content", "</thing>")]


def test_a_special_token_after_half_a_spelled_tag_is_a_tag() -> None:
    assert read([("r <", False), ("</think>", True), ("c", None)]).reasoning == "r <"


def test_a_piece_that_is_not_known_is_read_by_the_rules_for_text() -> None:
    assert read([("r</th", None), ("ink>", None), ("c <th", False), ("ink>", False)]).content == "c <think>"


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.lists(st.sampled_from(PIECES), max_size=16), st.integers(1, 9), st.booleans(), st.booleans())
def test_spelled_tags_read_as_any_other_text(pieces: list[str], size: int, thinking: bool, stream_tools: bool) -> None:
    text = "".join(pieces)
    other = text
    for tag, stand_in in STAND_INS.items():
        other = other.replace(tag, stand_in)
    spelled = read(
        [(text[at : at + size], False) for at in range(0, len(text), size)],
        thinking=thinking, stream_tools=stream_tools,
    )  # fmt: skip
    plain = read([(other, None)], thinking=thinking, stream_tools=stream_tools)
    for tag, stand_in in STAND_INS.items():
        plain.reasoning = plain.reasoning.replace(stand_in, tag)
        plain.content = plain.content.replace(stand_in, tag)
    assert (spelled.reasoning, spelled.content) == (plain.reasoning, plain.content)
    assert [name for name, _ in spelled.calls] == [name for name, _ in plain.calls]


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    st.lists(st.sampled_from(PIECES), max_size=16).map("".join),
    st.lists(st.floats(0, 1), max_size=5),
    st.lists(st.sampled_from([None, False, True]), min_size=1, max_size=3),
)
def test_a_stream_tells_what_the_whole_reply_does(text: str, cuts: list[float], specials: list[bool | None]) -> None:
    places = sorted(int(cut * len(text)) for cut in cuts)
    check_specials(text, places, "stop", specials, thinking=False, tools=TOOLS)


@pytest.mark.parametrize("stream_tools", [False, True])
@pytest.mark.parametrize("spelled_at", [0, 1, 2])
def test_characters_that_stand_in_for_a_bracket_keep_their_meaning(spelled_at: int, stream_tools: bool) -> None:
    value = ["a\ufdd0", "b\ufdd1\ufdd0", "c"]
    value[spelled_at] += "<think>"
    json = '{"k": "\\ufdd0<think>\ufdd0"}'
    parts = ("<parameter=text>\n", *value, "\n</parameter>\n<parameter=data>\n", json, "\n</parameter>\n")
    pieces: list[tuple[str, bool | None]] = [
        ("x \ufdd0\n", None),
        ("<tool_call>", True),
        ("\n<function=save>\n", False),
        *((part, False if "<think>" in part else None) for part in parts),
        ("</function>\n", False),
        ("</tool_call>", True),
    ]
    outcome = read(pieces, thinking=False, stream_tools=stream_tools)
    assert outcome.content == "x \ufdd0"
    assert outcome.calls == [("save", {"text": "".join(value), "data": {"k": "\ufdd0<think>\ufdd0"}})]


def texts(events: list[Event], kind: str) -> str:
    return "".join(event.text for event in events if event.kind == kind)


def test_a_caller_may_end_the_thinking() -> None:
    parser = OutputParser(tools=TOOLS)
    events = parser.feed("First I look.\n<tool_call>\n<function=save>\n")
    events += parser.end_thinking()
    assert not parser.in_thinking
    events += parser.feed("\n</think>\n\nThe answer.") + parser.finish()
    assert texts(events, "reasoning") == "First I look.\n<tool_call>\n<function=save>\n"
    assert texts(events, "content") == "The answer."
    assert not parser.counters.ended_inside_thinking


def test_a_caller_may_begin_the_thinking_again() -> None:
    parser = OutputParser(tools=TOOLS, stream_tools=True)
    events = parser.feed("r</think>An answer.\n")
    events += parser.reopen_thinking()
    assert parser.in_thinking
    events += parser.feed(f"More.\n{CALL}\n</think>Done.") + parser.finish()
    assert texts(events, "reasoning") == "rMore.\n"
    assert texts(events, "content") == "An answer.\nDone."
    assert [event.call.name for event in events if event.kind == "tool_call" and event.call] == ["jobs"]


def test_half_an_announced_call_stays_half_when_the_thinking_begins_again() -> None:
    parser = OutputParser(thinking=False, tools=TOOLS, stream_tools=True)
    events = parser.feed("<tool_call>\n<function=save>\n<parameter=text>\nhalf") + parser.reopen_thinking()
    events += parser.feed("r</think>c") + parser.finish()
    assert [event.kind for event in events] == ["tool_start", "tool_args", "reasoning", "content"]
    assert parser.counters.unfinished_calls == 1


@pytest.mark.parametrize("thinking", [True, False])
def test_nothing_happens_where_the_thinking_is_as_the_caller_says(thinking: bool) -> None:
    parser = OutputParser(thinking=thinking)
    parser.feed("text <tool")
    assert (parser.reopen_thinking() if thinking else parser.end_thinking()) == []
    parser.finish()
    assert parser.end_thinking() == parser.reopen_thinking() == []


NULLABLE = [{"name": "f", "parameters": {"properties": {"v": {"type": ["string", "null"]}, "w": {}}}}]


@pytest.mark.parametrize(
    ("name", "deltas", "sent"),
    [
        ("v", ["\nnu", "ll", " and", " void"], [False, False, True, True]),
        ("v", ["\nnumber"], [True]),
        ("v", ["\nSome text"], [True]),
        ("v", ["\nNone", " of"], [False, True]),
        ("w", ["\nhello"], [True]),
        ("w", ["\n12", "3", " apples"], [False, False, True]),
        ("w", ["\n[1,", " 2]"], [False, False]),
        ("w", ["\ntrue", "r"], [False, True]),
        ("w", ["\n-", "x"], [False, True]),
        ("other", ["\nwords"], [True]),
    ],
)
def test_a_value_that_may_be_a_string_is_sent_when_nothing_else_can_come(
    name: str, deltas: list[str], sent: list[bool]
) -> None:
    parser = OutputParser(thinking=False, tools=NULLABLE, stream_tools=True)
    parser.feed(f"<tool_call>\n<function=f>\n<parameter={name}>")
    assert [bool(parser.feed(delta)) for delta in deltas] == sent


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"enum": ["edit", "view"]}, '"edit"', "edit"),
        ({"type": "string", "enum": ["edit"]}, '"edit"', "edit"),
        ({"type": "string", "enum": ["edit", '"edit"']}, '"edit"', '"edit"'),
        ({"type": "string"}, '"edit"', '"edit"'),
        ({"type": "array"}, '"[1, 2]"', [1, 2]),
        ({"type": "object"}, '"{\\"a\\": 1}"', {"a": 1}),
        ({"type": ["array", "string"]}, '"[1, 2]"', '"[1, 2]"'),
        ({"type": "integer"}, '"5"', 5),
        ({"type": "string", "enum": ["edit"]}, "other", "other"),
    ],
)
def test_a_value_is_decoded_where_the_schema_takes_it_only_decoded(schema: Any, text: str, value: Any) -> None:
    tools = [{"name": "f", "parameters": {"properties": {"v": schema}}}]
    parser = OutputParser(thinking=False, tools=tools)
    events = parser.feed(f"<tool_call><function=f><parameter=v>\n{text}\n</parameter></function></tool_call>")
    assert [event.call.arguments for event in events if event.call] == [{"v": value}]
    assert parser.counters.coercion_failures == 0


@pytest.mark.parametrize("stream_tools", [False, True])
def test_several_objects_in_one_wrapper_are_several_calls_if_each_is_one(stream_tools: bool) -> None:
    one, two = '{"name": "jobs"}', '{"name": "save", "arguments": {"text": "}"}}'
    outcome = read([(f"<tool_call>\n{one}\n{two}\n</tool_call>", None)], thinking=False, stream_tools=stream_tools)
    assert outcome.calls == [("jobs", {}), ("save", {"text": "}"})]
    broken = f'<tool_call>\n{one}\n{{"no": "call"}}\n</tool_call>'
    outcome = read([(broken, None)], thinking=False, stream_tools=stream_tools)
    assert (outcome.calls, outcome.content) == ([], broken)
