"""Every command that the pages print runs, and prints what the page shows, up to its numbers and this machine."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, load_tool
from tests.gateway.server.served import Served
from tests.hub_server import folder_files, serve
from tests.tiny_models import write_model

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/commands.md").read_text(encoding="utf-8")


TOOL = load_tool("printed_commands")
BLOCKS = [list(TOOL.printed(block)) for block in TOOL.BLOCK.findall(PAGE)]
BLOCKS = [block for block in BLOCKS if not block[0].command.startswith(TOOL.READERS_OWN)]
QUICK = ("template list", "template show", "template prefix", "printf ", "runtime list", "python -m tests.tiny_models")
"""Beginnings of blocks that need no pack of real weights and run in the fast suite."""

OF_THIS_MACHINE = re.compile(
    r"^(?:runtime|machine|memory|compute|devices|fits|embedded|context|\* embedded|quantizing)\b"
)


def is_quick(block: list[object]) -> bool:
    return block[0].command.removeprefix("strata-pack ").startswith(QUICK)  # type: ignore[attr-defined]


def shape(lines: list[str]) -> str:
    """Return the words of an output: without numbers, hashes, generated texts, drawn lines and this machine's facts."""
    text = "\n".join(line for line in lines if not OF_THIS_MACHINE.match(line))
    text = re.sub(r'"(content|reasoning|reasoning_content)":"(?:[^"\\]|\\.)*"', r'"\1":"..."', text)
    text = re.sub(r"\b(?:call|chatcmpl)[_-][0-9a-f]+", "ID", text)
    text = re.sub(r"\b[0-9a-f]{10,}\b", "HASH", text)
    text = re.sub(r"\b\d[\d.,]*\b", "0", text)
    return " ".join(re.sub(r"[━─┏┳┓┡╇┩│┃└┴┘░█▓]+", " ", text).split())


def check(block: list[object], session: object) -> None:
    for shown in block:
        lines = TOOL.shortened(session.run(shown), shown.lines)  # type: ignore[attr-defined]
        assert shape(lines) == shape(list(shown.lines)), f"$ {shown.command}"  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    with TOOL.Session(tmp_path_factory.mktemp("page")) as opened:
        yield opened


@pytest.mark.xdist_group("printed-commands")
@pytest.mark.parametrize("block", list(filter(is_quick, BLOCKS)), ids=lambda block: block[0].command[:50])
def test_a_printed_command_prints_what_the_page_shows(block: list[object], session: object) -> None:
    check(block, session)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_commands_of_the_page_in_their_order_print_what_it_shows(smollm2: Path, tmp_path: Path) -> None:
    assert smollm2.is_file()
    with TOOL.Session(tmp_path) as session:
        for block in BLOCKS:
            check(block, session)


STORY = README[README.index("## From a Hub id") : README.index("## The commands")]
COMMANDS = [line.partition("  #")[0].strip() for line in re.findall(r"^\$ (.*)$", STORY, re.MULTILINE)]
SCRIPT = re.findall(r"^```python\n(.*?)^```", STORY, re.MULTILINE | re.DOTALL)[0]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_story_of_the_readme_works_on_a_local_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build, prove, start = COMMANDS
    name = build.split()[2]
    monkeypatch.chdir(tmp_path)
    with serve({name: folder_files(write_model("qwen3", tmp_path / "model"))}) as hub:
        environment = {"HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": str(tmp_path / "hub")}
        with TOOL.Session(tmp_path / "reader", environment) as session:
            session.environment |= environment
            session.run(TOOL.Printed(build, ()))
            pack = session.folder / "packs/qwen"
            # Random weights prove nothing about speech; what is proved of files and templates must hold.
            with pytest.raises(SystemExit, match=r"exit code 1\n"):
                session.run(TOOL.Printed(prove, ()))
            assert '"status": "failed"' not in (pack / "reports/golden.json").read_text(encoding="utf-8")
            session.run(TOOL.Printed("strata-pack verify packs/qwen", ()))
            assert start == "strata-pack serve packs/qwen --port 8080"
            served = Served(str(pack))
            try:
                script = SCRIPT.replace("http://127.0.0.1:8080", served.url)
                done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
            finally:
                served.process.terminate()
                served.process.communicate(timeout=60)
    assert done.returncode == 0, done.stderr
