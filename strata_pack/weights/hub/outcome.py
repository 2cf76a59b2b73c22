"""What a fetch is going to do and what it did, as data for people and programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from strata_pack.weights.hub.select import Selection
from strata_pack.weights.hub.tree import RepoTree
from strata_pack.weights.preflight import size_text

FileOrigin = Literal["present", "cache", "network"]


@dataclass(frozen=True)
class FetchedFile:
    """One file in the folder: ``path`` relative to it, ``size`` in bytes, ``sha256`` as computed here.

    ``origin`` says where it came from in this run. A "cache" file may share its bytes with the Hub cache (hard link):
    replace such a file, never write into it.
    """

    path: str
    size: int
    sha256: str
    origin: FileOrigin


@dataclass(frozen=True)
class FetchPlan:
    """What a fetch is going to do: known before the first body travels. Sizes in bytes."""

    tree: RepoTree
    selection: Selection
    origins: dict[str, FileOrigin]
    to_travel: int

    def sentence(self) -> str:
        """Return the plan as one line."""
        count, skipped = len(self.selection.files), len(self.selection.skipped)
        here = self.selection.nbytes - self.to_travel
        return (
            f"{self.tree.repo_id} at {self.tree.commit[:12]}: {count} files, {size_text(self.selection.nbytes)} "
            f"({self.selection.weights.format}); {size_text(here)} here already, {size_text(self.to_travel)} to fetch; "
            f"{skipped} other files are not needed"
        )


@dataclass(frozen=True)
class FetchResult:
    """The folder after a fetch; ``travelled`` are the bytes of bodies that came over the network in this run."""

    repo_id: str
    revision: str
    commit: str
    folder: Path
    selection: Selection
    files: tuple[FetchedFile, ...]
    travelled: int


def plan_dict(plan: FetchPlan) -> dict[str, object]:
    """Return a plan as the JSON object of ``fetch --dry-run --json``."""
    return {
        "ok": True,
        "repo_id": plan.tree.repo_id,
        "revision": plan.tree.revision,
        "commit": plan.tree.commit,
        "format": plan.selection.weights.format,
        "bytes": plan.selection.nbytes,
        "bytes_to_travel": plan.to_travel,
        "files": [
            {"path": file.path, "size": file.size, "origin": plan.origins[file.path]} for file in plan.selection.files
        ],
        "skipped": [file.path for file in plan.selection.skipped],
    }


def result_dict(result: FetchResult) -> dict[str, object]:
    """Return a result as the JSON object of ``fetch --json``."""
    return {
        "ok": True,
        "repo_id": result.repo_id,
        "revision": result.revision,
        "commit": result.commit,
        "folder": str(result.folder),
        "format": result.selection.weights.format,
        "bytes_travelled": result.travelled,
        "files": [asdict(file) for file in result.files],
    }
