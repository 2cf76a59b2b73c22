"""Fixtures of the template's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strata_pack.chat.engines.engines import Jinja2Engine
from strata_pack.pack.template.install import InstallResult, install_template


@pytest.fixture
def put(tmp_path: Path) -> Any:
    """Install a text with ``force`` and jinja2 alone, as most tests want it."""

    def run(path: Path, text: str, **options: Any) -> InstallResult:
        file = tmp_path / "new.jinja"
        file.write_text(text, encoding="utf-8", newline="")
        return install_template(path, str(file), engines=[Jinja2Engine()], **{"force": True, **options})

    return run
