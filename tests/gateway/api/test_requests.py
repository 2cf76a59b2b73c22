"""What a request may hold: a wrong type is a 400 that names the field, an unknown field is ignored."""

from __future__ import annotations

from typing import Any

import pytest

from strata_pack.chat.render.template import ChatTemplate
from strata_pack.gateway.control_tokens import ControlTokens
from strata_pack.gateway.prompt import Prompts
from strata_pack.gateway.turn import Turn
from strata_pack.gateway.upstream import Upstream
from tests.gateway.api.bodies import USER
from tests.gateway.conftest import LIST_JOBS, LOOKUP, House


def test_unknown_fields_are_ignored(house: House) -> None:
    reply = house.chat("</think>\n\nHi", store=True, frobnicate={"a": [1]}, metadata={}, service_tier="auto")
    assert reply["choices"][0]["message"]["content"] == "Hi"


def test_null_means_not_given(house: House) -> None:
    names = ("temperature", "top_p", "n", "stop", "tools", "tool_choice", "response_format", "seed", "max_tokens")
    assert house.chat("</think>\n\nHi", **dict.fromkeys(names))["choices"][0]["message"]["content"] == "Hi"


def test_sampling_parameters_reach_the_server_under_its_names(house: House) -> None:
    house.chat(
        "</think>\n\nHi", temperature=0.5, top_p=0.9, top_k=-1, min_p=0.1, presence_penalty=1, frequency_penalty=-1,
        repetition_penalty=1.1, seed=-1, max_tokens=7, stop="END", logit_bias={"42": -100},
    )  # fmt: skip
    sent = house.replay.bodies[-1]
    wanted = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 0, "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1,
        "repeat_penalty": 1.1, "seed": 4294967295, "n_predict": 7, "stop": ["END"], "logit_bias": [[42, -100]],
        "cache_prompt": True, "stream": True,
    }  # fmt: skip
    assert {name: sent[name] for name in wanted} == wanted


def test_sampling_parameters_of_llama_cpp_alone_reach_it(house: House) -> None:
    fields = {"dry_multiplier": 0.8, "xtc_probability": 0.5, "repeat_last_n": -1, "mirostat": 2, "ignore_eos": True}
    house.chat("</think>\n\nHi", **fields)
    sent = house.replay.bodies[-1]
    assert {name: sent[name] for name in fields} == fields


def test_effort_and_template_variables_reach_the_template(house: House) -> None:
    house.chat("</think>\n\nHi", reasoning_effort="low")
    assert "Reasoning effort is set to low." in house.prompt
    house.chat("Hi", enable_thinking=False)
    assert house.prompt.endswith("<think>\n\n</think>\n\n")
    house.chat("Hi", reasoning_effort="none")
    assert house.prompt.endswith("<think>\n\n</think>\n\n")
    house.chat("</think>\n\nHi", chat_template_kwargs={"reasoning_effort": "medium"})
    assert "Reasoning effort" not in house.prompt


@pytest.mark.parametrize(("effort", "nearest"), [("minimal", "low"), ("max", "xhigh"), ("high", "xhigh")])
def test_an_effort_that_the_template_does_not_know_is_the_nearest_one(effort: str, nearest: str, house: House) -> None:
    house.chat("</think>\n\nHi", reasoning_effort=effort)
    assert f"Reasoning effort is set to {nearest}." in house.prompt


def test_a_template_that_knows_an_effort_gets_it() -> None:
    template = ChatTemplate("{{ reasoning_effort }}")
    prompts = Prompts(template, ControlTokens([], guess=False), Upstream("http://127.0.0.1:1"))
    assert prompts.render(Turn(USER, variables={"reasoning_effort": "minimal"})).text == "minimal"


def test_an_unknown_effort_does_not_hide_what_else_the_template_refuses(house: House) -> None:
    answer = house.post({"messages": [{"role": "assistant", "content": "Hi"}], "reasoning_effort": "max"})
    assert answer.status_code == house.post({"messages": [{"role": "assistant", "content": "Hi"}]}).status_code


@pytest.mark.parametrize("name", ["self", "a b", ""])
def test_a_template_variable_may_have_any_name(name: str, house: House) -> None:
    house.says("</think>\n\nHi")
    assert house.post({"messages": USER, "chat_template_kwargs": {name: 1}}).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("depth", [150, 199, 200, 400, 600, 750, 900, 980, 5000])
def test_arguments_are_served_however_deep_they_are(depth: int, stream: bool, house: House) -> None:
    arguments = f'{{"a": {"[" * depth}{"]" * depth}}}'
    call = {"id": "1", "type": "function", "function": {"name": "list_jobs", "arguments": arguments}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "1", "content": "none"}
    house.says("</think>\n\nHi")
    answer = house.post({"messages": [*USER, turn, result], "tools": [LIST_JOBS], "stream": stream})
    assert answer.status_code == 200, answer.text
    assert "[" * depth in house.prompt
    # As the model wrote it, or, where that cannot be, as its text.
    assert ("<parameter=a>" in house.prompt) is (depth < 200)


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {"a": {}}, "required": 5},
        {"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}]}}},
        {"anyOf": [{"$ref": "#"}]},
        {"x": [1], "properties": {"a": {"$ref": f"#/x/{'9' * 5000}"}}},
        {"x": [1], "properties": {"a": {"$ref": "#/x/\u0663"}}},
        {"properties": {"a": {"type": "object", "properties": {"b": {}}, "required": True}}},
        {"properties": {"a": {"const": 1, "enum": 5}}},
        {"properties": {"a": {"const": 1, "enum": []}}},
    ],
)
def test_a_demanded_call_of_a_tool_with_an_odd_schema_is_served(parameters: dict[str, Any], house: House) -> None:
    house.says("</think>\n\nHi")
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    answer = house.post({"messages": USER, "tools": [tool], "tool_choice": "required"})
    assert answer.status_code == 200, answer.text


