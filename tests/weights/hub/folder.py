"""What a fetch leaves in its folder."""

from __future__ import annotations

from pathlib import Path

from strata_pack.weights.hub import state as fetch_state
from strata_pack.weights.hub.tree import STATE_FOLDER, RepoFile
from tests.hub_repos import etag_of
from tests.weights.hub.fixtures import FILES, SELECTED, WEIGHTS


def holds(dest: Path, files: dict[str, bytes] = FILES) -> bool:
    return all((dest / name).read_bytes() == files[name] for name in SELECTED)


def parts(dest: Path) -> list[Path]:
    folder = dest / STATE_FOLDER / "parts"
    return sorted(folder.iterdir()) if folder.is_dir() else []


def leave_part(dest: Path, data: bytes, name: str = WEIGHTS) -> None:
    """Put a partial body where a killed fetch leaves it."""
    body = FILES[name]
    file = RepoFile(name, len(body), "", etag_of(body))
    path = fetch_state.part_path(dest, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
