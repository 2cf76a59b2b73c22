"""A checkpoint that came range by range, given to the fetch as bodies that have arrived: it proves their hashes.

If one of them is not what the Hub says, the fetch gets it anew, and what was written from the ranges does not count.
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
    """Make the files of a split run the fetch's partial bodies; return their times of change by name."""
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
    """Note that the fetch has taken every file as it came; a file that was fetched anew has another time of change."""
    taken = {file.name: file.path.stat().st_mtime_ns for file in model.files if file.name in moved}
    if taken == moved:
        write_atomic(split / PROVED, b"")


def is_proved(split: Path) -> bool:
    """Return whether what was written from the ranges is from the bytes that the Hub names."""
    return (split / PROVED).is_file()