def test_what_the_template_refuses_is_a_400_with_its_text(house: House) -> None:
    answer = house.post({"messages": USER, "reasoning_effort": "heroic"})
    assert answer.status_code == 400
    assert "Unexpected reasoning effort heroic" in answer.json()["error"]["message"]


def test_a_final_assistant_message_can_be_continued(house: House) -> None:
    messages = [*USER, {"role": "assistant", "content": "", "reasoning_content": "Let me"}]
    house.says(" see.\n</think>\n\nYes")
    reply = house.post({"messages": messages, "continue_final_message": True}).json()
    assert house.prompt.endswith("<|im_start|>assistant\n<think>\nLet me")
    assert reply["choices"][0]["message"]["content"] == "Yes"
    assert reply["choices"][0]["message"]["reasoning_content"] == " see.\n"


def test_calls_are_read_without_declared_tools_only_if_the_list_is_there_and_empty(house: House) -> None:
    text = "</think>\n\n<tool_call>\n<function=list_jobs>\n</function>\n</tool_call>"
    assert house.chat(text)["choices"][0]["message"]["content"].startswith("<tool_call>")
    assert house.chat(text, tools=[])["choices"][0]["message"]["tool_calls"]


def test_results_reach_the_model_in_the_order_of_their_calls(house: House) -> None:
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in "fg"]
    results = [{"role": "tool", "tool_call_id": name, "content": f"result of {name}"} for name in "gf"]
    house.says("</think>\n\nHi")
    messages = [*USER, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    assert house.post({"messages": messages}).status_code == 200
    assert house.prompt.index("result of f") < house.prompt.index("result of g")


def test_a_call_without_the_function_wrapper_is_read(house: House) -> None:
    house.says("</think>\n\nHi")
    messages = [*USER, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"a": "b"}}]}, *USER]
    assert house.post({"messages": messages}).status_code == 200
    assert "<function=f>\n<parameter=a>\nb\n" in house.prompt


def test_only_allowed_tools_are_shown_to_the_model(house: House) -> None:
    text = "</think>\n\n<tool_call>\n<function=list_jobs>\n</function>\n</tool_call>"
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "list_jobs"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    reply = house.chat(text, tools=[LIST_JOBS, LOOKUP], tool_choice=choice)["choices"][0]
    assert "list_jobs" in house.prompt
    assert "lookup" not in house.prompt
    assert "grammar" not in house.replay.bodies[-1]
    assert reply["finish_reason"] == "tool_calls"


def test_allowed_tools_can_be_required(house: House) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "list_jobs"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    house.chat("</think>\n\nHi", tools=[LIST_JOBS, LOOKUP], tool_choice=choice)
    assert any("list_jobs" in body.get("grammar", "") for body in house.replay.bodies)
    assert not any("lookup" in body.get("grammar", "") for body in house.replay.bodies)


def test_legacy_functions_are_tools(house: House) -> None:
    house.chat("</think>\n\nHi", functions=[LIST_JOBS["function"]])
    modern = house.prompt
    house.chat("</think>\n\nHi", tools=[LIST_JOBS])
    assert house.prompt == modern


def test_a_legacy_function_call_can_be_forbidden_and_demanded(house: House) -> None:
    house.chat("</think>\n\nHi", functions=[LIST_JOBS["function"]], function_call="none")
    assert "list_jobs" not in house.prompt
    house.chat("</think>\n\nHi", functions=[LIST_JOBS["function"]], function_call={"name": "list_jobs"})
    assert any("list_jobs" in body.get("grammar", "") for body in house.replay.bodies)


def test_a_legacy_history_is_read(house: House) -> None:
    messages = [
        *USER,
        {"role": "assistant", "content": None, "function_call": {"name": "list_jobs", "arguments": "{}"}},
        {"role": "function", "name": "list_jobs", "content": "3 jobs"},
    ]
    house.says("</think>\n\nHi")
    assert house.post({"messages": messages, "functions": [LIST_JOBS["function"]]}).status_code == 200
    assert "<function=list_jobs>" in house.prompt
    assert "<tool_response>\n3 jobs\n</tool_response>" in house.prompt


def test_tool_choice_none_keeps_the_tools_from_the_model_and_reads_no_call(house: House) -> None:
    text = "</think>\n\n<tool_call>\n<function=list_jobs>\n</function>\n</tool_call>"
    message = house.chat(text, tools=[LIST_JOBS], tool_choice="none")["choices"][0]["message"]
    assert "list_jobs" not in house.prompt
    assert message["content"].startswith("<tool_call>")
    assert "tool_calls" not in message


@pytest.mark.parametrize(("path", "field"), [("/v1/chat/completions", "messages"), ("/v1/responses", "input")])
def test_a_conversation_that_is_too_long_is_named_as_the_api_names_it(path: str, field: str, house: House) -> None:
    error = {"code": 400, "message": "m", "type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 4}
    house.says("x", error=error, status=400)
    answer = house.post({"messages": [{"role": "user", "content": "x"}], "input": "x"}, path)
    assert answer.json()["error"]["param"] == field
