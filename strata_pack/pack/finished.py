"""Recognises an existing pack with the same inputs, so that it is not built again.

A manifest records by content all inputs that determine a pack. Cheap facts are compared first; the hashes of the source
and of the pack are computed last and only if everything else agrees.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from strata_pack import __version__
from strata_pack.errors import BadInput
from strata_pack.files import sha256_file
from strata_pack.llama.ggml import Ggml
from strata_pack.pack.manifest import FileEntry, Manifest, read_manifest
from strata_pack.pack.model_source import bring, hub_folder
from strata_pack.pack.paths import MANIFEST, is_pack, member
from strata_pack.pack.request import BuildRequest, recipe_entry, request_entry
from strata_pack.progress import Progress, Silent
from strata_pack.weights.hub.fetch import look
from strata_pack.weights.quantize.imatrix import Imatrix
from strata_pack.weights.source import HubSource, Source


def finished_pack(
    request: BuildRequest,
    source: Source,
    imatrix: Imatrix | None,
    out: Path,
    fetched: Path,
    progress: Progress,
    digests: dict[Path, str],
) -> Manifest | None:
    """Return the manifest of the pack in ``out`` if a build of ``request`` would give the same pack, else ``None``.

    ``fetched`` is the folder to which the build would fetch a Hub source. ``digests`` caches the SHA-256 of the
    source's files for several packs of one source. Raises what reading the source raises.
    """
    if request.layout != "pack" or not is_pack(out):
        return None
    try:
        manifest = read_manifest(out / MANIFEST)
    except BadInput:
        return None
    if not _asked_the_same(manifest, request, imatrix) or not _sizes_agree(manifest["files"], out):
        return None
    if not _same_source(manifest, source, fetched, progress, digests):
        return None
    return manifest if _hashes_agree([(member(out, e["path"]), e) for e in manifest["files"]], progress, {}) else None


def _asked_the_same(manifest: Manifest, request: BuildRequest, imatrix: Imatrix | None) -> bool:
    # A template that was installed later differs from the build's.
    return (
        manifest["tool"] == __version__
        and manifest["recipe"] == recipe_entry(request, imatrix)
        and manifest.get("request") == request_entry(request, manifest["template"]["sha256"])
        and (request.allow_triggers or "allowed_triggers" not in manifest["template"])
        and manifest["quantizer"]["sha256"] == Ggml.load().library_sha256
    )


def _sizes_agree(entries: Iterable[FileEntry], root: Path) -> bool:
    paths = [(member(root, entry["path"]), entry["size"]) for entry in entries]
    return all(path.is_file() and path.stat().st_size == size for path, size in paths)


def _same_source(
    manifest: Manifest, source: Source, fetched: Path, progress: Progress, digests: dict[Path, str]
) -> bool:
    said = {entry["path"]: entry for entry in manifest["source"]["files"]}
    if isinstance(source, HubSource):
        plan = look(source.repo_id, source.revision, hub_folder(source, fetched), path=source.path)
        listed = {file.path: file for file in plan.selection.files}
        origin = (manifest["source"]["repo"], manifest["source"]["commit"])
        return origin == (plan.tree.repo_id, plan.tree.commit) and listed.keys() == said.keys()
    model = bring(source, fetched, Silent(), lambda _folder: None)
    files = {file.name: file.path for file in model.files}
    if model.kind != manifest["source"]["kind"] or files.keys() != said.keys():
        return False
    if any(path.stat().st_size != said[name]["size"] for name, path in files.items()):
        return False
    return _hashes_agree([(path, said[name]) for name, path in files.items()], progress, digests)


def _hashes_agree(files: Iterable[tuple[Path, FileEntry]], progress: Progress, digests: dict[Path, str]) -> bool:
    for path, entry in files:
        if path not in digests:
            task = progress.task(f"comparing {path.name}", entry["size"])
            digests[path] = sha256_file(path)
            task.advance(entry["size"])
            task.done()
        if digests[path] != entry["sha256"]:
            return False
    return True
