"""Hand a checkpoint that was fetched in byte ranges to the normal fetch, which checks the files' hashes.

If a hash differs from the Hub's, the fetch downloads that file again, and tensors written from the ranges are
discarded.
"""

from __future__ import annotations

import os
from pathlib import Path

from strata_pack.files import dump_json, read_json_object, write_atomic
from strata_pack.pack.model_source import Model, hub_folder
from strata_pack.weights.hub.state import part_path, read_fetch_record
from strata_pack.weights.source import HubSource, parse_source

PROVED = "proved"
MOVED = "moved.json"


def take_ranges(split: Path, source: str, state: Path) -> dict[str, int]:
    """Register a split run's files as partial downloads of the fetch; return their modification times by name."""
    named = parse_source(source)
    assert isinstance(named, HubSource)
    target = hub_folder(named, state / "source")
    record = read_fetch_record(target)
    assert record is not None, "a split run begins with a fetch"
    files = {file.path: file for file in record.tree.files}
    folder = split / "source" / target.name
    place = split / MOVED
    if not place.is_file():
        weights = [path for path in sorted(folder.rglob("*.safetensors")) if path.is_file()]
        times = {path.relative_to(folder).as_posix(): path.stat().st_mtime_ns for path in weights}
        write_atomic(place, dump_json(times))
    moved: dict[str, int] = read_json_object(place)
    for name in moved:
        part = part_path(target, files[name])
        if (folder / name).is_file():
            part.parent.mkdir(parents=True, exist_ok=True)
            os.replace(folder / name, part)
    return moved


def prove_ranges(split: Path, model: Model, moved: dict[str, int]) -> None:
    """Record whether the fetch accepted every file; a file that was downloaded again has another modification time."""
    taken = {file.name: file.path.stat().st_mtime_ns for file in model.files if file.name in moved}
    if taken == moved:
        write_atomic(split / PROVED, b"")


def is_proved(split: Path) -> bool:
    """Return whether the tensors were written from bytes whose hashes the fetch has checked."""
    return (split / PROVED).is_file()
