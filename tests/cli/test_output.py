"""What a person and a program see: widths, colors, encodings, progress, escaped paths, suggestions, the cache."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table
from typer.testing import CliRunner

from strata_pack.chat.engines.engines import ENGINE_NAMES, open_engines
from strata_pack.chat.library import load_shipped
from strata_pack.cli import complete
from strata_pack.cli.app import app
from strata_pack.cli.bars import amount_text, open_progress
from strata_pack.cli.output import Out
from strata_pack.errors import WrongUse
from strata_pack.resources import cache_dir
from strata_pack.weights.quantize.presets import find_preset
from tests.cli.test_main import COMMAND

LONG = "blk.0.attn_q.weight_" * 8


def table() -> Table:
    found = Table("name", "value")
    found.add_row(LONG, "1234567890")
    return found


@pytest.mark.parametrize("columns", ["60", "80"])
def test_a_narrow_terminal_wraps_and_cuts_nothing(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    Out("terminal").show(table())
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert shown.count("attn_q.weight_") + shown.count("blk.0") >= 8
    assert "1234567890" in shown
    assert max(map(len, shown.splitlines())) <= int(columns)


@pytest.mark.parametrize(("color", "styled"), [("always", True), ("never", False), ("auto", False)])
def test_color_is_as_asked(color: Any, styled: bool, capsys: pytest.CaptureFixture[str]) -> None:
    Out("terminal", color).show(Table("bold", title="title"))
    assert ("\x1b[" in capsys.readouterr().out) == styled


def test_an_ascii_terminal_gets_ascii_frames() -> None:
    done = subprocess.run(
        [COMMAND, "template", "list"], capture_output=True, env={**os.environ, "LC_ALL": "C"}, check=True, timeout=60
    )
    assert done.stdout.isascii()
    assert b"qwen3.8-flash-next" in done.stdout


@pytest.mark.parametrize(
    ("done", "total", "unit", "text"),
    [
        (0, 900, "bytes", "0 of 900 bytes"),
        (1_500, 20_000, "bytes", "1.5 of 20.0 kB"),
        (12_340_000, 98_000_000, "bytes", "12.3 of 98.0 MB"),
        (2_500_000_000, None, "bytes", "2.5 GB"),
        (3, 9, "cases", "3 of 9 cases"),
    ],
)
def test_piped_progress_has_the_unit_that_fits(done: int, total: int | None, unit: str, text: str) -> None:
    assert amount_text(done, total, unit) == text


def test_json_progress_is_one_object_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with open_progress("json") as progress:
        task = progress.task("hash", 10)
        task.advance(10)
        task.done()
        progress.note("all\nthere")
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [event["event"] for event in events] == ["start", "done", "note"]
    assert events[1] == {"event": "done", "task": 1, "label": "hash", "total": 10, "unit": "bytes", "done": 10}


def test_a_path_is_printed_with_its_controls_escaped(tmp_path: Path) -> None:
    done = subprocess.run(
        [COMMAND, "verify", tmp_path / "a\x1b[2Jb\nc"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, "\x1b" in done.stderr, r"a\x1b[2Jb\nc: " in done.stderr) == (2, False, True)


def use_engine() -> None:
    with open_engines(["jinja"], ""):
        pass


@pytest.mark.parametrize(
    ("use", "nearest"),
    [
        (lambda: find_preset("Q4_KM"), "'Q4_K_M'"),
        (lambda: load_shipped("qwen3.8-flash-nxt"), "'qwen3.8-flash-next'"),
        (use_engine, "'jinja2'"),
    ],
    ids=["preset", "template", "engine"],
)
def test_a_mistyped_value_gets_the_nearest_one(use: Callable[[], object], nearest: str) -> None:
    with pytest.raises(WrongUse, match=f"did you mean {nearest}.*; choose from "):
        use()


def test_a_mistyped_scenario_gets_the_nearest_one() -> None:
    scenario = "forced-calls"
    result = CliRunner().invoke(app, ["smoke", "--url", "http://127.0.0.1:9", "--only", f"{scenario}x"])
    assert (result.exit_code, f"did you mean '{scenario}'" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("complete_names", "start", "wanted"),
    [
        (complete.presets, "q4_k_", {"Q4_K_M", "Q4_K_S"}),
        (complete.templates, "qwen", {"qwen3.8-flash-next"}),
        (complete.engines, "", {*ENGINE_NAMES, "all"}),
        (complete.runtimes, "emb", {"embedded"}),
        (complete.outtypes, "b", {"bf16"}),
        (complete.types, "q4", {"Q4_0", "Q4_K"}),
        (complete.programs, "", {"ollama", "oci"}),
        (complete.rules, "ST30", {"ST301", "ST303"}),
    ],
    ids=["presets", "templates", "engines", "runtimes", "outtypes", "types", "programs", "rules"],
)
def test_values_are_completed(complete_names: Callable[[str], list[str]], start: str, wanted: set[str]) -> None:
    assert wanted <= set(complete_names(start))


def test_the_shell_completes_a_preset() -> None:
    words = {
        "_STRATA_PACK_COMPLETE": "complete_bash",
        "COMP_WORDS": "strata-pack quantize --quant Q4_K_",
        "COMP_CWORD": "3",
    }
    done = subprocess.run(
        [COMMAND], capture_output=True, text=True, env={**os.environ, **words}, check=True, timeout=60
    )
    assert "Q4_K_M" in done.stdout.split()


def test_cache_clean_asks_first_and_removes_what_was_named() -> None:
    (cache_dir() / "runtimes/one").mkdir(parents=True)
    (cache_dir() / "runtimes/one/file").write_bytes(b"x" * 2000)
    (cache_dir() / "runtimes/two").mkdir(parents=True)
    run = CliRunner().invoke
    listed = json.loads(run(app, ["cache", "list", "--json"]).stdout)
    sizes = {entry["name"]: entry["size"] for entry in listed["entries"]}
    assert (sizes["runtimes/one"], sizes["runtimes/two"]) == (2000, 0)
    assert run(app, ["cache", "clean", "runtimes/one"]).exit_code == 2
    assert run(app, ["cache", "clean", "runtimes/one", "--dry-run"]).exit_code == 0
    assert (cache_dir() / "runtimes/one").is_dir()
    assert run(app, ["cache", "clean", "runtimes/one", "--yes"]).exit_code == 0
    assert not (cache_dir() / "runtimes/one").exists()
    assert (cache_dir() / "runtimes/two").is_dir()


def test_env_says_what_a_fault_report_needs() -> None:
    facts = json.loads(CliRunner().invoke(app, ["env", "--json"]).stdout)
    assert facts["ok"]
    assert {"strata-pack", "python", "platform", "packages", "runtimes", "devices", "folders"} <= set(facts)


INTERRUPTED = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["template", "list"]
from strata_pack.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("module", "code", "text"),
    [
        ("strata_pack.cli.app", -signal.SIGINT, ""),
        ("typer", -signal.SIGINT, ""),
        ("strata_pack.cli.template", -signal.SIGINT, ""),
        ("strata_pack.chat.library", 130, "strata-pack: interrupted; what was finished is kept\n"),
    ],
)
def test_control_c_while_it_starts_is_no_traceback(module: str, code: int, text: str) -> None:
    program = INTERRUPTED.format(module=module)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (code, text)


@pytest.mark.parametrize(
    ("given", "text", "shown"),
    [
        ("packs/mine", "{cwd}/packs/mine: is damaged", "packs/mine: is damaged"),
        ("packs/mine", "see {cwd}/packs/mine/manifest.json", "see packs/mine/manifest.json"),
        ("packs/mine", "{cwd}/packs/mine-2: other", "{cwd}/packs/mine-2: other"),
        ("../up", "{cwd}/../up: x", "../up: x"),
        (".", "{cwd}/manifest.json", "./manifest.json"),
    ],
)
def test_a_path_is_printed_as_it_was_given(
    given: str, text: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = Out("terminal")
    out.remember([Path(given)])
    assert out.as_given(text.format(cwd=tmp_path)) == shown.format(cwd=tmp_path)
