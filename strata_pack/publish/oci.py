"""Write packs as an OCI image layout for Docker Model Runner and other registries.

One image a pack: a small configuration (format, architecture, quantization, size), the GGUF files, the projector, the
chat template and the licence's name as annotations. Sources: OCI Image Layout 1.0, OCI Image Manifest 1.1, the Docker
model specification v0.1 (media types ``application/vnd.docker.ai.*``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from strata_pack.errors import BadInput, WrongUse
from strata_pack.files import atomic_writer, disk_errors, read_json_object, sha256_bytes, write_atomic
from strata_pack.pack.layout import Pack
from strata_pack.pack.paths import TEMPLATE
from strata_pack.progress import Progress
from strata_pack.publish.items import FileChange, PublishedFile

LAYOUT = "oci-layout"
INDEX = "index.json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.docker.ai.model.config.v0.1+json"
GGUF_TYPE = "application/vnd.docker.ai.gguf.v3"
PROJECTOR_TYPE = "application/vnd.docker.ai.mmproj"
TEMPLATE_TYPE = "application/vnd.docker.ai.chat.template.jinja"
NAME_KEY = "org.opencontainers.image.ref.name"
TITLE_KEY = "org.opencontainers.image.title"


def oci_items(packs: Sequence[Pack], out: Path) -> dict[str, PublishedFile]:
    """Return every file of the layout in ``out`` by its path; existing images stay in the index."""
    items: dict[str, PublishedFile] = {}
    images = {str(_name(one)): one for one in _images(out)}
    for pack in packs:
        manifest = _image(pack, items)
        images[pack.path.name] = manifest
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": list(images.values()),
    }
    for name, value in ((LAYOUT, {"imageLayoutVersion": "1.0.0"}), (INDEX, index)):
        items[name] = PublishedFile.of_bytes(name, _json(value))
    return items


def oci_changes(items: dict[str, PublishedFile], out: Path) -> list[FileChange]:
    """Return the changes to ``out``; an existing blob is never rewritten, because its name is its hash."""
    changes = []
    for path, item in sorted(items.items()):
        there = out / path
        same = (
            there.is_file() and there.stat().st_size == item.size and (path.startswith("blobs/") or _same(there, item))
        )
        changes.append(FileChange("keep" if same else "replace" if there.exists() else "add", path, item.size))
    return changes


def write_oci(out: Path, items: dict[str, PublishedFile], changes: Sequence[FileChange], progress: Progress) -> None:
    """Apply ``changes``: blobs first, the index last, so that no reader finds an incomplete image."""
    with disk_errors(out):
        last = {INDEX: 2, LAYOUT: 1}
        for change in sorted(changes, key=lambda one: last.get(one.path, 0)):
            item = items[change.path]
            if change.kind == "keep":
                continue
            if item.data is not None:
                write_atomic(out / change.path, item.data)
                continue
            task = progress.task(f"writing {item.path[:24]}", item.size)
            digest = hashlib.sha256()
            with atomic_writer(out / change.path) as file:
                for piece in item.pieces():
                    file.write(piece)
                    digest.update(piece)
                    task.advance(len(piece))
                if digest.hexdigest() != item.sha256:
                    raise BadInput("changed while it was read", where=item.source)
            task.done()


def _image(pack: Pack, items: dict[str, PublishedFile]) -> dict[str, Any]:
    """Add the blobs of ``pack`` to ``items`` and return its entry in the index."""
    digests = {entry["path"]: entry for entry in pack.manifest["files"]}
    parts = [(path, GGUF_TYPE) for path in pack.manifest["model"]["files"]]
    if "projector" in pack.manifest:
        parts.append((pack.manifest["projector"]["file"], PROJECTOR_TYPE))
    parts.append((TEMPLATE, TEMPLATE_TYPE))
    layers = []
    for path, media_type in parts:
        entry = digests[path]
        blob = PublishedFile.of_file(_blob(entry["sha256"]), pack.path / path, entry["sha256"])
        items[blob.path] = blob
        layers.append(_descriptor(blob, media_type, {TITLE_KEY: path.rpartition("/")[2]}))
    config = PublishedFile.of_bytes("", _json(_config(pack, [layer["digest"] for layer in layers])))
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": _descriptor(_add(items, config), CONFIG_TYPE),
        "layers": layers,
        "annotations": _annotations(pack),
    }
    return _descriptor(
        _add(items, PublishedFile.of_bytes("", _json(manifest))), MANIFEST_TYPE, {NAME_KEY: pack.path.name}
    )


def _config(pack: Pack, layers: list[str]) -> dict[str, Any]:
    """Return the image configuration; it contains no time, so the same pack gives the same image."""
    model = pack.manifest["model"]
    size = sum(entry["size"] for entry in pack.manifest["files"] if entry["path"] in model["files"])
    return {
        "config": {
            "format": "gguf",
            "quantization": pack.manifest["recipe"]["preset"],
            "parameters": str(model["parameters"]),
            "architecture": model["architecture"],
            "size": str(size),
        },
        "descriptor": {},
        "rootfs": {"type": "rootfs", "diff_ids": layers},
    }


def _annotations(pack: Pack) -> dict[str, str]:
    licence = pack.manifest["source"].get("license")
    return {
        TITLE_KEY: pack.manifest["model"]["name"],
        **({} if licence is None else {"org.opencontainers.image.licenses": licence.get("name", licence["id"])}),
    }


def _add(items: dict[str, PublishedFile], item: PublishedFile) -> PublishedFile:
    assert item.data is not None
    named = PublishedFile.of_bytes(_blob(item.sha256), item.data)
    items[named.path] = named
    return named


def _blob(sha256: str) -> str:
    return f"blobs/sha256/{sha256}"


def _descriptor(item: PublishedFile, media_type: str, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"mediaType": media_type, "digest": f"sha256:{item.sha256}", "size": item.size}
    return found if annotations is None else {**found, "annotations": annotations}


def _images(out: Path) -> Iterator[dict[str, Any]]:
    """Yield the images in the index of ``out``. Raises ``WrongUse`` if it is a folder of something else."""
    if (out / INDEX).is_file() and (out / LAYOUT).is_file():
        found = read_json_object(out / INDEX).get("manifests")
        for one in found if isinstance(found, list) else []:
            if not isinstance(one, dict):
                raise BadInput("is no index of an OCI layout", where=out / INDEX)
            yield one
    elif out.exists() and (not out.is_dir() or any(one.name != "blobs" for one in out.iterdir())):
        raise WrongUse("is not empty and no OCI layout", where=out, remedy="choose another folder")


def _name(image: dict[str, Any]) -> object:
    annotations = image.get("annotations")
    return annotations.get(NAME_KEY, image.get("digest")) if isinstance(annotations, dict) else image.get("digest")


def _same(path: Path, item: PublishedFile) -> bool:
    return sha256_bytes(path.read_bytes()) == item.sha256


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
