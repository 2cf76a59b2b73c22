"""A tiny source and the request to build a pack of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strata_pack.pack.request import BuildRequest
from strata_pack.weights.quantize.recipes import make_recipe
from tests.pack.tiny_gguf import write_tiny
from tests.pack.tiny_pack import CASES


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "Tiny.F32.gguf")


@pytest.fixture
def request_(tmp_path: Path, source: Path) -> BuildRequest:
    (tmp_path / "golden.json").write_text(json.dumps(CASES))
    return BuildRequest(
        str(source), tmp_path / "out/pack", make_recipe("Q8_0"), template="keep", golden=tmp_path / "golden.json"
    )
