"""``serve PACK PACK`` with real servers: one at a time, one that is killed, one that goes bad, and a clean end."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.gateway.conftest import TEMPLATE_ID, events
from tests.gateway.server.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def folder(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in ("tea", "coffee"):
        shutil.copy(smollm2, folder / f"{name}.gguf")
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    made = Served(
        *(str(folder / "tea.gguf"), str(folder / "coffee.gguf"), "--template", TEMPLATE_ID),
        *("--max-loaded", "1", "--idle", "30", "--context", "1024"),
    )
    yield made
    if made.process.poll() is None:
        made.process.send_signal(signal.SIGTERM)
        made.process.communicate(timeout=120)


def states(served: Served) -> dict[str, str]:
    listed: list[dict[str, Any]] = httpx.get(f"{served.url}/v1/models", timeout=120).json()["data"]
    return {one["id"]: one["state"] for one in listed}


def test_nothing_is_loaded_before_it_is_asked_for(served: Served) -> None:
    assert states(served) == {"tea": "unloaded", "coffee": "unloaded"}
    assert served.descendants() == []


def test_two_first_requests_at_once_and_one_of_another_model_are_all_answered(served: Served) -> None:
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda name: served.post(model=name), ("tea", "tea", "coffee", "tea")))
    assert [answer.status_code for answer in answers] == [200] * 4
    assert [answer.json()["model"] for answer in answers] == ["tea", "tea", "coffee", "tea"]
    assert list(states(served).values()).count("loaded") == 1


def test_a_killed_server_is_replaced_for_the_next_request(served: Served) -> None:
    assert served.post(model="tea").status_code == 200
    for pid in served.descendants():
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while (status := served.post(model="tea").status_code) != 200:
        assert status in (502, 503)
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_model_whose_file_went_bad_is_a_503_and_the_other_goes_on(served: Served, folder: Path) -> None:
    assert served.post(model="tea").status_code == 200
    good = folder / "coffee.gguf"
    kept = folder / "kept"
    good.rename(kept)
    good.write_bytes(kept.read_bytes()[:1000])
    answer = served.post(model="coffee")
    assert answer.status_code == 503
    assert "coffee" in answer.json()["error"]["message"]
    assert served.post(model="tea").status_code == 200
    kept.replace(good)


def test_the_end_lets_a_stream_end_and_leaves_no_process(served: Served) -> None:
    body = {"model": "tea", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20, "stream": True}
    with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=body, timeout=120) as answer:
        lines = answer.iter_lines()
        first = next(lines)
        servers = served.descendants()
        served.process.send_signal(signal.SIGTERM)
        text = "\n".join([first, *lines])
    assert text.rstrip().endswith("data: [DONE]")
    assert events(text)[-1]["choices"][0]["finish_reason"] in ("length", "stop")
    _, errors = served.process.communicate(timeout=120)
    assert "Traceback" not in errors
    assert servers
    assert not any(Path(f"/proc/{pid}").exists() for pid in servers)
