"""A tiny model with the repaired template, and one whole smoke run of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_pack.chat.library import load_shipped
from strata_pack.report import Report
from strata_pack.smoke.run import SmokeOptions, run_smoke
from tests.smoke.tiny import write_tiny_model

TEMPLATE = "qwen3.8-flash-next"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    return write_tiny_model(folder / "tiny.gguf", chat_template=load_shipped(TEMPLATE).source)


@pytest.fixture(scope="session")
def options(tmp_path_factory: pytest.TempPathFactory) -> SmokeOptions:
    return SmokeOptions(threads=1, log_dir=tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="session")
def whole(tiny: Path, options: SmokeOptions) -> Report:
    return run_smoke(tiny, options=options)
