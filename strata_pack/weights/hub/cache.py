"""Finds files in ``huggingface_hub``'s cache, so that they need no download.

Layout (its documentation, "Understand caching"): ``models--org--name/`` holds ``blobs/<etag>``, ``refs/<revision>``
(a commit) and ``snapshots/<commit>/<path>``, links to the blobs. An etag is the LFS SHA-256 or the git blob id.
"""

from __future__ import annotations

import os
from pathlib import Path

from strata_pack.errors import BadInput
from strata_pack.weights.hub.tree import RepoFile, RepoTree, safe_path


def cache_folder() -> Path:
    """Return the user's Hub cache folder according to ``HF_HUB_CACHE``, ``HF_HOME`` and ``XDG_CACHE_HOME``."""
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if named:
        return Path(named).expanduser()
    home = os.environ.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "huggingface" / "hub"


def repo_folder(repo_id: str) -> Path:
    """Return the cache folder of one model."""
    return cache_folder() / f"models--{repo_id.replace('/', '--')}"


def cached_blob(repo_id: str, file: RepoFile) -> Path | None:
    """Return the cached body of ``file`` if its size matches; its content is not checked here."""
    path = repo_folder(repo_id) / "blobs" / file.key
    try:
        info = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return path if os.path.isfile(path) and not path.is_symlink() and info.st_size == file.size else None


def cached_tree(repo_id: str, revision: str) -> RepoTree | None:
    """Return the cached tree of a revision (only the downloaded files), None if there is none."""
    folder = repo_folder(repo_id)
    where = f"{folder}, the Hub cache of {repo_id}"
    ref = folder / "refs" / safe_path(revision, where)
    commit = ref.read_text(encoding="ascii", errors="replace").strip() if ref.is_file() else revision
    snapshot = folder / "snapshots" / safe_path(commit, where)
    if "/" in commit or not snapshot.is_dir():
        return None
    blobs = (folder / "blobs").resolve()
    files = []
    for root, _, names in os.walk(snapshot):
        for name in names:
            path = Path(root) / name
            blob = path.resolve()
            if not path.is_symlink() or not blob.is_file():
                continue
            if blob.parent != blobs:
                raise BadInput(f"{name} is a link out of the cache", where=where, remedy="delete that folder")
            inside = safe_path(path.relative_to(snapshot).as_posix(), where)
            lfs = len(blob.name) == 64
            files.append(RepoFile(inside, blob.stat().st_size, blob.name, blob.name if lfs else None))
    return RepoTree(repo_id, revision, commit, tuple(sorted(files, key=lambda file: file.path)))
