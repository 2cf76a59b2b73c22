"""Every case of tests/data/gateway/server.jsonl, each with the check that its prose describes."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest

from tests.gateway.conftest import House, cases, events, join_chunks

CASES = {case["id"]: case for case in cases("gateway/server.jsonl")}
Case = dict[str, Any]


def generated(case: Case) -> str:
    value = case["input"]
    text: str = value if isinstance(value, str) else value.get("generated", "Fine.\n</think>\n\nFine.")
    return text.removesuffix(" (client disconnects after the name)")


def request(case: Case) -> dict[str, Any]:
    value = case["input"]
    fields = value.get("request", {}) if isinstance(value, dict) else {}
    return {"messages": [{"role": "user", "content": "Which jobs run?"}], "tools": case["tools"], **fields}


def ask(house: House, case: Case, path: str = "/v1/chat/completions", **fields: Any) -> httpx.Response:
    house.says(generated(case), stop_type="eos")
    return house.post({**request(case), **fields}, path)


def check_reply(house: House, case: Case, **fields: Any) -> dict[str, Any]:
    """Check reasoning, content and calls of the reply; return the choice."""
    answer = ask(house, case, **fields)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    message, expect = choice["message"], case["expect"]
    calls = [
        {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}
        for call in message.get("tool_calls", [])
    ]
    assert message.get("reasoning_content", "") == expect.get("reasoning", "")
    assert (message["content"] or "") == expect.get("content", "")
    assert calls == expect.get("calls", [])
    if reason := expect.get("response", {}).get("finish_reason"):
        assert choice["finish_reason"] == reason
    found: dict[str, Any] = choice
    return found


def implicit_end(house: House, case: Case, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "strata_pack.gateway")
    before = house.totals()["implicit_reasoning_ends"]
    check_reply(house, case)
    metrics = case["expect"].get("metrics", {})
    grown = int(str(metrics["totals.implicit_reasoning_ends"]).split()[0])
    assert house.totals()["implicit_reasoning_ends"] - before == grown
    calls = len(case["expect"]["calls"])
    line = (
        f"[strata] implicit end of thinking: {calls} tool call(s) written inside the thinking "
        "without </think> were read as calls"
    )
    assert (line in caplog.text) == bool(grown)
    if "log_contains" in case["expect"]:
        assert case["expect"]["log_contains"] in caplog.text


def plain(house: House, case: Case, _: pytest.LogCaptureFixture) -> None:
    check_reply(house, case)


def no_answer(house: House, case: Case, _: pytest.LogCaptureFixture) -> None:
    assert check_reply(house, case)["ended_inside_thinking"] is True


def named_choice(house: House, case: Case, _: pytest.LogCaptureFixture) -> None:
    # The upstream stops where the thinking ends, and goes on by the grammar of the named tool; this one ignores it.
    text = generated(case)
    thinking, call = text.split("</think>")
    house.says(thinking + "</think>")
    house.says(call.lstrip())
    answer = house.post(request(case)).json()["choices"][0]
    assert [call["function"]["name"] for call in answer["message"]["tool_calls"]] == ["list_jobs"]
    assert answer["message"]["reasoning_content"] == case["expect"]["reasoning"]


def budget(house: House, case: Case, _: pytest.LogCaptureFixture) -> None:
    thinking = [f"t{number} " for number in range(60)]
    call = ["\n", "<tool_call>", "\n<function=", "save_file>\n<parameter=path>\n", *["x"] * 40, "\n</parameter>\n"]
    house.says([*thinking, *call, "<parameter=content>\ny\n</parameter>\n</function>\n</tool_call>"])
    answer = house.post(request(case)).json()["choices"][0]
    (found,) = answer["message"]["tool_calls"]
    assert json.loads(found["function"]["arguments"]) == {"path": "x" * 40, "content": "y"}
    assert len(house.replay.bodies) == 1, "nothing was injected"


def streamed(house: House, case: Case, _: pytest.LogCaptureFixture) -> None:
    answer = ask(house, case)
    chunks = events(answer.text)
    joined = join_chunks(chunks)
    assert "<tool" not in answer.text
    assert answer.text.endswith("data: [DONE]\n\n")
    assert chunks[-1]["choices"][0]["finish_reason"] == joined["finish"] == "tool_calls"
    found = [{"name": call["name"], "arguments": json.loads(call["arguments"])} for call in joined["calls"]]
    assert found == case["expect"]["calls"]
    pieces = [piece for chunk in chunks for piece in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert [piece["index"] for piece in pieces] == sorted(piece["index"] for piece in pieces)
    named = [piece for piece in pieces if "name" in piece["function"]]
    assert [piece["index"] for piece in named] == list(range(len(found)))
    assert len({piece["id"] for piece in named}) == len(found)
    assert joined["reasoning"] == ("Go.\n\n" if case["id"] == "SA-014" else "")


def double_encoded(house: House, case: Case, _: pytest.LogCaptureFixture) -> None:
    answer = ask(house, case, messages=json.dumps([{"role": "user", "content": "Hi"}]))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages"


def late_system(house: House, case: Case, _: pytest.LogCaptureFixture) -> None:
    assert ask(house, case).status_code == 200
    assert house.prompt.count("Be brief.") == 1


def truncated_arguments(house: House, case: Case, _: pytest.LogCaptureFixture) -> None:
    assert ask(house, case).status_code == 200
    assert '{"q": "te' in house.prompt


def reasoning_alias(house: House, case: Case, _: pytest.LogCaptureFixture) -> None:
    message = ask(house, case).json()["choices"][0]["message"]
    assert "<think>\nCount.\n</think>\n\nTwo." in house.prompt
    assert message["reasoning"] == message["reasoning_content"] == "Fine.\n"


def responses_api(house: House, case: Case, _: pytest.LogCaptureFixture) -> None:
    house.says(generated(case))
    tools = [{"type": "function", **tool["function"]} for tool in case["tools"]]
    answer = house.post({"input": "Which jobs run?", "tools": tools}, "/v1/responses").json()
    assert [item["type"] for item in answer["output"]] == ["reasoning", "function_call"]
    assert answer["output"][1]["status"] == "completed"
    assert answer["output"][1]["name"] == "list_jobs"


def messages_api(house: House, case: Case, _: pytest.LogCaptureFixture) -> None:
    house.says(generated(case))
    functions = [tool["function"] for tool in case["tools"]]
    tools = [{"name": one["name"], "input_schema": one["parameters"]} for one in functions]
    body = {"messages": [{"role": "user", "content": "Jobs?"}], "max_tokens": 100, "tools": tools}
    answer = house.post(body, "/v1/messages").json()
    assert [block["type"] for block in answer["content"]] == ["thinking", "tool_use"]
    assert answer["stop_reason"] == "tool_use"
    assert answer["content"][1]["input"] == {}


def aborted(house: House, case: Case, _: pytest.LogCaptureFixture) -> None:
    before, dropped = house.totals(), house.replay.dropped
    text = generated(case)
    house.says([text[i : i + 4] for i in range(0, len(text), 4)] + ["\n"] * 200, delay=0.02)
    with httpx.stream("POST", house.url + "/v1/chat/completions", json={**request(case), "stream": True}) as answer:
        for line in answer.iter_lines():
            if '"name":"list_jobs"' in line:
                break
    assert house.wait_for(lambda: house.replay.dropped == dropped + 1), "the generation goes on"
    assert house.wait_for(lambda: house.gateway.admission.busy == 0)
    after = house.totals()
    assert after["cancelled"] - before["cancelled"] == 1
    assert after["requests"] - before["requests"] == 1
    assert after["errors"] == before["errors"]


def counters(house: House, _case: Case, _: pytest.LogCaptureFixture) -> None:
    totals = house.totals()
    reasons = {"mid_line", "fenced", "no_function", "indented", "quoted"}
    assert reasons == set(totals["rejected_candidates"])
    assert {"implicit_reasoning_ends", "undeclared_calls", "unfinished_calls", "coercion_failures"} <= set(totals)


def stop_tag(house: House, case: Case, _: pytest.LogCaptureFixture) -> None:
    choice = check_reply(house, case)
    assert choice["finish_reason"] == "tool_calls"
    assert house.replay.bodies[-1]["stop"] == ["</tool_call>"]


CHECKS: dict[str, Callable[[House, Case, pytest.LogCaptureFixture], None]] = {
    "SA-001": implicit_end,
    "SA-002": implicit_end,
    "SA-003": implicit_end,
    "SA-005": no_answer,
    "SA-006": plain,
    "SA-009": named_choice,
    "SA-010": budget,
    "SA-014": streamed,
    "SA-015": streamed,
    "SA-018": double_encoded,
    "SA-021": late_system,
    "SA-022": truncated_arguments,
    "SA-023": reasoning_alias,
    "SA-024": responses_api,
    "SA-025": messages_api,
    "SA-026": aborted,
    "SA-027": counters,
    "SA-028": stop_tag,
}


def test_every_case_has_a_check() -> None:
    assert set(CHECKS) == set(CASES)
    assert all(re.fullmatch(r"SA-\d{3}", name) for name in CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_server_case(name: str, house: House, caplog: pytest.LogCaptureFixture) -> None:
    CHECKS[name](house, CASES[name], caplog)
