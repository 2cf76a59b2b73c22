"""The cases of layer "gateway": what the client sends as history reaches the model repaired, or is refused clearly."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.conftest import House, cases

CASES = cases("gateway/history.jsonl")


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_history_case(case: dict[str, Any], house: House) -> None:
    house.says("Fine.\n</think>\n\nFine.")
    answer = house.post({"messages": case["input"], "tools": case["tools"]})
    expect = case["expect"]
    if answer.status_code != 200:
        assert answer.status_code == 400
        assert expect["error_contains"] in answer.json()["error"]["message"]
        house.replay.script.clear()
        return
    prompt = house.prompt
    for text in expect.get("render_contains", []):
        assert text in prompt
    for text in expect.get("render_not_contains", []):
        assert text not in prompt
    assert prompt.endswith("<|im_start|>assistant\n<think>\n")
