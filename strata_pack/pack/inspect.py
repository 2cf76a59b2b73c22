"""Inspects a pack or a GGUF: metadata, tensors by type, bits per weight, identity and status of the template."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, TypedDict, cast

from strata_pack.chat.library import list_templates, status_of
from strata_pack.files import sha256_text
from strata_pack.pack.layout import Pack
from strata_pack.pack.manifest import Manifest, ProjectorEntry
from strata_pack.pack.paths import TEMPLATE_KEY
from strata_pack.progress import Progress
from strata_pack.weights.gguf.file import GgufFile, MetaValue, shard_paths
from strata_pack.weights.source import HubSource

ARRAY_PREVIEW = 4
"""Maximum number of items of a metadata array that are shown."""
TEXT_PREVIEW = 200
"""Maximum number of characters of a metadata string that are shown."""


class TypeShareDict(TypedDict):
    """A ``TypeShare`` as JSON."""

    type: str
    tensors: int
    elements: int
    bytes: int


@dataclass(frozen=True)
class TypeShare:
    """All tensors of one ggml type: how many, their elements, their bytes."""

    type: str
    tensors: int
    elements: int
    bytes: int


class StoredProjector(ProjectorEntry):
    """The manifest's entry of a projector, and the file's ``size`` in bytes, ``None`` if the file is missing."""

    size: int | None


class InspectionDict(TypedDict):
    """An ``Inspection`` as JSON: its fields."""

    path: str
    kind: str
    files: list[str]
    size: int
    architecture: str
    name: str
    parameters: int
    bits_per_weight: float
    types: list[TypeShareDict]
    projector: StoredProjector | None
    template_id: str | None
    template_sha256: str | None
    template_status: str
    metadata: dict[str, Any]
    manifest: Manifest | None


@dataclass(frozen=True)
class Inspection:
    """``size`` in bytes of the model's files; ``bits_per_weight`` over all tensors; ``projector`` if a pack has one."""

    path: str
    kind: str
    files: list[str]
    size: int
    architecture: str
    name: str
    parameters: int
    bits_per_weight: float
    types: list[TypeShare]
    projector: StoredProjector | None
    template_id: str | None
    template_sha256: str | None
    template_status: str
    metadata: dict[str, Any]
    manifest: Manifest | None

    def to_dict(self) -> InspectionDict:
        return cast(InspectionDict, asdict(self))


def _preview(stored: MetaValue) -> Any:
    """Return the preview of a value; only the shown items of an array are decoded."""
    if stored.item_type is not None:
        head = [_shortened(item) for item in stored.head(ARRAY_PREVIEW)]
        return head if len(stored) <= ARRAY_PREVIEW else [*head, f"... ({len(stored)} items)"]
    return _shortened(stored.value)


def _shortened(value: Any) -> Any:
    if isinstance(value, str) and len(value) > TEXT_PREVIEW:
        return f"{value[:TEXT_PREVIEW]}... ({len(value)} characters)"
    return value


def template_identity(text: str | None) -> tuple[str | None, str | None, str]:
    """Return (id, sha256, status) of a template's text; the id is that of a shipped template, if it is one."""
    if text is None:
        return None, None, status_of(None)
    digest = sha256_text(text)
    known = next((shipped.id for shipped in list_templates() if shipped.sha256 == digest), None)
    return known, digest, status_of(text)


def type_shares(files: Iterable[GgufFile]) -> list[TypeShare]:
    """Return the tensors of ``files`` by type, the largest share of bytes first."""
    tensors: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for file in files:
        for tensor in file.tensors:
            tensors[tensor.type.name] += 1
            elements[tensor.type.name] += prod(tensor.shape)
            sizes[tensor.type.name] += tensor.nbytes
    return [TypeShare(name, tensors[name], elements[name], size) for name, size in sizes.most_common()]


def _projector(pack: Pack) -> StoredProjector | None:
    entry = pack.manifest.get("projector")
    path = pack.projector_path
    if entry is None or path is None:
        return None
    return {**entry, "size": path.stat().st_size if path.is_file() else None}


def inspect_path(path: Path) -> Inspection:
    """Inspect a PACK or a GGUF (any shard of it).

    Raises ``BadInput`` for any other or a damaged file.
    """
    pack = Pack.open(path) if path.is_dir() else None
    shards = pack.model_files if pack is not None else shard_paths(path)
    files = [GgufFile.open(shard) for shard in shards]
    try:
        found = _inspection(str(path), files)
    finally:
        for file in files:
            file.close()
    if pack is None:
        return found
    return replace(found, kind="pack", projector=_projector(pack), manifest=pack.manifest)


def inspect_source(source: HubSource, progress: Progress | None = None) -> list[Inspection]:
    """Inspect the GGUF models of a repository, or the one that ``source`` names; only their headers are read.

    Raises ``BadInput`` if there is none or one is damaged, ``EnvironmentFailure`` if the Hub cannot be reached.
    """
    from strata_pack.weights.hub.models import remote_models

    return [
        _inspection(f"hf://{source.repo_id}/{model.name}", list(model.headers))
        for model in remote_models(source, progress)
    ]


def _inspection(path: str, files: Sequence[GgufFile]) -> Inspection:
    shares = type_shares(files)
    metadata = {key: _preview(value) for key, value in files[0].metadata.items() if key != TEMPLATE_KEY}
    key = files[0].metadata.get(TEMPLATE_KEY)
    text = str(key.value) if key is not None else None
    elements = sum(share.elements for share in shares)
    template_id, template_sha256, status = template_identity(text)
    return Inspection(
        path=path,
        kind="gguf",
        files=[file.path.name for file in files],
        size=sum(file.file_size for file in files),
        architecture=str(metadata.get("general.architecture", "unknown")),
        name=str(metadata.get("general.name", files[0].path.stem)),
        parameters=elements,
        bits_per_weight=round(sum(share.bytes for share in shares) * 8 / elements, 4) if elements else 0.0,
        types=shares,
        projector=None,
        template_id=template_id,
        template_sha256=template_sha256,
        template_status=status,
        metadata=metadata,
        manifest=None,
    )
