"""Builds a pack again from its manifest or provenance statement and compares the two byte for byte.

A difference is reported by file, tensor and block, with the possible causes: a file that was changed after the build,
or another source, imatrix, recipe, template or quantizer.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from strata_pack.errors import BadInput, WrongUse
from strata_pack.files import sha256_file
from strata_pack.llama.ggml_types import GGML_QUANT_SIZES
from strata_pack.llama.quantizer import KernelChoice
from strata_pack.pack.attestations.to_manifest import recorded_manifest
from strata_pack.pack.build import build_pack
from strata_pack.pack.manifest import Manifest, RecipeEntry, read_manifest
from strata_pack.pack.paths import GOLDEN, MANIFEST, TEMPLATE, is_pack, member
from strata_pack.pack.request import BY_REFERENCE, BuildRequest
from strata_pack.progress import Progress, Silent
from strata_pack.weights.gguf.file import GgufFile
from strata_pack.weights.quantize.edits import edits_from_options
from strata_pack.weights.quantize.presets import find_preset
from strata_pack.weights.quantize.recipes import Recipe, recipe_from_options

_SHA256_LETTERS = 64
_COMPARED = 1 << 24
"""Bytes of a tensor that are compared at a time."""


@dataclass(frozen=True)
class FileDifference:
    """The first difference; ``block`` is the index (from 0) of a block of the tensor's type."""

    file: str
    problem: str
    tensor: str | None = None
    block: int | None = None


