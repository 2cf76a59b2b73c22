"""What constrains an answer is kept after the thinking or refused by its name; fields of other makers are read."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.conftest import LIST_JOBS, House, join_chunks

USER = [{"role": "user", "content": "Hi"}]
THOUGHT = "Hm.\n</think>\n\n"
GRAMMAR = 'root ::= "a"{5,5}'
CHOICE = 'root ::= "red" | "blue"\n'
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ANY_OBJECT = {"type": "object"}
PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")


def constraint(house: House, path: str, **fields: Any) -> dict[str, Any]:
    """Return the constraint of the completion that follows the thinking."""
    house.replay.bodies.clear()
    house.says("", stop_type="limit")  # where a client's own grammar is tried out
    if not any("grammar" in name or "ebnf" in name or "choice" in str(fields) for name in fields):
        house.replay.script.clear()
    house.says(THOUGHT)
    house.says("42")
    asked = {"input": USER} if path.endswith("responses") else {"messages": USER, "max_tokens": 100}
    answer = house.post({**asked, **fields}, path)
    assert answer.status_code == 200, answer.text
    house.replay.script.clear()
    last: dict[str, Any] = house.replay.bodies[-1]
    return {name: last[name] for name in ("grammar", "json_schema") if name in last}


KEPT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"grammar": GRAMMAR}, {"grammar": GRAMMAR}),
    ({"ebnf": GRAMMAR}, {"grammar": GRAMMAR}),
    ({"guided_grammar": GRAMMAR}, {"grammar": GRAMMAR}),
    ({"structured_outputs": {"grammar": GRAMMAR}}, {"grammar": GRAMMAR}),
    ({"guided_choice": ["red", "blue"]}, {"grammar": CHOICE}),
    ({"structured_outputs": {"choice": ["red", "blue"]}}, {"grammar": CHOICE}),
    ({"json_schema": SCHEMA}, {"json_schema": SCHEMA}),
    ({"json_schema": {"const": "42"}}, {"json_schema": {"const": "42"}}),
    ({"guided_json": SCHEMA}, {"json_schema": SCHEMA}),
    ({"guided_json": '{"type": "object"}'}, {"json_schema": ANY_OBJECT}),
    ({"guided_json_object": True}, {"json_schema": ANY_OBJECT}),
    ({"structured_outputs": {"json": SCHEMA}}, {"json_schema": SCHEMA}),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, {"json_schema": SCHEMA}),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, {"json_schema": SCHEMA}),
    ({"format": "json"}, {"json_schema": ANY_OBJECT}),
    ({"format": SCHEMA}, {"json_schema": SCHEMA}),
]
NOTHING: list[dict[str, Any]] = [
    {"grammar": ""},
    {"guided_json": None},
    {"response_format": {"type": "text"}},
    {"format": ""},
    {"structured_outputs": {}},
    {"guided_json_object": False},
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"guided_regex": "[0-9]{4}"}, "guided_regex"),
    ({"structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
    ({"structured_outputs": {"json": SCHEMA, "choice": ["a"]}}, "structured_outputs"),
    ({"regex": "a"}, "regex"),
    ({"structural_tag": "{}"}, "structural_tag"),
    ({"grammar": GRAMMAR, "grammar_lazy": True}, "grammar_lazy"),
    ({"grammar": "start: /a/"}, "grammar"),
    ({"grammar": GRAMMAR, "json_schema": SCHEMA}, "json_schema"),
    ({"grammar": GRAMMAR, "response_format": {"type": "json_object"}}, "grammar"),
    ({"guided_json": "no schema"}, "guided_json"),
    ({"guided_choice": []}, "guided_choice"),
    ({"response_format": {"type": "structural_tag"}}, "response_format.type"),
    ({"json_schema": {"type": "hiccup"}}, "json_schema"),
    ({"guided_json": {"properties": {"a": {"type": 5}}}}, "guided_json"),
    ({"response_format": {"type": "json_object", "schema": {"anyOf": {"type": "string"}}}}, "response_format"),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("fields", "kept"), KEPT, ids=["-".join(fields) for fields, _ in KEPT])
def test_a_constraint_holds_after_the_thinking(fields: Any, kept: Any, path: str, house: House) -> None:
    assert constraint(house, path, **fields) == kept


@pytest.mark.parametrize("fields", NOTHING, ids=str)
def test_an_empty_constraint_is_none(fields: dict[str, Any], house: House) -> None:
    house.chat(THOUGHT + "Hi", **fields)
    assert not house.replay.bodies[-1].keys() & {"grammar", "json_schema"}


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[param for _, param in REFUSED])
def test_a_constraint_that_cannot_be_kept_is_refused_by_name(fields: Any, param: str, house: House) -> None:
    answer = house.post({"messages": USER, **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert not house.replay.bodies


def test_two_forms_in_two_fields_of_one_api_are_refused(house: House) -> None:
    body = {"input": "Hi", "text": {"format": {"type": "json_object"}}, "grammar": GRAMMAR}
    assert house.post(body, "/v1/responses").json()["error"]["param"] == "grammar"


def test_a_grammar_that_the_server_refuses_is_a_400_before_the_stream(house: House) -> None:
    house.says("", error={"message": "Failed to parse grammar"}, status=400)
    answer = house.post({"messages": USER, "grammar": "root ::= (", "stream": True})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "grammar"


@pytest.mark.parametrize("field", ["guided_choice", "guided_json", "structured_outputs"])
def test_text_completions_refuse_what_llama_server_would_pass_over(field: str, house: House) -> None:
    answer = house.post({"prompt": "Hi", field: ["a"]}, "/v1/completions")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field


# Thinking


def closed(house: House) -> bool:
    """Whether the last prompt ends outside of the thinking."""
    return house.prompt.rstrip().endswith("</think>")


OFF: list[dict[str, Any]] = [
    {"think": False},
    {"think": "none"},
    {"enable_thinking": False},
    {"reasoning_effort": "none"},
    {"reasoning": {"effort": "none"}},
    {"reasoning": {"enabled": False}},
    {"thinking": {"type": "disabled"}},
    *({"chat_template_kwargs": {"enable_thinking": value}} for value in (False, "false", "False", 0, None, "", "off")),
]
ON: list[dict[str, Any]] = [
    {"think": True},
    {"thinking": {"type": "enabled", "budget_tokens": 1000}},
    {"enable_thinking": None},
    *({"chat_template_kwargs": {"enable_thinking": value}} for value in (True, "true", 1, "1")),
]


@pytest.mark.parametrize("fields", OFF, ids=str)
def test_thinking_is_switched_off(fields: dict[str, Any], house: House) -> None:
    house.chat("Hi", **fields)
    assert closed(house)


@pytest.mark.parametrize("fields", ON, ids=str)
def test_thinking_stays_on(fields: dict[str, Any], house: House) -> None:
    house.chat(THOUGHT + "Hi", **fields)
    assert not closed(house)


@pytest.mark.parametrize("value", ["maybe", 2, [], {}, "low"])
def test_a_boolean_of_the_template_that_is_none_is_refused(value: Any, house: House) -> None:
    answer = house.post({"messages": USER, "chat_template_kwargs": {"enable_thinking": value}})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "chat_template_kwargs.enable_thinking"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{"include_reasoning": False}, {"reasoning": {"exclude": True}}], ids=str)
def test_reasoning_that_nobody_wants_is_not_sent(fields: dict[str, Any], stream: bool, house: House) -> None:
    text = THOUGHT + "Hi"
    if stream:
        reply = join_chunks(house.stream(text, **fields))
        assert (reply["reasoning"], reply["content"]) == ("", "Hi")
    else:
        message = house.chat(text, **fields)["choices"][0]["message"]
        assert message == {"role": "assistant", "content": "Hi"}


# Limits and lists


@pytest.mark.parametrize(
    "fields",
    [{"max_tokens": -1}, {"n_predict": -1}, {"max_completion_tokens": -1}, {"n_predict": -2}, {"max_tokens": None}],
    ids=str,
)
def test_minus_one_is_no_limit(fields: dict[str, Any], house: House) -> None:
    house.chat(THOUGHT + "Hi", **fields)
    assert house.replay.bodies[-1]["n_predict"] == -1


@pytest.mark.parametrize("limit", [2**31 - 1, 2**53])
def test_a_limit_that_no_model_reaches_is_lowered(limit: int, house: House) -> None:
    house.chat(THOUGHT + "Hi", max_tokens=limit)
    assert house.replay.bodies[-1]["n_predict"] == 2**30


def test_messages_take_minus_one_as_all_tokens_and_no_empty_stop(house: House) -> None:
    house.says(THOUGHT + "Hi")
    body = {"messages": USER, "max_tokens": 9, "top_k": -1, "stop_sequences": ["", "a"]}
    assert house.post(body, "/v1/messages").status_code == 200
    assert (house.replay.bodies[-1]["top_k"], house.replay.bodies[-1]["stop"]) == (0, ["a"])


def test_n_predict_is_a_limit(house: House) -> None:
    house.chat(THOUGHT + "Hi", n_predict=7)
    assert house.replay.bodies[-1]["n_predict"] == 7


@pytest.mark.parametrize("limit", [0, -2, -100, 1.5, "5"])
def test_another_limit_is_refused(limit: Any, house: House) -> None:
    answer = house.post({"messages": USER, "max_tokens": limit})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "max_tokens"


@pytest.mark.parametrize(
    "fields",
    [{"stop": []}, {"stop": ""}, {"stop": None}, {"stop": ["", ""]}, {"logit_bias": {}}, {"logit_bias": []}],
    ids=str,
)
def test_an_empty_list_is_absent(fields: dict[str, Any], house: House) -> None:
    house.chat(THOUGHT + "Hi", **fields)
    body = house.replay.bodies[-1]
    assert body["stop"] == []
    assert "logit_bias" not in body


def test_a_bias_may_be_a_list_of_pairs(house: House) -> None:
    house.chat(THOUGHT + "Hi", logit_bias=[[15, 1.5], [16, False]])
    assert house.replay.bodies[-1]["logit_bias"] == [[15, 1.5], [16, -100.0]]


def test_an_agent_that_sends_all_of_it_is_served(house: House) -> None:
    fields = {"max_tokens": -1, "stop": [], "logit_bias": {}, "reasoning": {}, "think": True, "response_format": None}
    assert house.chat(THOUGHT + "Hi", tools=[LIST_JOBS], **fields)["choices"][0]["message"]["content"] == "Hi"
