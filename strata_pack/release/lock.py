"""``release.lock``: what a release was made from, so that another run or machine makes the same.

The first run pins the source's commit; later runs build that commit until ``--update`` is given. The
file is JSON, belongs into version control next to ``release.toml``, and holds no path of this machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NotRequired, TypedDict

from strata_pack.errors import BadInput
from strata_pack.files import dump_json, read_json_object
from strata_pack.pack.schema_check import problems
from strata_pack.release.results import write_whole
from strata_pack.release.versions import Versions

VERSION = 1
LIMIT = 64 << 20


class LockedFile(TypedDict):
    """One file; ``sha256`` is ``None`` until it was computed."""

    path: str
    size: int
    sha256: NotRequired[str]


class LockedSource(TypedDict):
    """The source. ``text`` is as ``release.toml`` names it; ``commit`` of a Hub source only."""

    text: str
    kind: str
    repo: str | None
    commit: str | None
    format: str
    files: list[LockedFile]
    template_sha256: NotRequired[str | None]


class LockedPack(TypedDict):
    """A built pack: the hashes of its files with its manifest, and whether it passed its gates."""

    passed: bool
    files: list[LockedFile]


class Lock(TypedDict):
    """The lock file. ``tool``, ``library``, ``kernels`` and ``runtime`` are those of the last run."""

    version: int
    source: LockedSource
    tool: str
    library: str
    kernels: str
    runtime: str
    packs: dict[str, LockedPack]


_TEXT, _NO_TEXT = {"type": "string"}, {"type": ["string", "null"]}
_FILES = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["path", "size"],
        "properties": {"path": _TEXT, "size": {"type": "integer"}, "sha256": {"pattern": "^[0-9a-f]{64}$", **_TEXT}},
    },
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["version", "source", "tool", "library", "kernels", "runtime", "packs"],
    "properties": {
        "version": {"type": "integer"},
        "source": {
            "type": "object",
            "required": ["text", "kind", "repo", "commit", "format", "files"],
            "properties": {
                "text": _TEXT,
                "kind": _TEXT,
                "repo": _NO_TEXT,
                "commit": _NO_TEXT,
                "format": {"enum": ["gguf", "safetensors"]},
                "files": _FILES,
                "template_sha256": _NO_TEXT,
            },
        },
        **dict.fromkeys(("tool", "library", "kernels", "runtime"), _TEXT),
        "packs": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["passed", "files"],
                "properties": {"passed": {"type": "boolean"}, "files": _FILES},
            },
        },
    },
}
"""Schema of the lock file, which merges and people may edit."""


def read_lock(path: Path) -> Lock | None:
    """Return the lock file, ``None`` if there is none. Raises ``BadInput`` for another or damaged file."""
    if not path.exists():
        return None
    remedy = "restore it, or remove it to pin the source anew"
    try:
        value: Any = read_json_object(path, LIMIT)
    except BadInput as error:
        raise BadInput(error.problem, where=path, remedy=remedy) from None
    if type(value.get("version")) is int and value["version"] > VERSION:
        raise BadInput(f"has the version {value['version']}", where=path, remedy="use a newer strata-pack")
    for place, problem in problems(value, SCHEMA):
        named = ".".join(map(str, place)) or "the file"
        raise BadInput(f"is no lock file of a release ({named}: {problem})", where=path, remedy=remedy)
    lock: Lock = value
    return lock


def write_lock(path: Path, source: LockedSource, versions: Versions, packs: dict[str, LockedPack]) -> None:
    """Write the lock file if its content changed."""
    lock = Lock(
        version=VERSION,
        source=source,
        tool=versions.tool,
        library=versions.library,
        kernels=versions.kernels,
        runtime=versions.runtime,
        packs=dict(sorted(packs.items())),
    )
    data = dump_json(lock)
    if not path.is_file() or path.read_bytes() != data:
        # A symbolic link is kept and its target written.
        write_whole(path.resolve(), data)
