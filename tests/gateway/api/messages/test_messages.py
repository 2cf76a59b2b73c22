"""``/v1/messages``: Anthropic's shapes in both directions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strata_pack.gateway.api.messages.reply import MessagesWriter
from tests.gateway.conftest import House, events

TOOL = {
    "name": "lookup",
    "description": "d",
    "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}},
}
CALL = "<tool_call>\n<function=lookup>\n<parameter=q>\ntea\n</parameter>\n</function>\n</tool_call>"


def ask(house: House, text: str, **fields: Any) -> dict[str, Any]:
    house.says(text)
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1000, **fields}
    answer = house.post(body, "/v1/messages")
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


def test_blocks_come_in_the_order_thinking_text_tool_use(house: House) -> None:
    reply = ask(house, f"Hm.\n</think>\n\nOne moment.\n\n{CALL}", tools=[TOOL])
    assert [block["type"] for block in reply["content"]] == ["thinking", "text", "tool_use"]
    assert reply["content"][2]["input"] == {"q": "tea"}
    assert reply["stop_reason"] == "tool_use"
    assert reply["usage"]["input_tokens"] == len(house.prompt)


def test_a_stop_sequence_is_named(house: House) -> None:
    reply = ask(house, "</think>\n\nab END cd", stop_sequences=["END"])
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", "END")
    assert reply["content"][-1]["text"] == "ab "


def test_the_history_keeps_thinking_calls_and_results(house: House) -> None:
    messages = [
        {"role": "user", "content": "Q"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Look it up.", "signature": ""},
                {"type": "text", "text": "Wait."},
                {"type": "tool_use", "id": "t1", "name": "lookup", "input": {"q": "tea"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "leaves"}]},
                {"type": "text", "text": "Go on."},
            ],
        },
    ]
    ask(house, "</think>\n\nok", messages=messages, tools=[TOOL], system=[{"type": "text", "text": "Be brief."}])
    assert (
        "<think>\nLook it up.\n</think>\n\nWait.\n\n<tool_call>\n<function=lookup>\n<parameter=q>\ntea" in house.prompt
    )
    assert "<tool_response>\nleaves\n</tool_response>" in house.prompt
    assert "<|im_start|>user\nGo on.<|im_end|>" in house.prompt
    assert "Be brief.<|im_end|>" in house.prompt


def test_disabled_thinking_and_a_final_assistant_message_reach_the_prompt(house: House) -> None:
    ask(house, "ok", thinking={"type": "disabled"})
    assert house.prompt.endswith("<think>\n\n</think>\n\n")
    ask(house, "ok", messages=[{"role": "user", "content": "x"}, {"role": "assistant", "content": "The answer is"}])
    assert house.prompt.endswith("The answer is")


def test_a_thinking_budget_is_a_reasoning_budget(house: House) -> None:
    house.replay.script.clear()
    house.says(["a "] * 50)
    house.says(["\n", "done"])
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 100,
        "thinking": {"type": "enabled", "budget_tokens": 10},
    }
    reply = house.post(body, "/v1/messages").json()
    assert reply["content"][-1] == {"type": "text", "text": "done"}
    assert house.prompt.endswith("a " * 10 + "\n</think>\n\n")


def test_a_stream_has_well_formed_blocks(house: House) -> None:
    streamed = house.stream(f"Hm.\n</think>\n\nText.\n{CALL}\n{CALL}", "/v1/messages", max_tokens=500, tools=[TOOL])
    assert streamed[0]["type"] == "message_start"
    assert streamed[-1]["type"] == "message_stop"
    kinds, open_block, pieces = [], None, ""
    for event in streamed:
        if event["type"] == "content_block_start":
            assert open_block is None
            open_block = event["index"]
            kinds.append(event["content_block"]["type"])
        elif event["type"] == "content_block_delta":
            assert event["index"] == open_block
            pieces += event["delta"].get("partial_json", "")
        elif event["type"] == "content_block_stop":
            assert event["index"] == open_block
            open_block = None
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    assert open_block is None
    assert pieces == json.dumps({"q": "tea"}) * 2
    assert streamed[-2]["delta"]["stop_reason"] == "tool_use"


def test_tokens_are_counted_without_generating(house: House) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL]}
    answer = house.post(body, "/v1/messages/count_tokens").json()
    assert house.replay.bodies == []
    assert 500 < answer["input_tokens"] < 3000


def test_an_upstream_that_is_away_is_an_overload_in_anthropics_words(house: House) -> None:
    house.says("x", error={"code": 503, "message": "Loading model", "type": "unavailable_error"}, status=503)
    answer = house.post({"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}, "/v1/messages")
    assert answer.status_code == 503
    assert answer.json()["error"]["type"] == "overloaded_error"
    assert events("") == []


def thought(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": "any", **fields}


def use(number: str, q: str = "tea") -> dict[str, Any]:
    return {"type": "tool_use", "id": number, "name": "lookup", "input": {"q": q}}


def result(number: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": number, "content": content, **fields}


def prompt_of(house: House, *messages: tuple[str, Any]) -> str:
    """Return the prompt that the messages make, without the system turn."""
    spoken = [{"role": role, "content": content} for role, content in messages]
    ask(house, "</think>\n\nok", messages=spoken, tools=[TOOL])
    return house.prompt.partition("<|im_start|>user\n")[2]


def refusal_of(house: House, *messages: tuple[str, Any]) -> str:
    spoken = [{"role": role, "content": content} for role, content in messages]
    answer = house.post({"messages": spoken, "max_tokens": 5}, "/v1/messages")
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"
    return str(answer.json()["error"]["message"])


# Signatures


def test_thinking_is_signed(house: House) -> None:
    block = ask(house, "Hm.\n</think>\n\nok")["content"][0]
    assert len(block["signature"]) == 32
    assert block == ask(house, "Hm.\n</think>\n\nok")["content"][0]
    assert block["signature"] != ask(house, "Oh.\n</think>\n\nok")["content"][0]["signature"]


@pytest.mark.parametrize("after", ["Text.", CALL, ""])
def test_a_stream_signs_thinking_just_before_its_block_stops(after: str, house: House) -> None:
    text = f"Hm, ö.\n</think>\n\n{after}"
    whole = ask(house, text, tools=[TOOL])["content"][0]
    streamed = house.stream(text, "/v1/messages", max_tokens=500, tools=[TOOL])
    block = [event for event in streamed if event.get("index") == 0]
    assert block[0]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert "".join(event["delta"].get("thinking", "") for event in block[1:-1]) == whole["thinking"]
    assert block[-2]["delta"] == {"type": "signature_delta", "signature": whole["signature"]}
    assert block[-1] == {"type": "content_block_stop", "index": 0}
    assert json.dumps(streamed).count("signature_delta") == 1


def test_thinking_that_the_limit_cuts_is_signed_too(house: House) -> None:
    streamed = house.stream("On and on it goes.", "/v1/messages", max_tokens=3)
    assert [event["delta"]["type"] for event in streamed if event["type"] == "content_block_delta"][-1] == (
        "signature_delta"
    )


# Turns


def test_consecutive_assistant_messages_are_one_turn(house: House) -> None:
    prompt = prompt_of(
        house,
        ("user", "Q"),
        ("assistant", [thought("Look it up.")]),
        ("assistant", "Wait."),
        ("assistant", [use("t1")]),
        ("user", [result("t1", "leaves")]),
    )
    assert prompt.count("<|im_start|>assistant") == 2
    assert "<think>\nLook it up.\n</think>\n\nWait.\n\n<tool_call>\n<function=lookup>" in prompt


def test_texts_and_thoughts_of_consecutive_assistant_messages_are_paragraphs(house: House) -> None:
    prompt = prompt_of(
        house,
        ("user", "Q"),
        ("assistant", [thought("One."), {"type": "text", "text": "A"}, {"type": "text", "text": "B"}]),
        ("assistant", [thought("Two."), {"type": "text", "text": "C"}]),
        ("user", "Go on."),
    )
    assert "<think>\nOne.\n\nTwo.\n</think>\n\nAB\n\nC<|im_end|>" in prompt


def test_consecutive_user_messages_are_one_turn_after_their_tool_results(house: House) -> None:
    prompt = prompt_of(
        house,
        ("user", "One."),
        ("user", "Two."),
        ("assistant", [use("t1"), use("t2")]),
        ("user", [result("t1", "first")]),
        ("user", [{"type": "text", "text": "Both?"}]),
        ("user", [result("t2", "second")]),
    )
    assert prompt.startswith("One.\nTwo.<|im_end|>")
    assert (
        "<tool_response>\nfirst\n</tool_response>\n<tool_response>\nsecond\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nBoth?<|im_end|>" in prompt
    )


def test_a_complaint_about_a_joined_turn_names_the_message_that_was_sent(house: House) -> None:
    message = refusal_of(house, ("user", "Q"), ("user", [{"type": "text", "text": "A"}, {"type": "text"}]))
    assert message == "messages.1.content.1.text: is missing"


@pytest.mark.parametrize("before", [[], [{"type": "text", "text": "Wait."}], [thought("Hm.")]])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_a_last_turn_with_a_call_is_refused(path: str, before: list[Any], house: House) -> None:
    messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": [*before, use("t1"), use("t2")]}]
    answer = house.post({"messages": messages, "max_tokens": 5}, path)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: t1, t2. "
    )


def test_a_call_before_the_last_of_consecutive_assistant_messages_is_refused_too(house: House) -> None:
    assert "`tool_use` ids" in refusal_of(house, ("user", "Q"), ("assistant", [use("t1")]), ("assistant", "So"))


# Results and blocks


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("no such file", "Error: no such file"),
        ([{"type": "text", "text": "no such file"}], "Error: no such file"),
        ("Error: no such file", "Error: no such file"),
        ("ERROR 404", "ERROR 404"),
        ("", "Error"),
    ],
)
def test_an_error_of_a_tool_reaches_the_model(content: Any, shown: str, house: House) -> None:
    prompt = prompt_of(
        house, ("user", "Q"), ("assistant", [use("t1")]), ("user", [result("t1", content, is_error=True)])
    )
    assert f"<tool_response>\n{shown}\n</tool_response>" in prompt


def test_a_result_that_is_no_error_stays_as_it_is(house: House) -> None:
    prompt = prompt_of(house, ("user", "Q"), ("assistant", [use("t1")]), ("user", [result("t1", "ok", is_error=False)]))
    assert "<tool_response>\nok\n</tool_response>" in prompt


DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Tea grows."}}
PARTS = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "Tea grows."}]}}
FOUND = {
    "type": "search_result",
    "title": "Tea",
    "source": "https://x/",
    "content": [{"type": "text", "text": "Leaf."}],
}


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        (DOCUMENT, "<document>\nTea grows.\n</document>"),
        (PARTS, "<document>\nTea grows.\n</document>"),
        ({"type": "document", "source": {"type": "content", "content": "Short."}}, "<document>\nShort.\n</document>"),
        (
            {**DOCUMENT, "title": 'A "tea" book', "context": "1906", "citations": {"enabled": True}},
            '<document title=\'A "tea" book\' context="1906">\nTea grows.\n</document>',
        ),
        (FOUND, '<search_result title="Tea" source="https://x/">\nLeaf.\n</search_result>'),
    ],
)
def test_blocks_that_are_text_reach_the_model_as_text(block: Any, shown: str, house: House) -> None:
    assert prompt_of(house, ("user", [block, {"type": "text", "text": "Sum up."}])).startswith(f"{shown}\nSum up.")
    prompt = prompt_of(house, ("user", "Q"), ("assistant", [use("t1")]), ("user", [result("t1", [block])]))
    assert f"<tool_response>\n{shown}\n</tool_response>" in prompt


def test_a_tool_reference_in_a_result_reaches_the_model(house: House) -> None:
    found = [{"type": "tool_reference", "tool_name": "lookup"}]
    prompt = prompt_of(house, ("user", "Q"), ("assistant", [use("t1")]), ("user", [result("t1", found)]))
    assert '<tool_response>\n<tool_reference name="lookup"/>\n</tool_response>' in prompt


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        (
            {"type": "image", "source": {}},
            "messages.0.content.0: the model has no projector, so blocks of type 'image'",
        ),
        (
            {"type": "document", "source": {"type": "base64", "data": ""}},
            "messages.0.content.0.source: the model reads text only, so a document from a source of type 'base64'",
        ),
        ({"type": "document"}, "messages.0.content.0.source: must be an object"),
        ({"type": "document", "source": {"type": "text"}}, "messages.0.content.0.source.data: is missing"),
        ({**DOCUMENT, "title": 1}, "messages.0.content.0.title: must be a string"),
        (
            {"type": "document", "source": {"type": "content", "content": [{"type": "image"}]}},
            "messages.0.content.0.source.content.0: the model has no projector",
        ),
        ({**FOUND, "content": None}, "messages.0.content.0.content: is neither a string nor a list of blocks"),
        ({"type": "tool_reference", "tool_name": "x"}, "messages.0.content.0: blocks of type 'tool_reference' are not"),
        ({"type": "text", "text": None}, "messages.0.content.0.text: must be a string"),
        (result("t1", ["x"]), "messages.0.content.0.content.0: is no content block"),
        (result("t1", "x", is_error="yes"), "messages.0.content.0.is_error: must be a boolean"),
    ],
)
def test_a_block_that_cannot_be_read_is_named(block: Any, complaint: str, house: House) -> None:
    assert refusal_of(house, ("user", [block])).startswith(complaint)


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        ({"type": "tool_use", "id": "t"}, "messages.1.content.0.name: is missing"),
        ({**use("t"), "input": []}, "messages.1.content.0.input: must be an object"),
        ({"type": "thinking"}, "messages.1.content.0.thinking: is missing"),
    ],
)
def test_a_block_of_the_assistant_that_cannot_be_read_is_named(block: Any, complaint: str, house: House) -> None:
    assert refusal_of(house, ("user", "Q"), ("assistant", [block]), ("user", "Q")) == complaint


# Tokens


def test_message_start_has_the_prompts_tokens() -> None:
    start = events(MessagesWriter("r", "m", show_extra=False).start(77).decode())[0]
    assert start["message"]["usage"]["input_tokens"] == 77


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_is_refused_in_the_words_that_clients_know(stream: bool, house: House) -> None:
    error = {"code": 400, "message": "m", "type": "exceed_context_size_error", "n_prompt_tokens": 6001, "n_ctx": 2048}
    house.says("x", error=error, status=400)
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "stream": stream}
    answer = house.post(body, "/v1/messages")
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "type": "invalid_request_error",
        "message": "prompt is too long: 6001 tokens > 2048 maximum",
    }
