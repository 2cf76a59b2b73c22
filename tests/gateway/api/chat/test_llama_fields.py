"""Fields of llama-server's own chat replies: its build, its timings, the progress of the prompt."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.conftest import House, join_chunks

TIMINGS = {"cache_n": 0, "predicted_n": 2, "predicted_ms": 1.0}
OPEN = ["a</think>\n\n", "b"]


def reported(chunks: list[dict[str, Any]], field: str) -> list[Any]:
    return [chunk[field] for chunk in chunks if field in chunk]


def test_a_reply_names_the_build_of_the_server_and_its_timings(house: House) -> None:
    reply = house.chat(OPEN)
    assert reply["system_fingerprint"] == "b1-replay"
    assert reply["timings"].items() >= TIMINGS.items()


@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_names_the_build_in_every_chunk_and_the_timings_in_the_last(house: House, usage: bool) -> None:
    chunks = house.stream(OPEN, stream_options={"include_usage": usage})
    assert all(chunk["system_fingerprint"] == "b1-replay" for chunk in chunks)
    assert chunks[-1]["timings"].items() >= TIMINGS.items()
    assert not reported(chunks[:-2], "timings")


def test_a_reply_of_several_choices_has_no_timings_as_a_whole(house: House) -> None:
    house.says(OPEN)
    assert "timings" not in house.chat(OPEN, n=2)


def test_timings_of_two_completions_are_added(house: House) -> None:
    house.says(["word "] * 8)
    timings = house.chat(["The", " answer."], reasoning_budget=8)["timings"]
    assert timings["predicted_n"] == 10
    assert (timings["predicted_ms"], timings["predicted_per_token_ms"], timings["predicted_per_second"]) == (
        2,
        0.2,
        5000,
    )
    assert timings["prompt_n"] == sum(len(body["prompt"]) for body in house.replay.bodies)


def test_timings_come_with_each_piece_if_they_are_wanted(house: House) -> None:
    chunks = house.stream(OPEN, timings_per_token=True)
    texts = [chunk for chunk in chunks if chunk["choices"][0]["delta"].get("content")]
    assert texts[-1]["timings"].items() >= TIMINGS.items()
    assert join_chunks(chunks)["content"] == "b"


def test_the_progress_of_the_prompt_comes_before_the_text_if_it_is_wanted(house: House) -> None:
    chunks = house.stream(OPEN, return_progress=True)
    size = len(house.prompt)
    at = [number for number, chunk in enumerate(chunks) if "prompt_progress" in chunk]
    assert [chunks[number]["prompt_progress"]["processed"] for number in at] == [size]
    assert join_chunks(chunks[: at[0] + 1])["reasoning"] in ("", "a")
    assert join_chunks(chunks)["reasoning"] == "a"


@pytest.mark.parametrize("field", ["timings_per_token", "return_progress"])
def test_reports_during_the_reply_need_a_stream(house: House, field: str) -> None:
    house.chat(OPEN, **{field: True})
    assert field not in house.replay.bodies[-1]
