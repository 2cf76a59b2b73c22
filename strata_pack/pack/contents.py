"""Separates the files that a pack's identity covers from files that users or other tools added.

A rebuild replaces the former and keeps the latter, such as a model card, a licence or notes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from strata_pack.errors import WrongUse
from strata_pack.files import CHUNK, disk_errors, fsync_dir, link_or_copy
from strata_pack.outputs import is_same_file
from strata_pack.pack.manifest import Manifest
from strata_pack.pack.paths import ATTESTATIONS, CARD, MANIFEST, REPORTS_DIR, STATE_DIR
from strata_pack.progress import Progress

REPORTS = frozenset({f"{REPORTS_DIR}/golden.json", f"{REPORTS_DIR}/smoke.json"})
"""Results of checks on a pack; a new pack has to be checked again."""


def walk(root: Path, skipped: Sequence[str] = ()) -> Iterator[str]:
    """Yield every file and link below ``root`` as a relative path with ``/``, except in the folders ``skipped``."""
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        if here == root:
            folders[:] = [name for name in folders if name not in skipped]
        links = [name for name in folders if (here / name).is_symlink()]
        for name in [*names, *links]:
            yield (here / name).relative_to(root).as_posix()


def covered_files(root: Path) -> set[str]:
    """Return every file of the pack in ``root`` that its identity covers: not manifest, reports, provenance, SBOM or
    card."""
    return set(walk(root, (REPORTS_DIR, STATE_DIR))) - {MANIFEST, CARD, *ATTESTATIONS}


def unlisted_files(root: Path, manifest: Manifest) -> list[str]:
    """Return the files in the pack ``root`` that its manifest does not list and no check has written."""
    ours = {MANIFEST, *ATTESTATIONS, *REPORTS, *(entry["path"] for entry in manifest["files"])}
    return sorted(set(walk(root, (STATE_DIR,))) - ours)


def hashed(path: Path, name: str, progress: Progress) -> str:
    """Return the SHA-256 of ``path`` as lower-case hex; ``progress`` shows ``name`` and the bytes read."""
    task = progress.task(f"hashing {name}", path.stat().st_size)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            task.advance(len(chunk))
    task.done()
    return digest.hexdigest()


def carry_over(names: Sequence[str], old: Path, new: Path) -> None:
    """Add the files ``names`` of the folder ``old`` to the folder ``new``, as hard links where possible.

    Raises ``WrongUse``, before anything is linked, if ``new`` has a file of its own by one of the names.
    """
    for name in names:
        if os.path.lexists(new / name) and not is_same_file(new / name, old / name):
            raise WrongUse(
                "is not in the manifest of the existing pack, and the new pack has a file of that name",
                where=old / name,
                remedy="move it away and run the same build again: it resumes",
            )
    for name in names:
        target = new / name
        with disk_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            if not os.path.lexists(target):
                link_or_copy(old / name, target)
            fsync_dir(target.parent)
