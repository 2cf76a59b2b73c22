"""Keeps the state of a fetch in its target folder: a lock, partial bodies, a record of the repository.

The record is written before the first download, so that a later run, also offline, knows which files were fetched, at
which commit, and which of them a new commit no longer has.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.files import disk_errors, dump_json, read_state, write_atomic
from strata_pack.locks import lock_file
from strata_pack.weights.hub.tree import STATE_FOLDER, RepoFile, RepoTree, safe_path

_RECORD_VERSION = 1
_RECORD_LIMIT = 64 << 20


@dataclass(frozen=True)
class FetchRecord:
    """The repository's tree at the start of the last fetch, and the files fetched into this folder."""

    tree: RepoTree
    taken: tuple[str, ...]


@contextmanager
def locked_folder_for_fetch(dest: Path) -> Iterator[None]:
    """Lock the folder for one fetch; ``EnvironmentFailure`` names the process that already holds the lock.

    The lock belongs to the open file, so the system releases it when the process ends in any way.
    """
    state = dest / STATE_FOLDER
    with disk_errors(dest):
        state.mkdir(parents=True, exist_ok=True)
        fd = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "of another user"
        problem = f"process {holder} is fetching into this folder"
        lock_file(fd, EnvironmentFailure(problem, where=dest, remedy="wait for it or choose another"))
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)


def part_path(dest: Path, file: RepoFile) -> Path:
    """Return the path of the partial body of ``file``, named by its content hash, so that no other content is
    appended."""
    place = hashlib.sha256(file.path.encode()).hexdigest()[:8]
    return dest / STATE_FOLDER / "parts" / f"{file.key}-{place}"


def part_size(dest: Path, file: RepoFile) -> int:
    """Return the number of received bytes of ``file``."""
    try:
        size = part_path(dest, file).stat().st_size
    except FileNotFoundError:
        return 0
    return size if size <= file.size else 0


def drop_parts(dest: Path) -> None:
    """Remove all partial bodies: the folder is complete, so remaining ones belong to another commit."""
    parts = dest / STATE_FOLDER / "parts"
    if parts.is_dir():
        for path in parts.iterdir():
            path.unlink(missing_ok=True)
        parts.rmdir()


def write_record(dest: Path, record: FetchRecord) -> None:
    """Write the record, whole or not at all."""
    tree = record.tree
    value = {
        "version": _RECORD_VERSION,
        "repo_id": tree.repo_id,
        "revision": tree.revision,
        "commit": tree.commit,
        "files": [[file.path, file.size, file.blob_id, file.sha256] for file in tree.files],
        "taken": list(record.taken),
    }
    write_atomic(dest / STATE_FOLDER / "record.json", dump_json(value))


def read_fetch_record(dest: Path) -> FetchRecord | None:
    """Return the record of the last fetch, None if there is none; ``BadInput`` if it is damaged."""
    path = dest / STATE_FOLDER / "record.json"
    if not path.exists():
        return None
    try:
        value = read_state(path, _RECORD_LIMIT)
        if value["version"] != _RECORD_VERSION:
            raise ValueError(value["version"])
        files = tuple(
            RepoFile(safe_path(name, str(path)), int(size), str(blob_id), sha256)
            for name, size, blob_id, sha256 in value["files"]
        )
        tree = RepoTree(str(value["repo_id"]), str(value["revision"]), str(value["commit"]), files)
        return FetchRecord(tree, tuple(safe_path(name, str(path)) for name in value["taken"]))
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput("the record of the last fetch is damaged", where=path, remedy="delete that file") from error
