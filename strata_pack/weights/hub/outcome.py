"""Defines the plan and the result of a fetch as data."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from strata_pack.plural import counted
from strata_pack.weights.hub.select import Selection
from strata_pack.weights.hub.tree import RepoTree
from strata_pack.weights.preflight import size_text

FileOrigin = Literal["present", "cache", "network"]


class PlannedFileDict(TypedDict):
    """One file of a plan with its ``origin``."""

    path: str
    size: int
    origin: FileOrigin


class FetchedFileDict(PlannedFileDict):
    """A ``FetchedFile`` as JSON."""

    sha256: str


class FetchPlanDict(TypedDict):
    """A ``FetchPlan`` as JSON. Sizes in bytes."""

    ok: bool
    repo_id: str
    revision: str
    commit: str
    format: str
    bytes: int
    bytes_to_travel: int
    files: list[PlannedFileDict]
    skipped: list[str]


class FetchResultDict(TypedDict):
    """A ``FetchResult`` as JSON."""

    ok: bool
    repo_id: str
    revision: str
    commit: str
    folder: str
    format: str
    bytes_travelled: int
    files: list[FetchedFileDict]


@dataclass(frozen=True)
class FetchedFile:
    """One file in the folder: ``path`` relative to it, ``size`` in bytes, ``sha256`` as computed here.

    ``origin`` is its origin in this run. A "cache" file may be a hard link to the Hub cache: replace such a file, never
    write into it.
    """

    path: str
    size: int
    sha256: str
    origin: FileOrigin

    def to_dict(self) -> FetchedFileDict:
        return {"path": self.path, "size": self.size, "sha256": self.sha256, "origin": self.origin}


@dataclass(frozen=True)
class FetchPlan:
    """The plan of a fetch, known before the first download. Sizes in bytes."""

    tree: RepoTree
    selection: Selection
    origins: dict[str, FileOrigin]
    to_travel: int

    def replaced(self, dest: Path) -> list[Path]:
        """Return the files in ``dest`` that are not the repository's and that the fetch replaces."""
        places = {dest / path for path, origin in self.origins.items() if origin != "present"}
        return sorted(place for place in places if os.path.lexists(place))

    def sentence(self) -> str:
        """Return the plan as one line."""
        count, skipped = counted(len(self.selection.files), "file"), len(self.selection.skipped)
        here = self.selection.nbytes - self.to_travel
        return (
            f"{self.tree.repo_id} at {self.tree.commit[:12]}: {count}, {size_text(self.selection.nbytes)} "
            f"({self.selection.weights.format}); {size_text(here)} here already, {size_text(self.to_travel)} to fetch; "
            f"{skipped} other files are not needed"
        )

    def to_dict(self) -> FetchPlanDict:
        """Return the plan as the JSON object of ``fetch --dry-run --json``."""
        files = self.selection.files
        return {
            "ok": True,
            "repo_id": self.tree.repo_id,
            "revision": self.tree.revision,
            "commit": self.tree.commit,
            "format": self.selection.weights.format,
            "bytes": self.selection.nbytes,
            "bytes_to_travel": self.to_travel,
            "files": [{"path": file.path, "size": file.size, "origin": self.origins[file.path]} for file in files],
            "skipped": [file.path for file in self.selection.skipped],
        }


@dataclass(frozen=True)
class FetchResult:
    """The folder after a fetch; ``travelled`` is the number of bytes downloaded in this run."""

    repo_id: str
    revision: str
    commit: str
    folder: Path
    selection: Selection
    files: tuple[FetchedFile, ...]
    travelled: int

    def to_dict(self) -> FetchResultDict:
        """Return the result as the JSON object of ``fetch --json``."""
        return {
            "ok": True,
            "repo_id": self.repo_id,
            "revision": self.revision,
            "commit": self.commit,
            "folder": str(self.folder),
            "format": self.selection.weights.format,
            "bytes_travelled": self.travelled,
            "files": [file.to_dict() for file in self.files],
        }
