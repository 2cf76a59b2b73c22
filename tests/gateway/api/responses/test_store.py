"""Responses that are kept for a while: named by id in later requests, read, deleted, bounded, and nobody else's."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_pack.gateway.api.responses.store import EmptyMemory, Memory, Store
from strata_pack.gateway.failures import ApiError
from tests.gateway.conftest import SETTINGS, House, events, with_limits

TOOL = {"type": "function", "name": "lookup", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}
CALL = (
    "Hm, tea.\n</think>\n\n<tool_call>\n<function=lookup>\n<parameter=q>\ntea\n</parameter>\n</function>\n</tool_call>"
)
PREFIXES = {"reasoning": "rs_", "message": "msg_", "function_call": "fc_"}


def ask(house: House, text: str, given: Any = "Find tea.", **fields: Any) -> dict[str, Any]:
    house.says(text)
    answer = house.post({"input": given, "tools": [TOOL], **fields}, "/v1/responses")
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


def result(call: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call["call_id"], "output": "green leaves"}


def test_ids_say_what_they_are_of(house: House) -> None:
    reply = ask(house, CALL)
    assert reply["id"].startswith("resp_")
    for item in (*reply["output"], *ask(house, "Hm.\n</think>\n\nText.")["output"]):
        assert item["id"].startswith(PREFIXES[item["type"]])


def test_ids_differ_though_a_client_sends_one_request_id(house: House) -> None:
    body = {"input": "Hi"}
    replies = [house.post(body, "/v1/responses", headers={"x-request-id": "same"}).json() for _ in range(2)]
    assert replies[0]["id"] != replies[1]["id"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_items_of_a_response_may_be_named_by_reference(stream: bool, house: House) -> None:
    if stream:
        house.says(CALL)
        sent = events(house.post({"input": "Find tea.", "tools": [TOOL], "stream": True}, "/v1/responses").text)
        first = sent[-1]["response"]
    else:
        first = ask(house, CALL)
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    user = {"role": "user", "content": "Find tea."}
    ask(house, "</think>\n\nDone.", [user, *references, result(first["output"][-1])])
    assert "Hm, tea." in house.prompt
    assert "<parameter=q>\ntea\n</parameter>" in house.prompt
    assert "green leaves" in house.prompt


def test_a_response_goes_on_from_the_one_before(house: House) -> None:
    first = ask(house, CALL)
    second = ask(house, "</think>\n\nIt is green.", [result(first["output"][-1])], previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    ask(house, "</think>\n\nYes.", "Sure?", previous_response_id=second["id"])
    for text in ("Find tea.", "Hm, tea.", "green leaves", "It is green.", "Sure?"):
        assert house.prompt.count(text) == 1


def test_a_conversation_goes_on_though_its_beginning_was_deleted(house: House) -> None:
    first = ask(house, "</think>\n\nOne.")
    second = ask(house, "</think>\n\nTwo.", "More.", previous_response_id=first["id"])
    assert house.http.delete(f"{house.url}/v1/responses/{first['id']}").status_code == 200
    ask(house, "</think>\n\nThree.", "Still more.", previous_response_id=second["id"])
    assert "Find tea." in house.prompt


def test_an_unknown_previous_response_is_an_error_with_its_code(house: House) -> None:
    answer = house.post({"input": "Hi", "previous_response_id": "resp_x"}, "/v1/responses")
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "previous_response_not_found"


def test_a_kept_response_can_be_read_and_deleted(house: House) -> None:
    first = ask(house, CALL)
    url = f"/v1/responses/{first['id']}"
    assert house.get(url).json() == first
    assert house.http.delete(house.url + url).json() == {"id": first["id"], "object": "response", "deleted": True}
    assert house.get(url).status_code == 404
    assert house.http.delete(house.url + url).status_code == 404


def test_the_items_that_a_response_answered_can_be_read(house: House) -> None:
    first = ask(house, CALL)
    second = ask(house, "</think>\n\nDone.", [result(first["output"][-1])], previous_response_id=first["id"])
    url = f"/v1/responses/{second['id']}/input_items"
    page = house.get(url, params={"order": "asc"}).json()
    assert [item["type"] for item in page["data"]] == ["message", "reasoning", "function_call", "function_call_output"]
    assert (page["object"], page["has_more"]) == ("list", False)
    newest = house.get(url, params={"limit": 1}).json()
    assert newest["data"][0]["type"] == "function_call_output"
    assert newest["has_more"]
    after = house.get(url, params={"limit": 3, "after": newest["last_id"]}).json()
    assert [item["type"] for item in after["data"]] == ["function_call", "reasoning", "message"]


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "x"}, {"order": "up"}, {"after": "nothing"}])
def test_a_page_that_cannot_be_is_a_400(query: dict[str, str], house: House) -> None:
    first = ask(house, "</think>\n\nOne.")
    assert house.get(f"/v1/responses/{first['id']}/input_items", params=query).status_code == 400


def test_store_false_keeps_nothing(house: House) -> None:
    first = ask(house, CALL, store=False)
    assert first["store"] is False
    assert house.get(f"/v1/responses/{first['id']}").status_code == 404


def test_a_gateway_that_keeps_nothing_says_so() -> None:
    with House(with_limits(store_bytes=0)) as house:
        first = ask(house, CALL)
        assert first["store"] is False
        assert house.get(f"/v1/responses/{first['id']}").status_code == 404
        answer = house.post({"input": "Hi", "previous_response_id": first["id"]}, "/v1/responses")
        assert answer.json()["error"]["param"] == "previous_response_id"


def test_a_key_knows_only_its_own_responses() -> None:
    with House(replace(SETTINGS, api_keys=("one", "two"))) as house:
        mine, other = {"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}
        first = house.post({"input": "Hi"}, "/v1/responses", headers=mine).json()
        assert house.get(f"/v1/responses/{first['id']}", headers=mine).status_code == 200
        assert house.get(f"/v1/responses/{first['id']}", headers=other).status_code == 404
        body = {"input": "Hi", "previous_response_id": first["id"]}
        assert house.post(body, "/v1/responses", headers=other).status_code == 400


def test_the_tokens_of_an_input_are_counted_without_generating(house: House) -> None:
    first = ask(house, CALL)
    house.replay.bodies.clear()
    body = {"input": [result(first["output"][-1])], "previous_response_id": first["id"]}
    counted = house.post(body, "/v1/responses/input_tokens").json()
    assert counted["object"] == "response.input_tokens"
    assert counted["input_tokens"] > 0
    assert not house.replay.bodies


# The memory by itself


def response(name: str, size: int = 0) -> dict[str, Any]:
    return {"id": f"resp_{name}", "output": [{"id": f"msg_{name}", "type": "message", "text": "x" * size}]}


def body(text: str) -> bytes:
    return json.dumps({"input": text}).encode()


def test_the_oldest_makes_room() -> None:
    memory = Memory(4000, 1000.0)
    for number in range(10):
        memory.add(response(str(number), 1000), body("x"), None)
    assert memory.bytes <= 4000
    assert memory.item("msg_0") is None
    assert memory.item("msg_9") is not None


def test_what_is_used_stays() -> None:
    memory = Memory(4000, 1000.0)
    for number in range(10):
        memory.add(response(str(number), 1000), body("x"), None)
        assert memory.item("msg_0") is not None


def test_what_is_old_goes() -> None:
    memory = Memory(1 << 20, 0.01)
    memory.add(response("a"), body("x"), None)
    time.sleep(0.02)
    assert memory.item("msg_a") is None
    assert memory.bytes == 0


def test_a_response_larger_than_the_memory_is_not_kept() -> None:
    memory = Memory(100, 1000.0)
    memory.add(response("a", 1000), body("x"), None)
    assert memory.bytes == 0


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["", *"abcdef"]), st.booleans()), max_size=30))
def test_bytes_are_those_of_all_that_is_reachable(steps: list[tuple[str, str, bool]]) -> None:
    memory = Memory(1500, 1000.0)
    known: set[str] = set()
    for name, previous, deleted in steps:
        if deleted:
            try:
                memory.delete(f"resp_{name}")
            except ApiError:
                assert memory.item(f"msg_{name}") is None
        elif name not in known:
            known.add(name)
            memory.add(response(name, 200), body("x"), f"resp_{previous}" if previous else None)
        reachable = {id(part): part for one in memory._kept.values() for part in one.chain()}
        assert memory.bytes == sum(part.size for part in reachable.values())
        assert memory.bytes <= 1500


def test_without_memory_nothing_is_known() -> None:
    assert Store(0, 1.0).of("client") is None
    assert EmptyMemory().item("msg_a") is None
