"""A running ``strata-pack serve``, for tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2 as httpx

COMMAND = str(Path(sys.executable).parent / "strata-pack")


def announced(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what a ``strata-pack serve --json`` prints on stdout when it listens."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if line.rstrip() == "}":
            break
    facts: dict[str, Any] = json.loads(text)
    return facts


class Served:
    """A running ``strata-pack serve`` and what it announced."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [COMMAND, "serve", *options, "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.facts = announced(self.process)
        self.url: str = self.facts["url"]

    def post(self, **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, **fields}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=120)

    def descendants(self) -> list[int]:
        return _descendants(self.process.pid)


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text(encoding="ascii").split():
            found += [int(child), *_descendants(int(child))]
    return found
