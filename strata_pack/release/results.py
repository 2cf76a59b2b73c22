"""Stored results of nodes: one JSON file for each node and key, which names every file by its hash.

A result is valid only while its files are unchanged. Size and modification time are compared; if only the time differs
(a copied folder), the file is hashed again. Dependent nodes use a result's digest: the contents, not the time.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

from strata_pack.errors import EnvironmentFailure
from strata_pack.files import disk_errors, dump_json, read_state, sha256_file, sha256_text, write_atomic
from strata_pack.locks import lock_file

RESULT_LIMIT = 1 << 30
WAIT_SECONDS = 7 * 86400.0
"""Seconds to wait for another worker that makes the same node: enough for the largest model."""


def remove_leftovers(path: Path) -> None:
    """Remove what killed writers have left of a file that nobody else can be writing now."""
    with disk_errors(path.parent):
        for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
            leftover.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that nobody else can be writing, and remove what killed writers have left of it."""
    remove_leftovers(path)
    write_atomic(path, data)


class FileRecord(TypedDict):
    """One file of a result: ``path`` relative to the release's folder where it lies in it."""

    path: str
    size: int
    sha256: str
    mtime_ns: int


class Result(TypedDict):
    """Result of a node. ``data`` is JSON; ``digest`` identifies files and data."""

    node: str
    key: str
    digest: str
    files: list[FileRecord]
    data: dict[str, Any]
    seconds: float


class Results:
    """The results of one release. ``out`` is its folder; they lie in ``out/.release/results``."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._root = out / ".release" / "results"

    def find(self, node: str, key: str) -> Result | None:
        """Return the result of ``node`` for ``key`` if there is one and its files are as they were."""
        place = self._place(node, key)
        try:
            result: Result = read_state(place, RESULT_LIMIT)  # type: ignore[assignment]
            if (result["node"], result["key"]) != (node, key):
                return None
            if result["digest"] != result_digest(result["files"], result["data"]):
                return None
            changed = False
            for record in result["files"]:
                path = self.out / record["path"]
                status = path.stat()
                if status.st_size != record["size"]:
                    return None
                if status.st_mtime_ns != record["mtime_ns"]:
                    if sha256_file(path) != record["sha256"]:
                        return None
                    record["mtime_ns"], changed = status.st_mtime_ns, True
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if changed:
            with contextlib.suppress(EnvironmentFailure):
                write_atomic(place, dump_json(result))
        return result

    def store(
        self, node: str, key: str, files: Sequence[FileRecord], data: Mapping[str, Any], seconds: float
    ) -> Result:
        """Write a result atomically and return it."""
        digest = result_digest(files, data)
        result = Result(
            node=node, key=key, digest=digest, files=list(files), data=dict(data), seconds=round(seconds, 3)
        )
        write_whole(self._place(node, key), dump_json(result))
        with (self._root.parent / "log.jsonl").open("a") as log:
            log.write(json.dumps({"node": node, "key": key, "digest": digest, "seconds": result["seconds"]}) + "\n")
        return result

    def begin(self, node: str, key: str, replaces: str | None) -> None:
        """Record that ``node`` is being made for ``key`` and replaces the file with the hash ``replaces``."""
        write_whole(self._root / _folder(node) / "begun", dump_json({"key": key, "replaces": replaces}))

    def begun(self, node: str) -> dict[str, Any] | None:
        """Return what ``begin`` recorded last, ``None`` if this release has never begun to make ``node``."""
        value = read_state(self._root / _folder(node) / "begun")
        return {"key": value.get("key"), "replaces": value.get("replaces")} if value else None

    def record(self, path: Path, sha256: str | None = None) -> FileRecord:
        """Return the record of a file; it is hashed unless its hash is known."""
        status = path.stat()
        inside = path.relative_to(self.out).as_posix() if path.is_relative_to(self.out) else str(path)
        digest = sha256 or sha256_file(path)
        return FileRecord(path=inside, size=status.st_size, sha256=digest, mtime_ns=status.st_mtime_ns)

    def paths(self, result: Result) -> list[Path]:
        """Return the files of a result."""
        return [self.out / record["path"] for record in result["files"]]

    @contextmanager
    def node_lock(self, node: str) -> Iterator[None]:
        """Lock ``node`` for this worker, waiting for a worker that holds it."""
        folder = self._root / _folder(node)
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            lock_file(descriptor, EnvironmentFailure("another worker is at work on it", where=node), WAIT_SECONDS)
            yield
        finally:
            os.close(descriptor)

    def _place(self, node: str, key: str) -> Path:
        return self._root / _folder(node) / f"{key[:32]}.json"


def _folder(node: str) -> str:
    return node.replace(":", "@")


def result_digest(files: Sequence[FileRecord], data: Mapping[str, Any]) -> str:
    """Return the digest of a result: names and hashes of the files, and the data.

    HTML pages contain times and are left out. A file outside the release's folder enters by its
    name, so the source's location does not matter.
    """
    named = [
        (Path(one["path"]).name if os.path.isabs(one["path"]) else one["path"], one["sha256"])
        for one in files
        if not one["path"].endswith(".html")
    ]
    return sha256_text(json.dumps([named, data], sort_keys=True))
