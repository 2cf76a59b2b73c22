"""SIGTERM while a server loads its model: the gateway and the server end at once, whatever the time limits are."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.gateway.server.served import COMMAND, Served
from tests.pack.tiny_gguf import write_tiny

LIMIT = 60
"""Seconds in which all has to be over: a tenth of the time that a start, and a drain, may take here."""


@pytest.fixture
def never_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A llama-server that loads for ever, and notes that it has begun."""
    begun = tmp_path / "begun"
    program = tmp_path / "llama-server"
    program.write_text(f"#!/bin/sh\ntouch {begun}\nexec sleep 100000\n")
    program.chmod(0o755)
    monkeypatch.setenv("STRATA_LLAMA_SERVER", str(program))
    return begun


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + LIMIT
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ends(process: subprocess.Popen[str]) -> bool:
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    return True


def test_a_pack_that_loads_at_the_start_is_given_up(tmp_path: Path, never_ready: Path) -> None:
    model = write_tiny(tmp_path / "tea.gguf")
    command = [COMMAND, "serve", str(model), "--runtime", "llama-server", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(never_ready)
    assert ends(process)


def test_loading_on_request_can_be_stopped_and_the_client_gets_an_error(tmp_path: Path, never_ready: Path) -> None:
    models = [str(write_tiny(tmp_path / f"{name}.gguf")) for name in ("tea", "coffee")]
    served = Served(*models, "--runtime", "llama-server", "--drain", "600")
    status: list[int] = []
    body = {"model": "tea", "messages": [{"role": "user", "content": "Hi"}]}

    def ask() -> None:
        status.append(httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=600).status_code)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_for(never_ready)
    children = served.descendants()
    assert children
    assert ends(served.process)
    asking.join(LIMIT)
    assert status == [503]
    deadline = time.monotonic() + LIMIT
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)
