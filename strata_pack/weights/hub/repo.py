"""Reads the file list of a model repository at a pinned commit, with sizes and content hashes.

The answer is validated: names that could leave the folder, links, impossible sizes and malformed hashes are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.weights.hub.api import NOT_A_HUB, get_json, get_pages
from strata_pack.weights.hub.connection import Hub, is_offline
from strata_pack.weights.hub.tree import RepoFile, RepoTree, safe_path
from strata_pack.weights.source import is_repo_id

DEFAULT_REVISION = "main"
MAX_FILES = 100_000
MAX_FILE_BYTES = 1 << 44
_HEX = {length: re.compile(f"[0-9a-f]{{{length}}}") for length in (40, 64)}


def read_tree(hub: Hub, repo_id: str, revision: str | None) -> RepoTree:
    """Return ``repo_id`` at the commit that ``revision`` (default "main") names now.

    ``BadInput`` for a missing repository or revision, or unsafe file names; ``EnvironmentFailure`` if the Hub cannot be
    reached, requires a login, or something else answers.
    """
    wanted = revision or DEFAULT_REVISION
    where = f"{repo_id}@{wanted}"
    if not is_repo_id(repo_id):
        raise BadInput("is not a valid hub id", where=where, remedy="write org/name")
    with _also_no_path(repo_id) if revision is None else nullcontext():
        if is_offline():
            raise EnvironmentFailure("HF_HUB_OFFLINE forbids the network", where=where, remedy="unset it and run again")
        about = get_json(hub, f"/api/models/{repo_id}/revision/{quote(wanted, safe='')}", where)
    commit = about.get("sha") if isinstance(about, dict) else None
    if not isinstance(commit, str) or not _is_hex(commit, 40):
        raise EnvironmentFailure(f"the Hub gave {str(commit)[:80]!r} as its commit", where=where, remedy=NOT_A_HUB)
    pages = get_pages(hub, f"/api/models/{repo_id}/tree/{commit}?recursive=true&expand=false", where)
    entries = list(islice(pages, MAX_FILES + 1))
    if len(entries) > MAX_FILES:
        raise BadInput(f"has more than {MAX_FILES} files", where=where)
    if not all(isinstance(entry, dict) for entry in entries):
        raise EnvironmentFailure("the Hub's list of files holds something else", where=where, remedy=NOT_A_HUB)
    files = tuple(_checked(entry, where) for entry in entries if entry.get("type") == "file")
    others = [entry.get("path") for entry in entries if entry.get("type") != "file"]
    _refuse_links(others, [file.path for file in files], where)
    return RepoTree(repo_id, wanted, commit, files)


@contextmanager
def _also_no_path(repo_id: str) -> Iterator[None]:
    """Make an error about ``repo_id`` say first that no such path exists, if it reads like a path into a folder here.

    ``packs/mine`` is a valid hub id, but where there is a folder ``packs`` it is more likely a mistyped path.
    """
    try:
        yield
    except (BadInput, EnvironmentFailure) as error:
        path = Path(repo_id)
        if path.exists() or not path.parent.is_dir():
            raise
        problem = f"no such file or folder; read as a hub id: {error.problem}"
        raise type(error)(problem, where=repo_id, remedy=error.remedy) from error


def _checked(entry: dict[str, Any], where: str) -> RepoFile:
    path = safe_path(entry.get("path"), where)
    size, lfs = entry.get("size"), entry.get("lfs")
    if type(size) is not int or not 0 <= size <= MAX_FILE_BYTES:
        raise BadInput(f"{path} has the impossible size {str(size)[:80]!r}", where=where)
    blob_id = entry.get("oid")
    sha256 = None if lfs is None else lfs.get("oid") if isinstance(lfs, dict) else lfs
    if not _is_hex(blob_id, 40) or not (sha256 is None or _is_hex(sha256, 64)):
        raise BadInput(f"{path} has a malformed content hash", where=where)
    return RepoFile(path, size, str(blob_id), sha256)


def _is_hex(text: object, length: int) -> bool:
    return isinstance(text, str) and _HEX[length].fullmatch(text) is not None


def _refuse_links(others: list[object], files: list[str], where: str) -> None:
    # Entries that are neither files nor non-empty folders (symbolic links, submodules) have no body.
    paths = [safe_path(other, where) for other in others]
    parents = {str(parent) for path in (*files, *paths) for parent in Path(path).parents}
    for path in paths:
        if path not in parents:
            raise BadInput(f"{path} is a link, not a file", where=where, remedy="do not use this source")
