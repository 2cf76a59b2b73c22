"""A GGUF file with every type of value."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.weights.gguf.samples import sample_bytes


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    path = tmp_path / "sample.gguf"
    path.write_bytes(sample_bytes())
    return path
