"""The scripts of docs/python.md run, one after the other, in one folder, as a reader would run them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from strata_pack.chat.library import load_shipped
from tests.conftest import ROOT
from tests.pack.tiny_gguf import write_tiny

PAGE = (ROOT / "docs/python.md").read_text(encoding="utf-8")
SCRIPTS = re.findall(r"^## (.+?)\n.*?^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)

PRINTS = {
    "Render a prompt": "<|im_start|>user\nHello<|im_end|>",
    "Repair a template": "not needed because",
    "Check golden cases": "jinja2 passed",
    "Parse a stream": "tool_call",
    "Build a pack": "my-pack",
    "Verify it": "Q8_0",
}
"""A part of what each script prints."""


RUN = """
import contextlib, io, json, sys, traceback
for script in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            exec(script, {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc(file=printed)
            print("FAILED")
    print(json.dumps(printed.getvalue()))
"""
"""Runs scripts one after the other and prints what each printed as one line of JSON."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    shipped = load_shipped("qwen3.8-flash-next")
    (folder / "chat_template.jinja").write_text(shipped.source, encoding="utf-8")
    (folder / "golden").mkdir()
    shutil.copy(ROOT / "golden/qwen3.8-flash-next/golden.json", folder / "golden")
    write_tiny(folder / "model.gguf")
    return folder


@pytest.fixture(scope="session")
def printed(folder: Path) -> dict[str, str]:
    """What each script prints, by its title."""
    scripts = json.dumps([script for _, script in SCRIPTS])
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=scripts, cwd=folder, capture_output=True, text=True, check=True
    )
    return dict(zip((title for title, _ in SCRIPTS), map(json.loads, done.stdout.splitlines()), strict=True))


def test_every_script_has_an_expectation() -> None:
    assert [title for title, _ in SCRIPTS] == list(PRINTS)


@pytest.mark.xdist_group("python-page")
@pytest.mark.parametrize("title", PRINTS)
def test_a_script_of_the_page_runs(printed: dict[str, str], title: str) -> None:
    assert PRINTS[title] in printed[title]
    assert "FAILED" not in printed[title]


def test_the_page_teaches_no_deep_path() -> None:
    assert re.findall(r"from strata_pack\.\w+\.", PAGE) == []
