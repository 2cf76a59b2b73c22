"""The tiny models that are quantized, written once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.weights.quantize.models import write_model
from tests.weights.quantize.whole_files import SHAPES


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write_model(folder / f"{name}.gguf", shape) for name, shape in SHAPES.items()}


@pytest.fixture(scope="session")
def dense(models: dict[str, Path]) -> Path:
    return models["dense"]