@dataclass(frozen=True)
class RebuildResult:
    """``causes`` are clauses; ``kept`` is the path of the new pack if it was kept."""

    difference: FileDifference | None
    causes: tuple[str, ...]
    files: int
    kept: Path | None

    @property
    def identical(self) -> bool:
        return self.difference is None

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON data."""
        return {
            "ok": self.identical,
            "difference": None if self.difference is None else asdict(self.difference),
            "causes": list(self.causes),
            "files": self.files,
            "kept": None if self.kept is None else str(self.kept),
        }


@dataclass(frozen=True)
class RebuildRequest:
    """The pack, and inputs that its manifest does not contain: local ``source``, ``imatrix``, ``projector``.

    ``pack`` is its folder or its provenance statement; with a statement, a ``template`` and ``golden`` cases that were
    files must be named too. ``keep`` is the folder for the new pack; without it, the new pack is removed after the
    comparison.
    """

    pack: Path
    source: str | None = None
    imatrix: Path | None = None
    keep: Path | None = None
    threads: int | None = None
    kernels: KernelChoice = "auto"
    projector: Path | None = None
    template: str | None = None
    golden: Path | None = None


def rebuild_pack(request: RebuildRequest, progress: Progress | None = None) -> RebuildResult:
    """Build the pack again and compare.

    Raises ``BadInput`` for what is neither a pack nor a statement, ``WrongUse`` if a source, imatrix, template or
    golden cases must be named, and as ``build_pack``.
    """
    pack = request.pack
    if pack.is_file() and pack.name != MANIFEST:
        manifest = recorded_manifest(pack)
        compare = partial(_stated_difference, _pack_of(pack))
    elif is_pack(pack):
        manifest = read_manifest(pack / MANIFEST)
        compare = partial(first_difference, pack)
    else:
        remedy = "name a pack's folder, or a provenance statement"
        raise BadInput("is not a pack: it has no manifest.json", where=pack, remedy=remedy)
    with _place(request.keep) as out:
        built = build_pack(_build_request(request, manifest, out), progress or Silent())
        difference = compare(out, manifest, built.manifest)
        folder = pack if pack.is_dir() else _pack_of(pack)
        causes = () if difference is None else tuple(_causes(folder, manifest, built.manifest, difference))
    return RebuildResult(difference, causes, len(manifest["files"]), request.keep)


def _pack_of(statement: Path) -> Path | None:
    """Return the pack that contains the statement, ``None`` if it is outside a pack."""
    return statement.parent if is_pack(statement.parent) else None


@contextmanager
def _place(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="strata-pack-rebuild-") as folder:
        yield Path(folder) / "pack"


def _build_request(request: RebuildRequest, manifest: Manifest, out: Path) -> BuildRequest:
    recipe, asked = manifest["recipe"], manifest.get("request")
    folder = request.pack if request.pack.is_dir() else _pack_of(request.pack)
    if recipe["imatrix_sha256"] is not None and request.imatrix is None:
        wanted = f"name the file with SHA-256 {recipe['imatrix_sha256']} with --imatrix"
        raise WrongUse("was built with an imatrix, which a pack does not contain", where=request.pack, remedy=wanted)
    parts = "" if asked is None else asked.get("parts", "")
    type, file = _recorded_projector(parts)
    if file is not None and request.projector is None:
        wanted = f"name the file with SHA-256 {file} with --mmproj"
        raise WrongUse("was built with a separate projector file", where=request.pack, remedy=wanted)
    return BuildRequest(
        source=request.source or _source_text(request.pack, manifest),
        out=out,
        recipe=recorded_recipe(recipe),
        template=request.template or _template_option(folder, request.pack, manifest),
        golden=request.golden or _golden_option(folder, request.pack, manifest),
        name=manifest["model"]["name"] if asked is None else asked["name"],
        imatrix=request.imatrix if recipe["imatrix_sha256"] is not None else None,
        projector="no projector" not in parts,
        projector_type=type,
        projector_file=None if file is None else request.projector,
        mtp="no draft head" not in parts,
        converter="reference" if BY_REFERENCE in parts else "own",
        allow_triggers="allowed_triggers" in manifest["template"],
        allow_requantize=True,
        allow_nonfinite=bool(recipe["options"].get("allow_nonfinite")),
        keep_split=bool(recipe["options"].get("keep_split")),
        threads=request.threads,
        kernels=request.kernels,
        edits=edits_from_options(recipe["options"]),
        split_bytes=recipe["options"].get("split_bytes"),
    )


def _recorded_projector(parts: str) -> tuple[str, str | None]:
    """Return the requested projector type and the SHA-256 of a named projector file; see ``parts_text``."""
    said = re.findall(r"(?:^|, )projector (\w+)", parts)
    types = [word for word in said if len(word) != _SHA256_LETTERS]
    files = [word for word in said if len(word) == _SHA256_LETTERS]
    return (types[0] if types else "auto"), (files[0] if files else None)


def _source_text(pack: Path, manifest: Manifest) -> str:
    source = manifest["source"]
    if source["kind"] != "hub" or source["repo"] is None or source["commit"] is None:
        raise WrongUse(f"was built from a local {source['kind']}", where=pack, remedy="name it with --source")
    return f"hf://{source['repo']}@{source['commit']}"


def _template_option(folder: Path | None, named: Path, manifest: Manifest) -> str:
    """Return the template of the build's request; the pack's own file if only a hash is recorded."""
    asked, sha256 = manifest.get("request"), manifest["template"]["sha256"]
    if asked is not None and asked["template_sha256"] == sha256 and len(key := asked["template"].split()[0]) != 64:
        return key
    if folder is None:
        remedy = f"name the file with SHA-256 {sha256} with --template"
        raise WrongUse("was built with a template that was a file", where=named, remedy=remedy)
    return str(folder / TEMPLATE)


def _golden_option(folder: Path | None, named: Path, manifest: Manifest) -> Path | None:
    asked = manifest.get("request")
    if asked is None or asked["golden"] is None:
        return None
    if folder is None:
        raise WrongUse("was built with golden cases from a file", where=named, remedy="name them with --golden")
    return folder / GOLDEN


def recorded_recipe(entry: RecipeEntry) -> Recipe:
    """Return the recipe that a manifest describes; ``WrongUse`` for an unknown preset or type."""
    return replace(recipe_from_options(find_preset(entry["preset"]), entry["options"]), text=entry["text"])


def first_difference(pack: Path, other: Path, manifest: Manifest, rebuilt: Manifest) -> FileDifference | None:
    """Return the first of the manifest's files that differs between two packs, models before other files.

    A model's files may have other names in the other pack, because names follow the source's.
    """
    models = dict(zip(manifest["model"]["files"], rebuilt["model"]["files"], strict=False))
    for entry in sorted(manifest["files"], key=lambda entry: (entry["path"] not in models, entry["path"])):
        path = entry["path"]
        ours, theirs = member(pack, path), member(other, models.get(path, path))
        if not ours.is_file():
            return FileDifference(path, "is not in the pack")
        if not theirs.is_file():
            return FileDifference(path, "is not in the rebuilt pack")
        if sha256_file(ours) != sha256_file(theirs):
            return _gguf_difference(ours, theirs, path) if path.endswith(".gguf") else FileDifference(path, "differs")
    return None


def _stated_difference(pack: Path | None, other: Path, manifest: Manifest, rebuilt: Manifest) -> FileDifference | None:
    """Return the first file of a statement that has another hash in the rebuilt pack ``other``.

    If ``pack`` has the file, the difference is located in it.
    """
    models = dict(zip(manifest["model"]["files"], rebuilt["model"]["files"], strict=False))
    theirs = {entry["path"]: entry["sha256"] for entry in rebuilt["files"]}
    for entry in sorted(manifest["files"], key=lambda entry: (entry["path"] not in models, entry["path"])):
        found = theirs.get(models.get(entry["path"], entry["path"]))
        if found is None:
            return FileDifference(entry["path"], "is not in the rebuilt pack")
        if found != entry["sha256"]:
            near = None if pack is None else first_difference(pack, other, manifest, rebuilt)
            said = f"has SHA-256 {found} in the rebuilt pack and {entry['sha256']} in the statement"
            return near or FileDifference(entry["path"], said)
    return None


def _gguf_difference(ours: Path, theirs: Path, name: str) -> FileDifference:
    with GgufFile.open(ours) as first, GgufFile.open(theirs) as second:
        for key in dict.fromkeys([*first.metadata, *second.metadata]):
            if first.metadata.get(key) != second.metadata.get(key):
                return FileDifference(name, f"its header differs at {key}")
        others = {tensor.name: tensor for tensor in second.tensors}
        for tensor in first.tensors:
            other = others.get(tensor.name)
            if other is None or other.shape != tensor.shape:
                return FileDifference(name, "is missing or has another shape in the rebuilt pack", tensor.name)
            if other.type is not tensor.type:
                return FileDifference(
                    name, f"is {tensor.type.name}, {other.type.name} in the rebuilt pack", tensor.name
                )
            sizes = GGML_QUANT_SIZES[tensor.type]
            at = _first_other_byte(first.tensor_bytes(tensor), second.tensor_bytes(other))
            if at is not None:
                return FileDifference(name, "differs", tensor.name, at // sizes[1])
    return FileDifference(name, "differs outside header and tensors")


def _first_other_byte(ours: Any, theirs: Any) -> int | None:
    first, second = np.frombuffer(ours, np.uint8), np.frombuffer(theirs, np.uint8)
    for start in range(0, first.size, _COMPARED):
        other = first[start : start + _COMPARED] != second[start : start + _COMPARED]
        if other.any():
            return start + int(np.argmax(other))
    return None


def _causes(pack: Path | None, manifest: Manifest, rebuilt: Manifest, difference: FileDifference) -> Iterator[str]:
    """Yield all possible causes, certain ones first."""
    listed = {entry["path"]: entry["sha256"] for entry in manifest["files"]}
    path = None if pack is None else member(pack, difference.file)
    if path is not None and path.is_file() and sha256_file(path) != listed[difference.file]:
        yield "the pack's file was changed after the build: its hash is not the manifest's"
    theirs = {entry["path"]: entry["sha256"] for entry in rebuilt["source"]["files"]}
    for entry in manifest["source"]["files"]:
        found = theirs.get(entry["path"])
        if found is None and entry["sha256"] not in theirs.values():
            yield f"other source: {entry['path']} is not in it"
        elif found is not None and found != entry["sha256"]:
            yield f"other source: {entry['path']} has SHA-256 {found}, not {entry['sha256']}"
    if rebuilt["recipe"]["imatrix_sha256"] != manifest["recipe"]["imatrix_sha256"]:
        there = manifest["recipe"]["imatrix_sha256"]
        yield f"other imatrix: SHA-256 {rebuilt['recipe']['imatrix_sha256']}, not {there}"
    if manifest["model"]["tensors"] and rebuilt["model"]["tensors"] != manifest["model"]["tensors"]:
        yield "other recipe: the manifest's gives other tensor types than the manifest lists"
    if rebuilt["template"]["sha256"] != manifest["template"]["sha256"]:
        there = manifest["template"]["sha256"]
        yield f"other template: SHA-256 {rebuilt['template']['sha256']}, not {there}"
    asked, now = (one.get("request", {}).get("parts", "") for one in (manifest, rebuilt))
    if _recorded_projector(asked) != _recorded_projector(now):
        yield f"other projector: SHA-256 {_recorded_projector(now)[1]}, not {_recorded_projector(asked)[1]}"
    mine, its = rebuilt["quantizer"], manifest["quantizer"]
    if (mine["sha256"], mine["probe_hash"]) != (its["sha256"], its["probe_hash"]):
        same = "writes" if mine["probe_hash"] == its["probe_hash"] else "does not write"
        yield (
            f"other quantizer: {mine['library']} {mine['version']} here, {its['version']} there, which {same} the same "
            "bytes for a probe"
        )
    if rebuilt["tool"] != manifest["tool"]:
        yield f"other strata-pack: {rebuilt['tool']} here, {manifest['tool']} there"
