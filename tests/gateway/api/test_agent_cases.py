"""What agents send that a server might refuse: every case of tests/data/gateway/gateway2.jsonl, by its request."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import pytest

from tests.gateway.conftest import House, cases

CASES = cases("gateway/gateway2.jsonl")
REQUESTS = [case for case in CASES if "generated" not in case["request"] and "one_of" not in case["request"]]
CHOICES = [
    (case, field) for case in CASES if "one_of" in case["request"] for field in case["request"]["one_of"]
]  # fmt: skip

GENERATED = [case for case in CASES if "generated" in case["request"]]


def send(house: House, case: dict[str, Any], **more: Any) -> httpx.Response:
    request = case["request"]
    path = request["api"].split(" ")[1]
    headers = {"content-type": "application/json", **request.get("headers", {})}
    if "raw_body" in request:
        return house.http.post(house.url + path, content=request["raw_body"].encode(), headers=headers)
    return house.http.post(house.url + path, json={**request["body"], **more}, headers=headers)


@pytest.mark.parametrize("case", REQUESTS, ids=[case["id"] for case in REQUESTS])
def test_a_request_of_an_agent_gets_the_status_that_lets_it_go_on(case: dict[str, Any], house: House) -> None:
    answer = send(house, case)
    assert answer.status_code == case["expected"]["status"], answer.text


@pytest.mark.parametrize(("case", "field"), CHOICES, ids=["-".join(field) for _, field in CHOICES])
def test_a_constraint_is_kept_or_refused_by_name(case: dict[str, Any], field: dict[str, Any], house: House) -> None:
    house.says("</think>\n\n42")
    answer = send(house, case, **field)
    (name,) = field
    if answer.status_code == 200:
        assert house.replay.bodies[-1].keys() & {"grammar", "json_schema"}
    else:
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith(name)


@pytest.mark.parametrize("case", GENERATED, ids=[case["id"] for case in GENERATED])
def test_what_a_model_writes_becomes_the_arguments_that_were_meant(case: dict[str, Any], house: House) -> None:
    request = case["request"]
    tools = [{"type": "function", "function": tool} for tool in request["tools"]]
    (call,) = house.chat(request["generated"], tools=tools)["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == case["expected"]["arguments"]
