"""A converted Qwen3.8-Flash-Next computes what transformers computes: the proof that names and order mean the same."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata_pack.llama import logits_native
from strata_pack.weights.convert.convert import SafetensorsSource, convert_checkpoint
from tests.conftest import ROOT
from tests.tiny_models import write_model
from tests.weights.convert.record_logits import TOKENS

RECORDED = ROOT / "tests/data/weights/flash_logits.npz"
NOISE = 1e-4
"""Both sides add float32 in other orders: 9e-6 was measured, for logits up to 2.2."""


class FullPrecision:
    """llama.cpp's library with a context that keeps keys and values in float32."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def llama_context_default_params(self) -> Any:
        params = self._library.llama_context_default_params()
        params.type_k = params.type_v = params.flash_attn_type = 0
        return params


@pytest.fixture
def logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return llama.cpp's logits at every position of the tokens, from the file converted to F32."""
    library = logits_native.load_library()
    monkeypatch.setattr(logits_native, "load_library", lambda: FullPrecision(library))
    with SafetensorsSource.open(write_model("flash", tmp_path / "flash"), "f32") as source:
        convert_checkpoint(source, tmp_path / "flash.gguf")
    with logits_native.LogitsModel(tmp_path / "flash.gguf", context=64, threads=2) as model:
        return model.logits(list(TOKENS), 0)


def test_logits_are_those_of_transformers(logits: Any) -> None:
    recorded = np.load(RECORDED)
    assert np.abs(logits[-1] - recorded["last"]).max() < NOISE
    assert (logits.argmax(axis=-1) == recorded["likeliest"]).all()


@pytest.mark.slow
@pytest.mark.torch
def test_logits_are_those_of_transformers_here(logits: Any, tmp_path: Path) -> None:
    python = os.environ.get("TRANSFORMERS_PYTHON")
    if not python:
        pytest.skip("TRANSFORMERS_PYTHON names no Python with torch and transformers 5")
    command = [python, "-m", "tests.weights.convert.record_logits", str(tmp_path / "flash"), str(tmp_path / "out.npz")]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    found = np.load(tmp_path / "out.npz")
    assert np.abs(logits[-1] - found["last"]).max() < NOISE
    assert (logits.argmax(axis=-1) == found["likeliest"]).all()
