"""Fixtures of the fetch tests: a Hub on this machine, a cache of our own, and faults that do not make us wait."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from strata_pack.weights.hub.connection import Patience
from strata_pack.weights.hub.fetch import fetch_repo
from strata_pack.weights.hub.outcome import FetchResult
from tests.hub_server import HubServer, serve

REPO = "org/model"
WEIGHTS = "model.safetensors"
QUICK = Patience(tries=4, base_seconds=0.01, cap_seconds=0.02, longest_wait_seconds=2.0, timeout_seconds=5.0)
BODY = random.Random(7).randbytes(300_000)
FILES = {"config.json": b"{}", "tokenizer.json": b'{"a":1}', WEIGHTS: BODY, "pytorch_model.bin": b"pickle"}
SELECTED = ["config.json", WEIGHTS, "tokenizer.json"]
TOTAL = sum(len(FILES[name]) for name in SELECTED)

Fetch = Callable[..., FetchResult]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub with one repository; ``HF_HUB_CACHE`` is a folder of our own."""
    with serve({REPO: FILES}) as server:
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        yield server


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def fetched(hub: HubServer, dest: Path) -> Fetch:
    """Fetch the repository into ``dest``."""

    def run(revision: str | None = None, **options: Any) -> FetchResult:
        return fetch_repo(REPO, revision, dest, **{"patience": QUICK, "endpoint": hub.endpoint, **options})

    return run
