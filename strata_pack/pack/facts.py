"""Checks the facts in a manifest against the pack's files.

Facts that no file of the pack can confirm (the hash of an absent source, the commit) are left to the signature.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from strata_pack.chat.library import list_templates
from strata_pack.errors import BadInput, EnvironmentFailure, WrongUse
from strata_pack.pack.file_names import CONFIG, TOKENIZER_FILES, file_stem
from strata_pack.pack.manifest import Manifest
from strata_pack.pack.paths import TOKENIZER_DIR
from strata_pack.weights.gguf.file import GgufFile, MetaValue, TensorInfo
from strata_pack.weights.quantize.edits import Edits, edits_from_options
from strata_pack.weights.quantize.presets import find_preset
from strata_pack.weights.quantize.recipes import Recipe, TypeRule, parse_type, recipe_from_options, recipe_from_text

if TYPE_CHECKING:
    from strata_pack.llama.ggml import Ggml

LIBRARY = "xllamacpp"


def wrong_facts(manifest: Manifest, files: Sequence[GgufFile], tool: str) -> list[str]:
    """Return every fact of ``manifest`` that the model's ``files`` (shards in order) contradict.

    ``tool`` is the running version: tensor types are recomputed only for packs of the same version.
    """
    metadata = files[0].metadata
    tensors = [tensor for file in files for tensor in file.tensors]
    wrong = [*_model(manifest, metadata, tensors), *_source(manifest), *_request(manifest), *_template(manifest)]
    wrong += _golden(manifest)
    try:
        recipe = recipe_from_options(find_preset(manifest["recipe"]["preset"]), manifest["recipe"]["options"])
        edits = edits_from_options(manifest["recipe"]["options"])
    except (BadInput, WrongUse) as error:
        return [*wrong, f"recipe: {error}"]
    wrong += _recipe(manifest, recipe, metadata)
    if manifest["tool"] == tool:
        wrong += _types(manifest, recipe, _before_pruning(metadata, edits), tensors)
    return [*wrong, *_quantizer(manifest)]


def _differs(what: str, said: object, found: object) -> Iterator[str]:
    if said != found:
        yield f"{what} is {found!r} and the manifest says {said!r}"


def _model(manifest: Manifest, metadata: Mapping[str, MetaValue], tensors: Sequence[TensorInfo]) -> Iterator[str]:
    model = manifest["model"]
    architecture = metadata.get("general.architecture")
    yield from _differs(
        "model/architecture", model["architecture"], "unknown" if architecture is None else architecture.value
    )
    elements, nbytes = sum(tensor.elements for tensor in tensors), sum(tensor.nbytes for tensor in tensors)
    bits = round(8 * nbytes / elements, 4) if elements else 0.0
    yield from _differs("model/bits_per_weight", model["bits_per_weight"], bits)
    stem = file_stem(PurePosixPath(model["files"][0]).name)
    # A template installation may have added a header-only first shard: the name before the number is unchanged.
    yield from _differs("model/name", model["name"], stem)


def _source(manifest: Manifest) -> Iterator[str]:
    source = manifest["source"]
    hub = source["kind"] == "hub"
    for key in ("repo", "commit"):
        if (source[key] is None) is hub:
            yield f"source/{key} is {source[key]!r}, which a source of kind {source['kind']!r} cannot have"
    names = [entry["path"] for entry in source["files"]]
    if len(set(names)) != len(names):
        yield "source/files names a file twice"
    copied = {name: entry for entry in manifest["files"] if (name := _copied_name(entry["path"])) is not None}
    if source["kind"] != "file":
        by_name = {PurePosixPath(entry["path"]).name: entry for entry in source["files"]}
        for name, entry in copied.items():
            if name not in by_name:
                yield f"source/files lacks {name}, of which {entry['path']} is a copy"
            elif name != CONFIG:
                for key, said, found in (
                    ("size", by_name[name]["size"], entry["size"]),
                    ("sha256", by_name[name]["sha256"], entry["sha256"]),
                ):
                    yield from _differs(f"source/files/{name}/{key}", said, found)


def _copied_name(path: str) -> str | None:
    folder, _, name = path.rpartition("/")
    return name if folder == TOKENIZER_DIR and name in TOKENIZER_FILES else None


def _request(manifest: Manifest) -> Iterator[str]:
    request = manifest.get("request")
    if request is None:
        return
    if request["name"] is not None:
        yield from _differs("request/name", file_stem(request["name"]), manifest["model"]["name"])
    template = manifest["template"]
    if request["template_sha256"] != template["sha256"]:
        return  # another template was installed after the build
    wanted = request["template"]
    allowed = {"auto": ("repaired", "source"), "keep": ("source",)}.get(wanted)
    if allowed is None:
        allowed = ("shipped",) if " " in wanted else ("file",)
        yield from _differs("request/template", wanted.rpartition(" ")[2], template["sha256"])
    if template["origin"] not in allowed:
        yield f"template/origin is {template['origin']!r}, and the request was {wanted!r}"


def _template(manifest: Manifest) -> Iterator[str]:
    template = manifest["template"]
    texts = {one.id: {one.sha256, *(known.sha256 for known in one.earlier)} for one in list_templates()}
    holder = next((name for name, digests in texts.items() if template["sha256"] in digests), None)
    if template["id"] in texts and template["id"] != holder:
        yield f"template/id is {template['id']!r}, whose text has another SHA-256"
    if template["origin"] in ("shipped", "source") and holder is not None:
        yield from _differs("template/id", template["id"], holder)
    if template["replaced_sha256"] == template["sha256"]:
        yield "template/replaced_sha256 is the template's own"


def _golden(manifest: Manifest) -> Iterator[str]:
    golden = manifest["golden"]
    for name, counts in (golden or {"engines": {}})["engines"].items():
        total = sum(counts.get(key, 0) for key in ("passed", "failed", "known_differences"))
        if golden is not None and total != golden["cases"]:
            yield f"golden/engines/{name} counts {total} cases and there are {golden['cases']}"


def _recipe(manifest: Manifest, recipe: Recipe, metadata: Mapping[str, MetaValue]) -> Iterator[str]:
    stored = metadata.get("general.file_type")
    if not recipe.base.copy and stored is not None:
        what = f"general.file_type (for recipe/preset {recipe.base.name})"
        yield from _differs(what, recipe.base.file_type, stored.value)
    text = manifest["recipe"]["text"]
    if text is not None:
        written = [_plain_rule(rule) for rule in recipe_from_text(text).rules]
        used = [_plain_rule(rule) for rule in recipe.rules]
        if written != used[len(used) - len(written) :]:
            yield "recipe/text has other rules than recipe/options"


def _plain_rule(rule: TypeRule) -> tuple[object, ...]:
    return rule.pattern.pattern, rule.type, rule.layers


def _types(
    manifest: Manifest, recipe: Recipe, metadata: Mapping[str, MetaValue], tensors: Sequence[TensorInfo]
) -> Iterator[str]:
    from strata_pack.weights.quantize.plan import types_by_recipe

    weighted = manifest["recipe"]["imatrix_sha256"] is not None
    chosen = types_by_recipe(metadata, tensors, recipe, has_imatrix=weighted)
    for tensor in tensors:
        wanted = chosen.get(tensor.name)
        if wanted is not None and wanted is not tensor.type:
            yield f"{tensor.name} is {tensor.type.name} and the manifest's recipe gives it {wanted.name}"


def _before_pruning(metadata: Mapping[str, MetaValue], edits: Edits) -> Mapping[str, MetaValue]:
    """Return the header with the number of layers before pruning, by which types are chosen."""
    architecture = metadata.get("general.architecture")
    key = f"{None if architecture is None else architecture.value}.block_count"
    if not edits.pruned or key not in metadata:
        return metadata
    return {**metadata, key: MetaValue.uint32(int(metadata[key].value) + len(edits.pruned))}


def _quantizer(manifest: Manifest) -> Iterator[str]:
    said = manifest["quantizer"]
    yield from _differs("quantizer/library", said["library"], LIBRARY)
    used = set(manifest["model"]["tensors"].values())
    for name in said.get("kernels", {"types": {}})["types"]:
        if name not in used:
            yield f"quantizer/kernels names {name}, and no tensor has that type"
    from strata_pack.llama.ggml import Ggml

    try:
        ggml = Ggml.load()
    except EnvironmentFailure:
        return
    if said["sha256"] != ggml.library_sha256:
        return  # quantized by another ggml build: its probe cannot be computed here
    yield from _differs("quantizer/version", said["version"], ggml.version)
    yield from _differs("quantizer/probe_hash", said["probe_hash"], _probe(ggml, manifest))


def _probe(ggml: Ggml, manifest: Manifest) -> str:
    types = {parse_type(name, "model/tensors") for name in _quantizable(manifest["model"]["tensors"].values())}
    return ggml.probe_hash(types)


def _quantizable(names: Any) -> set[str]:
    from strata_pack.llama.ggml import QUANTIZABLE

    return {type.name for type in QUANTIZABLE} & set(names)
