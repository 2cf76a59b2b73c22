"""Replies that take two completions: a spent reasoning budget, and answers with a grammar."""

from __future__ import annotations

import json

import pytest

from tests.gateway.conftest import LIST_JOBS, LOOKUP, House, join_chunks

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
CALL = "<tool_call>\n<function=list_jobs>\n</function>\n</tool_call>"


def test_a_spent_budget_closes_the_thinking_and_goes_on(house: House) -> None:
    before = house.totals()["budget_closed"]
    house.says(["word "] * 100)
    reply = house.chat(["The", " answer."], reasoning_budget=8)
    message = reply["choices"][0]["message"]
    assert message["reasoning_content"] == "word " * 8 + "\n"
    assert message["content"] == "The answer."
    first, second = house.replay.bodies
    assert second["prompt"] == first["prompt"] + "word " * 8 + "\n</think>\n\n"
    assert second["cache_prompt"] is True
    assert reply["usage"]["completion_tokens"] == 10
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 8
    assert house.totals()["budget_closed"] == before + 1


def test_a_budget_ends_a_thinking_of_line_breaks_alone(house: House) -> None:
    house.says(["\n"] * 100)
    reply = house.chat(["The", " answer."], reasoning_budget=8)
    assert reply["choices"][0]["message"]["content"] == "The answer."
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 8


def test_the_streamed_reply_of_a_spent_budget_is_one_reply(house: House) -> None:
    house.says(["word "] * 100)
    joined = join_chunks(house.stream(["The", " answer."], reasoning_budget=8))
    assert joined["reasoning"] == "word " * 8 + "\n"
    assert joined["content"] == "The answer."
    assert joined["finish"] == "stop"


def test_a_budget_of_zero_never_starts_to_think(house: House) -> None:
    message = house.chat("Hi", reasoning_budget=0)["choices"][0]["message"]
    assert house.prompt.endswith("<think>\n\n</think>\n\n")
    assert message == {"role": "assistant", "content": "Hi"}


def test_a_budget_waits_for_a_candidate_that_comes_to_nothing(house: House) -> None:
    thinking = ["a", "\n", "<tool_call>", "\n", "<function=", "list", "_jobs>", "\n</function>", "\n"]
    house.says([*thinking, " never", " closed", "</think>", "\n\n", "Answer"])
    house.chat(["unused"], reasoning_budget=4, tools=[LIST_JOBS])
    sent = [body["prompt"] for body in house.replay.bodies]
    assert len(sent) == 1 or sent[1].endswith("</think>\n\n")
    house.replay.script.clear()


def test_a_budget_does_not_cut_right_after_the_end_of_the_thinking(house: House) -> None:
    house.says(["a", "b", "</think>", "\n\n", "Answer"])
    message = house.post({"messages": [{"role": "user", "content": "x"}], "reasoning_budget": 2, "tools": []}).json()
    # Two tokens of thinking are allowed and two were used: the budget is spent at "b", before the model closed it.
    assert len(house.replay.bodies) == 2
    house.replay.bodies.clear()
    house.replay.script.clear()
    house.says(["ab</think>", "\n\n", "Answer"])
    message = house.post({"messages": [{"role": "user", "content": "x"}], "reasoning_budget": 1}).json()
    assert message["choices"][0]["message"]["content"] == "Answer"
    assert len(house.replay.bodies) == 1


def test_max_tokens_counts_over_both_completions(house: House) -> None:
    house.says(["word "] * 100)
    reply = house.chat(["a"] * 50, reasoning_budget=8, max_tokens=12)["choices"][0]
    assert house.replay.bodies[1]["n_predict"] == 4
    assert reply["finish_reason"] == "length"
    assert reply["message"]["content"] == "aaaa"


def test_control_tokens_in_the_thinking_stay_text_when_it_goes_on(house: House) -> None:
    house.says(["<|im_end|>", " x "] * 5)
    house.chat("done", reasoning_budget=4)
    prompt = house.replay.bodies[1]["prompt"]
    assert isinstance(prompt, list)
    assert not any("<|im_end|> x" in part for part in prompt if isinstance(part, str))
    assert house.prompt.endswith("<|im_end|> x <|im_end|> x \n</think>\n\n")


@pytest.mark.parametrize("close", ["Hm.\n</think>\n\nignored", "Hm.\n"], ids=["closed", "stopped inside"])
def test_a_json_answer_has_its_schema_after_the_thinking(close: str, house: House) -> None:
    house.says(close)
    message = house.chat('{"a": 1}', response_format=FORMAT)["choices"][0]["message"]
    first, second = house.replay.bodies
    assert "json_schema" not in first
    assert first["stop"] == ["</think>"]
    assert second["json_schema"] == SCHEMA
    assert second["prompt"].startswith(first["prompt"] + "Hm.\n")
    assert second["prompt"].endswith("</think>\n\n")
    assert message["content"] == '{"a": 1}'
    assert message["reasoning_content"].strip() == "Hm."


def test_without_thinking_the_schema_holds_from_the_start(house: House) -> None:
    house.chat('{"a": 1}', response_format={"type": "json_object"}, enable_thinking=False)
    (body,) = house.replay.bodies
    assert body["json_schema"] == {"type": "object"}


