"""``/v1/chat/completions``: what becomes of generated text, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strata_pack.gateway.generation import Generation
from strata_pack.gateway.reply import quoted
from tests.gateway.conftest import IMPLICIT, LIST_JOBS, LOOKUP, House, events, join_chunks

CALL = (
    "<tool_call>\n<function=lookup>\n<parameter=q>\ntea\n</parameter>\n"
    "<parameter=limit>\n2\n</parameter>\n</function>\n</tool_call>"
)


def test_a_reply_has_reasoning_content_and_usage(house: House) -> None:
    house.says(["I ", "think", ".\n", "</think>", "\n\n", "Yes", "."], cached=5)
    reply = house.post({"messages": [{"role": "user", "content": "Hi"}]}).json()
    message = reply["choices"][0]["message"]
    assert message["content"] == "Yes."
    assert message["reasoning_content"] == message["reasoning"] == "I think.\n"
    assert reply["choices"][0]["finish_reason"] == "stop"
    prompt = len(house.prompt)
    assert reply["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 7,
        "total_tokens": prompt + 7,
        "prompt_tokens_details": {"cached_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }


def test_the_same_text_streams_to_the_same_reply(house: House) -> None:
    text = f"Thinking.\n</think>\n\nOne moment.\n\n{CALL}"
    whole = house.chat(text, tools=[LOOKUP])["choices"][0]
    streamed = join_chunks(house.stream(text, tools=[LOOKUP]))
    assert streamed["reasoning"] == whole["message"]["reasoning_content"]
    assert streamed["content"] == whole["message"]["content"]
    assert streamed["finish"] == whole["finish_reason"] == "tool_calls"
    (call,) = streamed["calls"]
    (expected,) = whole["message"]["tool_calls"]
    assert call["name"] == expected["function"]["name"]
    assert json.loads(call["arguments"]) == json.loads(expected["function"]["arguments"]) == {"q": "tea", "limit": 2}


def test_a_streams_first_chunk_has_the_role_and_its_last_the_usage(house: House) -> None:
    chunks = house.stream("a</think>\n\nb", stream_options={"include_usage": True})
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 4
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}


def test_a_stream_without_the_option_has_no_usage(house: House) -> None:
    assert not any("usage" in chunk for chunk in house.stream("a</think>\n\nb"))


def test_an_empty_reply_is_a_well_formed_message(house: House) -> None:
    assert house.chat([])["choices"][0]["message"] == {"role": "assistant", "content": ""}
    chunks = house.stream([])
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [{"role": "assistant", "content": ""}, {}]


def test_a_cut_reply_ends_with_length(house: House) -> None:
    reply = house.chat("abcdefghi", max_tokens=2)["choices"][0]
    assert reply["finish_reason"] == "length"
    assert reply["message"]["reasoning_content"] == "abcdef"


def test_a_cut_call_is_text_and_not_a_call(house: House) -> None:
    house.says("x\n</think>\n\n" + CALL[:60], stop_type="limit")
    choice = house.post({"messages": [{"role": "user", "content": "Hi"}], "tools": [LOOKUP]}).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == CALL[:60]
    assert "tool_calls" not in choice["message"]


def test_a_client_that_sends_functions_gets_one_function_call(house: House) -> None:
    text = f"</think>\n\n{CALL}\n{CALL}"
    choice = house.chat(text, functions=[LOOKUP["function"]])["choices"][0]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["content"] is None
    assert "tool_calls" not in choice["message"]
    assert choice["message"]["function_call"]["name"] == "lookup"
    assert json.loads(choice["message"]["function_call"]["arguments"]) == {"q": "tea", "limit": 2}


def test_a_function_call_streams_under_its_older_name(house: House) -> None:
    chunks = house.stream(f"</think>\n\n{CALL}\n{CALL}", functions=[LOOKUP["function"]])
    pieces = [chunk["choices"][0]["delta"].get("function_call", {}) for chunk in chunks]
    assert "".join(piece.get("name", "") for piece in pieces) == "lookup"
    assert json.loads("".join(piece.get("arguments", "") for piece in pieces)) == {"q": "tea", "limit": 2}
    assert chunks[-1]["choices"][0]["finish_reason"] == "function_call"


def test_a_function_call_written_inside_the_thinking_is_delivered(house: House) -> None:
    choice = house.chat(IMPLICIT, functions=[LIST_JOBS["function"]])["choices"][0]
    assert choice["message"]["function_call"] == {"name": "list_jobs", "arguments": "{}"}


def test_several_choices_have_seeds_of_their_own(house: House) -> None:
    for word in ("one", "two", "three"):
        house.says(f"</think>\n\n{word}")
    reply = house.post({"messages": [{"role": "user", "content": "Hi"}], "n": 3, "seed": 7}).json()
    assert sorted(choice["message"]["content"] for choice in reply["choices"]) == ["one", "three", "two"]
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    assert sorted(body["seed"] for body in house.replay.bodies) == [7, 8, 9]


def test_several_choices_stream_side_by_side(house: House) -> None:
    for word in ("one", "two"):
        house.says(f"</think>\n\n{word}")
    chunks = house.stream("</think>\n\nthree", n=3, stream_options={"include_usage": True})
    by_index = {
        index: join_chunks([c for c in chunks if c["choices"] and c["choices"][0]["index"] == index])["content"]
        for index in range(3)
    }
    assert sorted(by_index.values()) == ["one", "three", "two"]
    assert chunks[-1]["usage"]["completion_tokens"] > 3


def test_one_failing_choice_fails_the_request(house: House) -> None:
    house.says("</think>\n\none")
    house.says("x", error={"code": 400, "message": "bad", "type": "invalid_request_error"}, status=400)
    answer = house.post({"messages": [{"role": "user", "content": "Hi"}], "n": 2})
    assert answer.status_code == 400
    assert house.wait_for(lambda: house.gateway.admission.busy == 0)


def test_a_choice_that_fails_inside_the_gateway_does_not_hold_the_stream_for_ever(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_generation: Generation) -> dict[str, Any]:
        raise ValueError

    monkeypatch.setattr(Generation, "_body", fail)
    answer = house.post({"messages": [{"role": "user", "content": "Hi"}], "n": 2, "stream": True}, timeout=5)
    assert answer.status_code == 500
    assert house.wait_for(lambda: house.gateway.admission.busy == 0)


def test_logprobs_are_those_of_the_content(house: House) -> None:
    reply = house.chat(["think", "</think>", "\n\n", "Yes", ", ", "sir"], logprobs=True, top_logprobs=2)
    entries = reply["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == ["Yes", ", ", "sir"]
    assert len(entries[0]["top_logprobs"]) == 2
    assert entries[0]["bytes"] == list(b"Yes")
    assert house.replay.bodies[-1]["n_probs"] == 2


def test_logprobs_stream_with_their_content(house: House) -> None:
    chunks = house.stream(["think", "</think>", "\n\n", "Yes", ", ", "sir"], logprobs=True)
    found = [
        (chunk["choices"][0]["delta"].get("content"), [e["token"] for e in chunk["choices"][0]["logprobs"]["content"]])
        for chunk in chunks
        if chunk["choices"][0].get("logprobs")
    ]
    assert found == [("Yes", ["Yes"]), (", ", [", "]), ("sir", ["sir"])]


def test_without_parallel_calls_the_generation_ends_after_the_first(house: House) -> None:
    text = f"</think>\n\n{CALL}\n{CALL}"
    for stream in (False, True):
        if stream:
            calls = join_chunks(house.stream(text, tools=[LOOKUP], parallel_tool_calls=False))["calls"]
        else:
            choice = house.chat(text, tools=[LOOKUP], parallel_tool_calls=False)["choices"][0]
            calls = choice["message"]["tool_calls"]
            assert choice["finish_reason"] == "tool_calls"
        assert len(calls) == 1
    unclosed = f"</think>\n\n{CALL}\n{CALL}".removesuffix("</tool_call>").replace("</tool_call>\n", "")
    assert (
        len(house.chat([unclosed], tools=[LOOKUP], parallel_tool_calls=False)["choices"][0]["message"]["tool_calls"])
        == 1
    )


def test_the_counters_of_a_reply_come_when_asked_for(house: House) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": [LIST_JOBS]}
    house.says(IMPLICIT)
    assert "x_strata" not in house.post(body).json()
    house.says(IMPLICIT)
    shown = house.post(body, headers={"x-strata": "1", "x-request-id": "abc-1"}).json()["x_strata"]
    assert shown["request_id"] == "abc-1"
    assert shown["choices"][0]["implicit_reasoning_ends"] == 1
    house.says(IMPLICIT)
    streamed = events(house.post({**body, "stream": True}, headers={"x-strata": "1"}).text)
    assert streamed[-1]["x_strata"]["choices"][0]["implicit_calls"] == 1


def test_a_request_id_is_kept_and_sent_back_unless_it_is_unfit(house: House) -> None:
    house.says("x")
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    assert house.post(body, headers={"x-request-id": "my-id:1"}).headers["x-request-id"] == "my-id:1"
    house.says("x")
    assert house.post(body, headers={"x-request-id": "no spaces"}).headers["x-request-id"] != "no spaces"


def test_completions_pass_through(house: House) -> None:
    assert house.post({"prompt": "Once"}, "/v1/completions").json()["choices"][0]["text"] == "passed"
    assert "passed" in house.post({"prompt": "Once", "stream": True}, "/v1/completions").text
    assert house.post({"prompt": ["Once", "Twice"]}, "/v1/completions").json()["choices"][0]["text"] == "passed"
    assert house.post({"prompt": ["x"] * 100}, "/v1/completions").json()["error"]["param"] == "prompt"
    assert house.post({"prompt": [1, "x"]}, "/v1/completions").status_code == 400


@pytest.mark.parametrize("text", ["plain", 'q"uote\\', "ünï\u2028", "\x00\x1f", "😀"])
def test_text_is_written_as_json(text: str) -> None:
    assert json.loads(quoted(text)) == text
