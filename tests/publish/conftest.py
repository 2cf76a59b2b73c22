"""Packs to publish, whose licence and base model are known, and a Hub to publish to."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata_pack.pack.build import build_pack
from strata_pack.pack.request import BuildRequest
from strata_pack.weights.gguf.file import MetaValue
from strata_pack.weights.quantize.recipes import make_recipe
from tests.hub_server import HubServer
from tests.pack.tiny_gguf import STOCK, write_tiny

ORIGIN = {
    "general.license": MetaValue.string("apache-2.0"),
    "general.base_model.count": MetaValue.uint32(1),
    "general.base_model.0.repo_url": MetaValue.string("https://host/org/Base-1B"),
}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two packs of one model."""
    root = tmp_path_factory.mktemp("built")
    source = write_tiny(root / "Tiny.F32.gguf", STOCK, ORIGIN)
    for preset in ("Q8_0", "F16"):
        build_pack(BuildRequest(str(source), root / f"Tiny-{preset}", make_recipe(preset), template="keep"))
    return root


@pytest.fixture
def packs(built: Path, tmp_path: Path) -> list[Path]:
    """Copies of both packs that a test may change."""
    return [Path(shutil.copytree(built / name, tmp_path / "packs" / name)) for name in ("Tiny-Q8_0", "Tiny-F16")]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A Hub that is asked for by name alone; waiting between tries costs nothing."""
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        monkeypatch.setenv("HF_TOKEN", "token")
        monkeypatch.setenv("STRATA_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("time.sleep", lambda _seconds: None)
        yield server
