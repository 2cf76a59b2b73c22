"""What has changed since a release was made: its source on the Hub, the vendor's template, the published files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_pack.chat.render.template import normalize_source
from strata_pack.errors import BadInput, StrataError
from strata_pack.files import sha256_bytes, sha256_text
from strata_pack.pack.file_names import CONFIG
from strata_pack.pack.model_source import folder_template
from strata_pack.release.lock import Lock, LockedFile, LockedPack, LockedSource
from strata_pack.release.release_file import Release
from strata_pack.weights.hub.connection import Hub, connect
from strata_pack.weights.hub.repo import read_tree
from strata_pack.weights.hub.small import SmallFiles
from strata_pack.weights.hub.tree import RepoFile, RepoTree
from strata_pack.weights.source import HubSource, parse_source

TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", CONFIG)


@dataclass(frozen=True)
class ReleaseChange:
    """One difference. ``what`` is "source", "template", "published" or "unknown" (could not be looked up)."""

    what: str
    sentence: str

    def to_dict(self) -> dict[str, Any]:
        return {"what": self.what, "sentence": self.sentence}


def changes(release: Release, lock: Lock | None) -> list[ReleaseChange]:
    """Return how the Hub differs from the lock file. What could not be looked up is a change "unknown"."""
    if lock is None:
        return []
    found: list[ReleaseChange] = []
    for look in (_source_changes, _published_changes):
        try:
            found += look(release, lock)
        except StrataError as error:
            found.append(ReleaseChange("unknown", str(error)))
    return found


def _source_changes(release: Release, lock: Lock) -> Iterator[ReleaseChange]:
    source, locked = parse_source(release.source), lock["source"]
    if not isinstance(source, HubSource) or locked["commit"] is None or locked["text"] != release.source:
        return
    hub = connect()
    tree = read_tree(hub, source.repo_id, source.revision)
    if tree.commit == locked["commit"]:
        return
    yield ReleaseChange("source", _moved(locked, tree))
    template = _template_of(hub, tree)
    before = locked.get("template_sha256")
    # The template of a GGUF lies in its header: where its file is the same, so is the template.
    apart = template is not None or locked["format"] != "gguf"
    if apart and before is not None and template != before:
        said = "has no chat template any more" if template is None else "has another chat template"
        yield ReleaseChange("template", f"{tree.repo_id} {said} at {tree.commit[:12]}")


def _moved(locked: LockedSource, tree: RepoTree) -> str:
    before = {file["path"]: file.get("sha256") for file in locked["files"]}
    now = {file.path: file for file in tree.files}
    gone = [path for path in before if path not in now]
    changed = [
        path
        for path, sha256 in before.items()
        if path in now and now[path].sha256 is not None and now[path].sha256 != sha256
    ]
    weights = f"; changed: {', '.join(changed[:5])}" if changed else "; no large file changed"
    removed = f"; removed: {', '.join(gone[:5])}" if gone else ""
    revision = f"{tree.repo_id}@{tree.revision}"
    return f"{revision} moved from {str(locked['commit'])[:12]} to {tree.commit[:12]}{weights}{removed}"


def _template_of(hub: Hub, tree: RepoTree) -> str | None:
    """Return the hash of the template that a folder of ``tree`` would have."""
    present = {file.path for file in tree.files}
    with tempfile.TemporaryDirectory(prefix="strata-status-") as name:
        folder = Path(name)
        small = SmallFiles(hub, tree, folder, offline=False)
        for file in TEMPLATE_FILES:
            if file in present:
                (folder / file).write_bytes(small.read(file))
        text = folder_template(folder)
    return None if text is None else sha256_text(normalize_source(text))


def _published_changes(release: Release, lock: Lock) -> Iterator[ReleaseChange]:
    """Compare the target repositories with the packs that passed, file by file of their manifests, by hash."""
    if release.publish is None:
        return
    trees: dict[str, RepoTree | None] = {}
    for pack in release.packs:
        target = pack.repo or release.publish.repo
        entry = lock["packs"].get(pack.name)
        if not pack.publish or target is None or entry is None or not entry["passed"]:
            continue
        if target not in trees:
            trees[target] = _tree(target)
            if trees[target] is None:
                yield ReleaseChange("published", f"{target} is not there yet")
        tree = trees[target]
        if tree is not None:
            yield from _pack_changes(pack.name, entry, tree)


def _tree(target: str) -> RepoTree | None:
    try:
        return read_tree(connect(), target, None)
    except BadInput as error:
        if "no such repo" not in error.problem:
            raise
        return None


def _pack_changes(pack: str, entry: LockedPack, tree: RepoTree) -> Iterator[ReleaseChange]:
    there = {file.path: file for file in tree.files}
    with tempfile.TemporaryDirectory(prefix="strata-status-") as name:
        small = SmallFiles(connect(), tree, Path(name), offline=False)
        for locked in entry["files"]:
            path = f"{pack}/{locked['path']}"
            found = there.get(path)
            if found is None:
                yield ReleaseChange("published", f"{tree.repo_id} lacks {path}")
            elif not _is_same(found, locked, small):
                yield ReleaseChange("published", f"{path} in {tree.repo_id} is not the one in the lock file")


def _is_same(found: RepoFile, locked: LockedFile, small: SmallFiles) -> bool:
    if found.size != locked["size"]:
        return False
    # The Hub names small files by git's hash, which the lock file does not know.
    return locked.get("sha256") == (found.sha256 or sha256_bytes(small.read(found.path)))
