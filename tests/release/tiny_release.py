"""A release of a tiny model: three files, all kinds of nodes but the slow ones, made in seconds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from strata_pack.files import sha256_file
from strata_pack.progress import Silent
from strata_pack.release.local_executor import InProcess
from strata_pack.release.release_file import read_release
from strata_pack.release.run import Outcome, open_schedule, run_releases
from strata_pack.release.schedule import Schedule
from tests.pack.tiny_gguf import STOCK, write_tiny

CASES = [{"name": "one", "messages": [{"role": "user", "content": "Hi"}], "expected": "user: Hi\n"}]
HEAD = """\
[release]
name = "Tiny"
source = "tiny.gguf"
template = "template.jinja"
golden = "golden.json"
"""
MEASURED = """
[imatrix]
text = ["calibration.txt"]
chunks = 1
context = 64
"""
PACKS = """
[[pack]]
quant = "Q8_0"
imatrix = false
[[pack]]
quant = "Q4_0"
"""
GATES = """
[gates]
kl_mean = 5.0
kl_windows = 1
kl_context = 64
kl_text = ["measured.txt"]
"""
TEXT = "All the world is a stage, and all the men and women merely players. " * 4


def write_release(folder: Path, text: str = HEAD + PACKS) -> Path:
    """Write the model, its side files and the release file with ``text`` into ``folder``; return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tiny(folder / "tiny.gguf")
    (folder / "template.jinja").write_text(STOCK)
    (folder / "golden.json").write_text(json.dumps(CASES))
    (folder / "calibration.txt").write_text(TEXT)
    (folder / "measured.txt").write_text(TEXT)
    file = folder / "release.toml"
    file.write_text(text)
    return file


def run(file: Path) -> Outcome:
    """Run the release in this process."""
    return run_releases([open_schedule(read_release(file))], InProcess(Silent(), threads=1))


def made(schedule: Schedule) -> set[str]:
    """Return the nodes that the run has made."""
    return {node for node, state in schedule.states.items() if state == "made"}


def run_again(file: Path) -> set[str]:
    """Run the release and return the nodes that it made; every node must end well."""
    outcome = run(file)
    (schedule,) = outcome.schedules
    assert schedule.failures == {}
    return made(schedule)


def pack_hashes(file: Path) -> Mapping[str, str]:
    """Return the hash of every file that a release makes, but for pages and reports, which tell times."""
    out = file.parent / "packs"
    found = {path.relative_to(out).as_posix(): path for path in sorted(out.rglob("*")) if path.is_file()}
    kept = {
        name: path
        for name, path in found.items()
        if not name.startswith((".release/results", ".release/log", ".release/split", "report"))
        and "/reports/" not in name
        and ".strata-fetch" not in name
    }
    return {name: sha256_file(path) for name, path in [*kept.items(), ("lock", file.with_suffix(".lock"))]}


def copied(pristine: Path, folder: Path) -> Path:
    """Return the release file of a copy of a release's folder; the copied source has been hashed again."""
    shutil.copytree(pristine.parent, folder, copy_function=shutil.copy2)
    file = folder / pristine.name
    assert run_again(file) == {"fetch"}
    return file
