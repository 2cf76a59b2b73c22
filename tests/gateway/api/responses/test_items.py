"""Items of a conversation in the Responses API: turns, results, and what cannot be read of an item."""

from __future__ import annotations

import time
from typing import Any

import pytest

from strata_pack.gateway.api.responses.request import ResponsesRequest, responses_turn
from strata_pack.gateway.api.responses.store import EmptyMemory
from tests.gateway.api.responses.items import TOOL, USER, ask, call, messages_of, reasoning, refusal, result, said
from tests.gateway.conftest import House


def test_consecutive_reasoning_items_are_one_turn() -> None:
    _, turn, _ = messages_of(USER, reasoning("One."), reasoning("Two."), call("c1"), result("c1", "x"))
    assert turn["reasoning_content"] == "One.\n\nTwo."
    assert len(turn["tool_calls"]) == 1


def test_a_reasoning_item_that_cannot_be_read_does_not_cut_a_turn_in_two() -> None:
    unreadable = reasoning(encrypted_content="gAAAA-of-another-server")
    _, turn = messages_of(USER, unreadable, reasoning("Look."), unreadable, said("Wait."), unreadable, call("c1"))
    assert (turn["reasoning_content"], turn["content"], len(turn["tool_calls"])) == ("Look.", "Wait.", 1)


@pytest.mark.parametrize("before", [said("Done."), call("c1")])
def test_reasoning_after_an_answer_or_a_call_begins_a_new_turn(before: dict[str, Any]) -> None:
    roles = [message["role"] for message in messages_of(USER, before, reasoning("Next."), said("More."))]
    assert roles == ["user", "assistant", "assistant"]


def test_parallel_results_reach_the_model_in_the_order_of_their_calls(house: House) -> None:
    items = [USER, call("c1"), call("c2"), result("c2", "leaves-2"), result("c1", "leaves-1")]
    ask(house, "</think>\n\nok", input=items, tools=[TOOL])
    assert house.prompt.index("leaves-1") < house.prompt.index("leaves-2")


def test_the_summary_is_read_where_there_is_no_content() -> None:
    summary = [{"type": "summary_text", "text": "One."}, {"type": "summary_text", "text": "Two."}]
    _, turn = messages_of(USER, {"type": "reasoning", "id": "r", "summary": summary})
    assert turn["reasoning_content"] == "One.\n\nTwo."


def test_messages_of_one_turn_are_paragraphs() -> None:
    assert messages_of(USER, said("One."), said(""), said("Two."))[-1]["content"] == "One.\n\nTwo."


def test_very_many_messages_of_one_turn_are_read_quickly() -> None:
    items = [{"role": "assistant", "content": "a" * 50}] * 50_000
    request = ResponsesRequest.model_validate({"input": items})
    start = time.process_time()
    responses_turn(request, EmptyMemory())
    assert time.process_time() - start < 5


def test_an_effort_that_the_template_refuses_is_named(house: House) -> None:
    assert refusal(house, reasoning={"effort": "frantic"})["param"] == "reasoning.effort"


def test_an_output_of_parts_is_their_text() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert messages_of(USER, call("c1"), result("c1", parts))[-1]["content"] == "ab"


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
EMPTY = {"type": "input_text", "text": None}


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"role": "user", "content": [{"type": "input_text", "text": "a"}, IMAGE]}, "input.1.content.1"),
        ({"role": "user", "content": [{"type": "input_file", "file_data": "AAAA"}]}, "input.1.content.0"),
        ({"role": "user", "content": [{"type": "input_text", "text": "a"}, EMPTY]}, "input.1.content.1.text"),
        ({"role": "assistant", "content": [{**EMPTY, "type": "output_text"}]}, "input.1.content.0.text"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input.1.content.0.text"),
        ({"role": "user", "content": [{"type": 1, "text": "a"}]}, "input.1.content.0.type"),
        ({"role": "user", "content": ["a"]}, "input.1.content.0"),
        ({"role": "assistant", "content": [{"type": "reasoning_text", "text": "a"}]}, "input.1.content.0"),
        (reasoning(content=[{**EMPTY, "type": "reasoning_text"}]), "input.1.content.0.text"),
        (reasoning(summary=[{**EMPTY, "type": "summary_text"}]), "input.1.summary.0.text"),
        (reasoning(summary=5), "input.1.summary"),
        (result("c1", [EMPTY]), "input.1.output.0.text"),
        (result("c1", {"text": "a"}), "input.1.output"),
        ({"type": "function_call", "call_id": "c1", "arguments": "{}"}, "input.1.name"),
        ({"type": "function_call", "call_id": "c1", "name": "", "arguments": "{}"}, "input.1.name"),
        ({"type": "function_call", "call_id": "c1", "name": "f", "arguments": {}}, "input.1.arguments"),
        ({"type": "function_call", "call_id": None, "name": "f", "arguments": "{}"}, "input.1.call_id"),
        ({"type": "item_reference"}, "input.1.id"),
        ({"content": "a"}, "input.1.role"),
    ],
)
def test_what_cannot_be_read_of_an_item_is_named(item: dict[str, Any], param: str, house: House) -> None:
    error = refusal(house, input=[USER, item])
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")


def test_media_have_their_code(house: House) -> None:
    assert refusal(house, input=[{"role": "user", "content": [IMAGE]}])["code"] == "unsupported_media"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("previous_response_id", "resp_1"),
        ("conversation", "conv_1"),
        ("conversation", {"id": "conv_1"}),
        ("prompt", {"id": "pmpt_1"}),
        ("background", True),
    ],
)
def test_what_only_a_server_that_stores_could_serve_is_refused(field: str, value: Any, house: House) -> None:
    assert refusal(house, **{field: value})["param"] == field
