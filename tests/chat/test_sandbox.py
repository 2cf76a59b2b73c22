"""A hostile template ends in a ``TemplateError``: soon, and without taking the memory of the machine."""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path

import pytest

from strata_pack.chat.template import ChatTemplate, Limits, TemplateError

DATA = Path(__file__).parent.parent / "data" / "chat"
HOSTILE = json.loads((DATA / "hostile.json").read_text())

PATIENCE = 5.0
"""Seconds; the limit under test is ``SHORT.seconds``, the rest is a loaded machine."""
SHORT = Limits(seconds=0.3, made_chars=64 << 20)
MEMORY = 512 << 20


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_template_is_stopped(source: str) -> None:
    start, peak = time.monotonic(), _peak_bytes()
    with pytest.raises(TemplateError):
        ChatTemplate(source, limits=SHORT).render([{"role": "user", "content": "Hi"}], data=b"abc")
    assert time.monotonic() - start < PATIENCE
    assert _peak_bytes() - peak < MEMORY
