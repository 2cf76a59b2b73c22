"""Defines the request of a build, and the manifest's record of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from strata_pack.chat.golden.cases import load_suite
from strata_pack.chat.library import list_templates
from strata_pack.chat.render.template import read_template
from strata_pack.errors import BadInput, WrongUse
from strata_pack.files import sha256_file, sha256_text
from strata_pack.llama.quantizer import KernelChoice
from strata_pack.pack.manifest import RecipeEntry, RequestEntry
from strata_pack.pack.model_source import source_name
from strata_pack.pack.paths import is_pack
from strata_pack.pack.template.choice import AUTO, KEEP
from strata_pack.weights.gguf.file import shard_paths
from strata_pack.weights.quantize.edits import NO_EDITS, Edits, edit_options
from strata_pack.weights.quantize.imatrix import Imatrix
from strata_pack.weights.quantize.recipe_field import RecipeField
from strata_pack.weights.quantize.recipes import Recipe
from strata_pack.weights.source import LocalFolder, LocalGguf, Source, parse_source

Layout = Literal["pack", "gguf"]
ConverterChoice = Literal["own", "reference"]
BY_REFERENCE = "converted by llama.cpp's converter"


@dataclass(frozen=True)
class BuildRequest:
    """What to build. ``recipe`` (a recipe or the name of a preset) determines the tensor types.

    ``template``, ``golden`` and ``allow_triggers`` are as in ``choose_template``.

    ``projector`` False leaves out the vision tower, ``projector_type`` is the type it is converted to ("auto": that of
    its weights), ``projector_file`` the projector of a GGUF model. ``mtp`` False leaves out the draft head.

    ``converter`` "reference" lets llama.cpp's own converter read a checkpoint: for classes that are not known here.

    ``layout`` "gguf" leaves only the GGUF file(s) in ``out``. ``threads`` of ``None`` means all cores. ``edits`` change
    layers, metadata and importances; ``split_bytes`` is the maximum bytes of the tensors in one file.
    """

    source: str
    out: Path
    recipe: RecipeField = RecipeField()  # noqa: RUF009
    template: str = AUTO
    golden: Path | None = None
    allow_triggers: bool = False
    name: str | None = None
    imatrix: Path | None = None
    projector: bool = True
    projector_type: str = "auto"
    projector_file: Path | None = None
    mtp: bool = True
    converter: ConverterChoice = "own"
    layout: Layout = "pack"
    force: bool = False
    allow_requantize: bool = False
    allow_nonfinite: bool = False
    keep_split: bool = False
    threads: int | None = None
    kernels: KernelChoice = "auto"
    edits: Edits = NO_EDITS
    split_bytes: int | None = None

    @property
    def reading(self) -> tuple[object, ...]:
        """The options that requests must share to be built from one reading of their source."""
        how = (self.allow_nonfinite, self.threads, self.kernels)
        return (self.source, self.mtp, self.converter, self.keep_split, self.edits, *how)


def requests_by_recipe(request: BuildRequest, recipes: Sequence[Recipe]) -> list[BuildRequest]:
    """Return one request per recipe, for packs in the folder ``request.out``, named after source and recipe.

    Raises ``WrongUse`` for two recipes with the same name, for a ``name`` (all models would have it), and for a folder
    that is a pack.
    """
    labels = [recipe.label for recipe in recipes]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise WrongUse(f"{twice} is named twice", where="--quant", remedy="name each preset once")
    if request.name is not None:
        raise WrongUse("names one model, but several are built", where="--name", remedy="leave it out")
    if is_pack(request.out):
        raise WrongUse("is a pack; several packs need a common folder", where=request.out, remedy="name another folder")
    name = source_name(parse_source(request.source))
    return [replace(request, out=request.out / f"{name}-{recipe.label}", recipe=recipe) for recipe in recipes]


def recipe_options(request: BuildRequest) -> dict[str, Any]:
    """Return as JSON the options in which the model differs from its preset, apart from the recipe file's text."""
    recipe = request.recipe
    options: dict[str, Any] = {
        "rules": [
            {"tensors": rule.pattern.pattern, "layers": [list(span) for span in rule.layers], "type": rule.type.name}
            for rule in recipe.rules
        ],
        "output": recipe.output.name if recipe.output is not None else None,
        "embedding": recipe.embedding.name if recipe.embedding is not None else None,
        "leave_output": recipe.leave_output,
        "pure": recipe.pure,
        "keep_split": request.keep_split,
        "allow_nonfinite": request.allow_nonfinite,
        "split_bytes": request.split_bytes,
        **edit_options(request.edits),
    }
    return {key: value for key, value in options.items() if value}


def recipe_entry(request: BuildRequest, imatrix: Imatrix | None) -> RecipeEntry:
    """Return the manifest's entry of the recipe."""
    return RecipeEntry(
        preset=request.recipe.base.name,
        text=request.recipe.text,
        options=recipe_options(request),
        imatrix_sha256=None if imatrix is None else imatrix.sha256,
    )


def request_entry(request: BuildRequest, template_sha256: str) -> RequestEntry:
    """Return the manifest's entry of the request; files are recorded by hash, so it contains no local path.

    ``template_sha256`` is that of the template which the build installed. Raises ``WrongUse`` for an unknown template.
    """
    entry = RequestEntry(
        template=_template_key(request.template),
        golden=None if request.golden is None else load_suite(request.golden).sha256,
        name=request.name,
        template_sha256=template_sha256,
    )
    if parts := parts_text(request):
        entry["parts"] = parts
    return entry


def parts_text(request: BuildRequest) -> str:
    """Return the options for projector, draft head and converter as text, empty for the defaults."""
    parts = []
    if not request.projector:
        parts.append("no projector")
    elif request.projector_type != "auto":
        parts.append(f"projector {request.projector_type}")
    if request.projector_file is not None:
        if not request.projector_file.is_file():
            raise BadInput("no such file", where=request.projector_file, remedy="name a projector's .gguf")
        parts.append(f"projector {sha256_file(request.projector_file)}")
    if not request.mtp:
        parts.append("no draft head")
    if request.converter == "reference":
        parts.append(BY_REFERENCE)
    return ", ".join(parts)


def _template_key(option: str) -> str:
    if option in (AUTO, KEEP):
        return option
    shipped = next((one for one in list_templates() if one.id == option), None)
    if shipped is not None:
        return f"{shipped.id} {shipped.sha256}"
    path = Path(option)
    if not path.is_file():
        raise WrongUse(f"no template {option!r}", where="--template", remedy="give an id, a file, auto or keep")
    return sha256_text(read_template(path))


def read_paths(request: BuildRequest, source: Source) -> Iterator[Path | str | None]:
    """Yield every local path that a build of ``request`` reads, ``None`` for options that are not given."""
    if isinstance(source, LocalGguf):
        yield from shard_paths(source.path)
    elif isinstance(source, LocalFolder):
        yield source.path
    yield from (request.imatrix, request.golden, request.recipe.path, request.projector_file)
    if request.template not in (AUTO, KEEP) and all(one.id != request.template for one in list_templates()):
        yield request.template
