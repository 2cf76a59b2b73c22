"""Fixtures of the fetch tests: a Hub on this machine and a cache of our own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strata_pack.weights.hub.fetch import fetch_repo
from strata_pack.weights.hub.outcome import FetchResult
from tests.hub_server import HubServer, serve
from tests.weights.hub.fixtures import FILES, QUICK, REPO, Fetch


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
        return fetch_repo(REPO, revision, dest, **{"retry_policy": QUICK, "endpoint": hub.endpoint, **options})

    return run
