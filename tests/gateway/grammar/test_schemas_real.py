"""A schema holds at a real llama.cpp server: what is left to it is converted, all else has a grammar of the gateway."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import pytest

from strata_pack.gateway.grammar.gbnf import call_grammar, json_grammar
from strata_pack.gateway.grammar.soundness import fault_of
from strata_pack.llama.server import LlamaServer
from tests.gateway.conftest import House
from tests.gateway.grammar.schemas import CONVERTIBLE, OTHERS, an_object, text

pytestmark = pytest.mark.xdist_group("real-gateway")


@pytest.fixture(scope="module")
def hello(server: LlamaServer) -> int:
    """A token that no JSON begins with; asked for it by a bias, a model writes it unless a grammar forbids it."""
    return server.client.tokenize("h")[-1]


def is_held(server: LlamaServer, **constraint: Any) -> bool:
    """Say whether ``constraint`` keeps the model from "h", which no JSON begins with and a bias asks for."""
    token = server.client.tokenize("h")[-1]
    body = {"prompt": "Say", "n_predict": 2, "temperature": 0, "logit_bias": [[token, 100]], **constraint}
    answer = httpx.post(server.url + "/completion", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return not answer.json()["content"].startswith("h")


SOME = [
    pytest.param(schema, id=name, marks=[] if number % 3 == 0 else pytest.mark.slow)
    for number, (name, schema) in enumerate(OTHERS.items())
    if fault_of(schema) is None
]
"""Each is answered by a real model; a faulty one is refused."""


@pytest.mark.parametrize("schema", CONVERTIBLE.values(), ids=CONVERTIBLE)
def test_the_server_converts_what_is_left_to_it(schema: dict[str, Any], byte_server: LlamaServer) -> None:
    assert is_held(byte_server, json_schema=schema)


def test_the_server_drops_what_it_cannot_convert(byte_server: LlamaServer) -> None:
    """Else there would be nothing to guard against, and the test above would hold whatever the server does."""
    assert not is_held(byte_server, json_schema=OTHERS["a look-ahead"])
    assert not is_held(byte_server, json_schema=OTHERS["a reference to nothing"])


@pytest.mark.parametrize("schema", SOME)
def test_the_answer_to_a_schema_that_the_server_would_drop_is_json(
    schema: dict[str, Any], real: House, server: LlamaServer, hello: int
) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "5"}], "response_format": wanted, "enable_thinking": False}
    # It would begin with what no JSON begins with, were it not for the grammar, and ends its texts soon.
    biases = {str(hello): 8, **{str(token): 12 for token in server.client.tokenize('"')}}
    answer = real.post({**body, "logit_bias": biases, "repeat_penalty": 1.5, "temperature": 0, "max_tokens": 120})
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    if choice["finish_reason"] == "length":
        assert schema == OTHERS["very many levels"]
    else:
        json.loads(choice["message"]["content"])


@pytest.mark.parametrize("schema", CONVERTIBLE.values(), ids=CONVERTIBLE)
def test_the_server_takes_the_gateways_grammar_too(schema: dict[str, Any], byte_server: LlamaServer) -> None:
    assert is_held(byte_server, grammar=json_grammar(schema))


@pytest.mark.parametrize("count", [46, pytest.param(100, marks=pytest.mark.slow), 200])
@pytest.mark.parametrize("required", [[], ["p7", "p3"]])
def test_the_server_takes_the_call_of_a_function_with_many_optional_properties(
    count: int, required: list[str], byte_server: LlamaServer
) -> None:
    inner = {**an_object(**{f"p{i}": text() for i in range(count)}), "required": required}
    function = {"name": "f", "parameters": an_object(o=inner)}
    for form in ("xml", "json"):
        assert is_held(byte_server, grammar=call_grammar([{"function": function}], form))  # type: ignore[arg-type]