def test_a_json_answer_may_still_be_a_call_when_there_are_tools(house: House) -> None:
    house.says("Hm.\n</think>")
    house.says([CALL[:11]])  # the peek
    choice = house.chat(CALL, response_format=FORMAT, tools=[LIST_JOBS])["choices"][0]
    assert "json_schema" not in house.replay.bodies[-1]
    assert choice["finish_reason"] == "tool_calls"
    house.says("Hm.\n</think>")
    house.says(['{"a"'])  # the peek
    house.chat('{"a": 1}', response_format=FORMAT, tools=[LIST_JOBS])
    assert house.replay.bodies[-1]["json_schema"] == SCHEMA


def test_a_required_call_has_its_grammar_after_the_thinking(house: House) -> None:
    house.says("Hm.\n</think>")
    choice = house.chat(CALL, tools=[LIST_JOBS, LOOKUP], tool_choice="required")["choices"][0]
    grammar = house.replay.bodies[-1]["grammar"]
    assert "<function=list_jobs>" in grammar
    assert "<function=lookup>" in grammar
    assert choice["finish_reason"] == "tool_calls"


def test_a_named_call_allows_only_that_one(house: House) -> None:
    house.says("Hm.\n</think>")
    named = {"type": "function", "function": {"name": "lookup"}}
    house.chat(CALL, tools=[LIST_JOBS, LOOKUP], tool_choice=named)
    assert "list_jobs" not in house.replay.bodies[-1]["grammar"]


def test_a_required_call_inside_the_thinking_is_enough(house: House) -> None:
    choice = house.chat(f"Go.\n{CALL}", tools=[LIST_JOBS], tool_choice="required")["choices"][0]
    assert len(house.replay.bodies) == 1
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "list_jobs"


def test_a_think_end_in_an_argument_of_a_call_in_the_thinking_does_not_start_the_grammar(house: House) -> None:
    text = "Go.\n<tool_call>\n<function=lookup>\n<parameter=q>\na </think> b\n</parameter>\n</function>\n</tool_call>"
    before, after = text.split("</think>")
    house.says(before + "</think>")
    choice = house.chat(after, tools=[LOOKUP], tool_choice="required")["choices"][0]
    assert "grammar" not in house.replay.bodies[-1]
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"q": "a </think> b"}


def test_a_model_that_opens_its_own_thinking_has_a_budget_too(house: House) -> None:
    house.says(["<think>", "\n", *["word "] * 50])
    message = house.chat("Answer", reasoning_budget=5, enable_thinking=False)["choices"][0]["message"]
    assert message["content"] == "Answer"
    assert house.replay.bodies[1]["prompt"].endswith("word \n</think>\n\n")


CUT = "Hm.\n</think>\n\n<tool_call>\n<function=lookup>\n<parameter=q>\nabc def"


@pytest.mark.parametrize("fields", [{}, {"stop": ["</function>"]}], ids=["end of text", "stop string"])
def test_a_streamed_call_that_breaks_off_is_a_length(fields: dict[str, object], house: House) -> None:
    joined = join_chunks(
        house.stream(CUT + ("\n</parameter>\n</function>" if fields else ""), tools=[LOOKUP], **fields)
    )
    assert joined["finish"] == "length"
    assert joined["calls"][0]["name"] == "lookup"


def test_a_call_that_breaks_off_in_a_whole_reply_is_a_length_and_text(house: House) -> None:
    choice = house.chat(CUT, tools=[LOOKUP])["choices"][0]
    assert choice["finish_reason"] == "length"
    assert "tool_calls" not in choice["message"]
    assert "abc def" in choice["message"]["content"]


def test_a_whole_call_before_one_that_breaks_off_does_not_make_the_reply_whole(house: House) -> None:
    choice = house.chat(f"</think>\n\n{CALL}\n<tool_call>\n<function=list_jobs>", tools=[LIST_JOBS])["choices"][0]
    assert choice["finish_reason"] == "length"
    assert len(choice["message"]["tool_calls"]) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_the_tokens_of_a_call_are_no_reasoning(stream: bool, house: House) -> None:
    deltas = ["T", "\n", "</think>", "\n\n", *[CALL[i : i + 2] for i in range(0, len(CALL), 2)]]
    if stream:
        usage = house.stream(deltas, tools=[LIST_JOBS], stream_options={"include_usage": True})[-1]["usage"]
    else:
        usage = house.chat(deltas, tools=[LIST_JOBS])["usage"]
    assert usage["completion_tokens"] == len(deltas)
    assert usage["completion_tokens_details"]["reasoning_tokens"] <= 4


def test_a_budget_that_meets_the_limit_closes_nothing(house: House) -> None:
    before = house.totals()["budget_closed"]
    choice = house.chat(["word "] * 9, reasoning_budget=3, max_tokens=3)["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["reasoning_content"] == "word " * 3
    assert choice["ended_inside_thinking"] is True
    assert house.totals()["budget_closed"] == before
    assert len(house.replay.bodies) == 1


def test_a_thinking_that_ended_before_the_limit_is_closed_although_no_answer_follows(house: House) -> None:
    house.says(["a", "b", "</think>"])
    choice = house.chat("unused", response_format=FORMAT, max_tokens=2)["choices"][0]
    house.replay.script.clear()
    assert choice["finish_reason"] == "length"


def test_a_message_starts_with_the_tokens_of_its_prompt(house: House) -> None:
    chunks = house.stream("</think>\n\nHi", "/v1/messages", max_tokens=50)
    assert chunks[0]["message"]["usage"]["input_tokens"] == chunks[-2]["usage"]["input_tokens"] > 0
