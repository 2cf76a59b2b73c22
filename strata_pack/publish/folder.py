"""Publish to a local folder, which is replaced atomically.

The new folder is made next to the old one and replaces it by one rename. Unchanged files are hard links;
files of the packs are copied, because a later template installation changes a pack's files in place.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from strata_pack.errors import EnvironmentFailure, WrongUse
from strata_pack.files import disk_errors, link_or_copy, sha256_file, write_atomic
from strata_pack.locks import hold_folder
from strata_pack.outputs import is_inside, is_same_file, looks_like_pack
from strata_pack.pack.atomic_replace import put
from strata_pack.pack.contents import walk
from strata_pack.pack.layout import Pack
from strata_pack.progress import Progress
from strata_pack.publish.items import FileChange, PublishedFile, TargetFile

WORK_SUFFIX = ".publishing"
MARK = ".strata-publishing"
"""Marks the work folder, so that a foreign folder of that name is never removed."""


def check_outside(packs: Sequence[Pack], place: Path) -> None:
    """Refuse a target folder that is, or is inside, one of the packs: writing there would change the pack."""
    for pack in packs:
        if is_same_file(place, pack.path) or is_inside(place, pack.path):
            raise WrongUse(
                f"is the pack {pack.path} or lies in it", where=place, remedy="choose a folder apart from the packs"
            )


def check_apart(packs: Sequence[Pack], place: Path) -> None:
    """Refuse a target folder inside a pack or with a pack in it, because the folder is replaced as a whole."""
    check_outside(packs, place)
    for pack in packs:
        if is_inside(pack.path, place):
            raise WrongUse(f"holds the pack {pack.path}", where=place, remedy="choose a folder apart from the packs")


def look_into(folder: Path) -> dict[str, TargetFile]:
    """Return every file in ``folder`` by its path, with its SHA-256; empty if the folder does not exist."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise WrongUse("is not a folder", where=folder, remedy="choose another one")
    if looks_like_pack(folder):
        raise WrongUse("is a pack; a release is a folder of packs", where=folder, remedy="choose another folder")
    if not folder.is_dir():
        return {}
    return {name: TargetFile((folder / name).lstat().st_size, _digest(folder / name)) for name in walk(folder)}


def _digest(path: Path) -> str:
    return sha256_file(path) if path.is_file() and not path.is_symlink() else ""


def write_folder(
    folder: Path, items: Mapping[str, PublishedFile], changes: Sequence[FileChange], progress: Progress
) -> None:
    """Apply ``changes`` to ``folder``; its other files stay."""
    folder = folder.absolute()
    work = folder.with_name(folder.name + WORK_SUFFIX)
    with disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        busy = EnvironmentFailure("another process is publishing here", where=folder, remedy="wait for it to end")
        with hold_folder(folder.parent, busy):
            _clear(work)
            work.mkdir()
            (work / MARK).touch()
            touched = {change.path for change in changes if change.kind != "keep"}
            for name in walk(folder) if folder.is_dir() else ():
                if name not in touched:
                    (work / name).parent.mkdir(parents=True, exist_ok=True)
                    link_or_copy(folder / name, work / name)
            for change in changes:
                if change.kind in ("add", "replace"):
                    _write(work / change.path, items[change.path], progress)
            (work / MARK).unlink()
            put(work, folder)
            if work.exists():
                shutil.rmtree(work)


def _clear(work: Path) -> None:
    """Remove the leftovers of a killed publisher: an incomplete folder, or the old folder after the swap."""
    if not work.exists():
        return
    if not work.is_dir() or not ((work / MARK).exists() or any(work.glob("*/manifest.json"))):
        raise WrongUse("is in the way: a folder is made there", where=work, remedy="move it away")
    shutil.rmtree(work)


def _write(path: Path, item: PublishedFile, progress: Progress) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if item.data is not None:
        write_atomic(path, item.data)
        return
    task = progress.task(f"copying {item.path}", item.size)
    with path.open("wb") as file:
        for piece in item.pieces():
            file.write(piece)
            task.advance(len(piece))
        file.flush()
        os.fsync(file.fileno())
    task.done()
