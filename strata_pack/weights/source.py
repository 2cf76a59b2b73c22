"""Parses a SOURCE argument: a local GGUF file, a local folder, or a repository on the Hub.

An existing path takes precedence; other text is read as a hub id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from strata_pack.errors import BadInput

HUB_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?")
"""One half of ``org/name``: the Hub allows letters, digits, ``-``, ``_`` and ``.``, at most 96 in total."""

_SPECIAL_REVISION = re.compile(r"refs/(?:pr|convert)/[^/]+")
"""The kinds of revisions with slashes in their names; any other slash in a revision must be written ``%2F``."""

_OTHER_KINDS = ("datasets/", "spaces/", "buckets/")

_REMEDY = "give a .gguf file, a folder, a hub id (org/name) or hf://org/name@revision/path"


@dataclass(frozen=True)
class LocalGguf:
    """One GGUF file on this disk (for a split model, its first shard)."""

    path: Path


@dataclass(frozen=True)
class LocalFolder:
    """A folder on this disk: a Hugging Face checkpoint, or a folder with GGUF files."""

    path: Path


@dataclass(frozen=True)
class HubSource:
    """A model repository on the Hub; ``path`` names one file or folder in it, ``revision`` a branch, tag or commit."""

    repo_id: str
    revision: str | None = None
    path: str | None = None

    def __str__(self) -> str:
        revision = "" if self.revision is None else "@" + _quote_revision(self.revision)
        return f"hf://{self.repo_id}{revision}" + ("" if self.path is None else f"/{self.path}")


Source = LocalGguf | LocalFolder | HubSource


def parse_source(text: str) -> Source:
    """Return the source that ``text`` names.

    ``hf://org/name[@revision][/path]`` is always on the Hub. Otherwise an existing path takes precedence, then
    ``org/name`` or ``org/name@revision``. ``BadInput`` explains why other text is not a source.
    """
    if text.startswith("hf://"):
        return _parse_uri(text)
    if not text or "\0" in text:
        raise BadInput("is not a source", where=repr(text), remedy=_REMEDY)
    path = Path(text).expanduser()
    if path.is_dir():
        return LocalFolder(path)
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return LocalGguf(path)
        if path.name.endswith((".safetensors", ".safetensors.index.json")):
            raise BadInput("is one file of a checkpoint", where=path, remedy="give its folder")
        raise BadInput("is neither a .gguf file nor a folder", where=path, remedy=_REMEDY)
    repo_id, at, revision = text.partition("@")
    if is_repo_id(repo_id) and not repo_id.lower().endswith((".gguf", ".safetensors")):
        if at and not revision:
            raise BadInput("has an empty revision after '@'", where=text, remedy=_REMEDY)
        return HubSource(repo_id, unquote(revision) if at else None)
    raise BadInput("no such file or folder, and not a hub id either", where=text, remedy=_REMEDY)


def hub_source(text: str) -> HubSource | None:
    """Return the Hub source that ``text`` names: ``hf://...``, or ``org/name`` if no local path has that name."""
    if not text.startswith("hf://") and (Path(text).exists() or not is_repo_id(text.partition("@")[0])):
        return None
    if not text.startswith("hf://") and text.lower().endswith((".gguf", ".jinja", ".json", ".safetensors")):
        return None
    source = parse_source(text)
    return source if isinstance(source, HubSource) else None


def is_repo_id(text: str) -> bool:
    """Return whether ``text`` is a valid hub id: ``org/name``."""
    halves = text.split("/")
    return (
        len(halves) == 2
        and len(text) <= 96
        and all(HUB_ID.fullmatch(half) for half in halves)
        and "--" not in text
        and ".." not in text
    )


def _quote_revision(revision: str) -> str:
    return revision if _SPECIAL_REVISION.fullmatch(revision) else quote(revision, safe="")


def _parse_uri(text: str) -> HubSource:
    match = re.fullmatch(
        rf"hf://(?:models/)?(?P<repo>[^/@]+/[^/@]+)(?:@(?P<rev>{_SPECIAL_REVISION.pattern}|[^/]*))?(?:/(?P<path>.*))?",
        text,
    )
    if match is None or not is_repo_id(match["repo"]) or match["repo"].startswith(_OTHER_KINDS):
        raise BadInput("is not a hub URI", where=text, remedy="write hf://org/name@revision/path")
    if match["rev"] == "":
        raise BadInput("has an empty revision after '@'", where=text, remedy="write hf://org/name@revision/path")
    path = (match["path"] or "").rstrip("/") or None
    if path is not None and any(part in ("", ".", "..") for part in path.split("/")):
        raise BadInput("names a path outside the repository", where=text, remedy="write hf://org/name@revision/path")
    return HubSource(match["repo"], None if match["rev"] is None else unquote(match["rev"]), path)
