"""Writes the GGUF files of packs from one reading of the source, finds those of an interrupted build, describes
them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strata_pack.files import disk_errors, dump_json, read_json_object, sha256_file, write_atomic
from strata_pack.llama.ggml import QUANTIZABLE
from strata_pack.llama.quantizer import KernelChoice, Quantizer
from strata_pack.pack.build_dir import BuildDir
from strata_pack.pack.build_plan import template_keys
from strata_pack.pack.file_names import file_stem
from strata_pack.pack.manifest import FileEntry, ModelEntry, QuantizerEntry
from strata_pack.pack.model_source import Model
from strata_pack.pack.paths import MODEL_DIR
from strata_pack.pack.request import BuildRequest
from strata_pack.pack.template.choice import ChosenTemplate
from strata_pack.progress import Progress
from strata_pack.weights.partial_file import partial_path
from strata_pack.weights.quantize.run import (
    Output,
    QuantPlan,
    output_headers,
    output_paths,
    output_sizes,
    quantized_types,
    run_plans,
)

_FINISHED = "quantized.json"


@dataclass(frozen=True)
class PlannedModel:
    """The model of one pack: its build folder, plan, template and file name (without .gguf)."""

    place: BuildDir
    plan: QuantPlan
    chosen: ChosenTemplate
    name: str

    @property
    def path(self) -> Path:
        return self.place.pack / MODEL_DIR / f"{self.name}.gguf"

    @property
    def missing_bytes(self) -> int:
        """The number of bytes still to be written, less those of an interrupted build."""
        finals = output_paths(self.plan, self.path)
        there = sum(path.stat().st_size for final in finals for path in (final, partial_path(final)) if path.is_file())
        return max(0, sum(output_sizes(self.plan, template_keys(self.chosen))) - there)


@dataclass(frozen=True)
class ModelFiles:
    """The model's files in the build folder, and the type of every tensor."""

    entries: tuple[FileEntry, ...]
    tensors: dict[str, str]


def write_models(
    models: Sequence[PlannedModel], request: BuildRequest, progress: Progress, ready: Sequence[Path | None]
) -> list[ModelFiles]:
    """Write the models into their build folders, or find them there from an earlier build.

    ``ready`` are files that were already written by the same plans: they are moved there. Missing files are written
    from one reading of the source. ``request`` gives threads, kernels and the treatment of NaN.
    """
    found = [_finished(model.place) or _taken(model, file) for model, file in zip(models, ready, strict=True)]
    missing = [index for index, files in enumerate(found) if files is None]
    for index in missing:
        place = models[index].place
        with disk_errors(place.root):
            models[index].path.parent.mkdir(parents=True, exist_ok=True)
            place.journal.mkdir(exist_ok=True)
    outputs = [
        Output(model.plan, model.path, template_keys(model.chosen), model.place.journal / "tensors")
        for model in (models[index] for index in missing)
    ]
    results = (
        run_plans(
            outputs,
            progress=progress,
            threads=request.threads,
            allow_nonfinite=request.allow_nonfinite,
            kernels=request.kernels,
        )
        if outputs
        else []
    )
    for index, result in zip(missing, results, strict=True):
        for tensor, count in result.nonfinite.items():
            progress.note(f"{tensor}: {count} NaN or infinite weights")
        entries = tuple(
            FileEntry(path=f"{MODEL_DIR}/{file.path.name}", size=file.size, sha256=file.sha256) for file in result.files
        )
        tensors = dict(result.tensor_types)
        write_atomic(models[index].place.journal / _FINISHED, dump_json({"files": entries, "tensors": tensors}))
        found[index] = ModelFiles(entries, tensors)
    return [files for files in found if files is not None]


def _finished(place: BuildDir) -> ModelFiles | None:
    note = place.journal / _FINISHED
    if not note.is_file():
        return None
    value = read_json_object(note)
    entries: tuple[FileEntry, ...] = tuple(value["files"])
    for entry in entries:
        path = place.pack / entry["path"]
        if not path.is_file() or path.stat().st_size != entry["size"]:
            return None
    return ModelFiles(entries, value["tensors"])


def _taken(model: PlannedModel, ready: Path | None) -> ModelFiles | None:
    """Move a finished file to its place, or find it there; ``None`` if it does not match the plan."""
    if ready is None or model.plan.shards != 1:
        return None
    keys, target = template_keys(model.chosen), model.path
    found = next((path for path in (ready, target) if path.is_file()), None)
    if found is None or found.stat().st_size != sum(output_sizes(model.plan, keys)):
        return None
    (header,) = output_headers(model.plan, keys)
    with found.open("rb") as file:
        if file.read(len(header)) != header:
            return None
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        model.place.journal.mkdir(exist_ok=True)
        os.replace(found, target)
    entry = FileEntry(path=f"{MODEL_DIR}/{target.name}", size=target.stat().st_size, sha256=sha256_file(target))
    tensors = dict(model.plan.types)
    write_atomic(model.place.journal / _FINISHED, dump_json({"files": [entry], "tensors": tensors}))
    return ModelFiles((entry,), tensors)


def file_name(request: BuildRequest, model: Model) -> str:
    """Return the name of the model's file without .gguf: the requested one, else that of model and recipe."""
    return file_stem(request.name) if request.name else f"{model.name}-{request.recipe.label}"


def model_entry(model: PlannedModel, files: ModelFiles) -> ModelEntry:
    """Return the manifest's entry of the model."""
    architecture = model.plan.source.metadata.get("general.architecture")
    return ModelEntry(
        name=model.name,
        architecture=str(architecture.value) if architecture is not None else "unknown",
        parameters=model.plan.parameters,
        bits_per_weight=round(model.plan.bits_per_weight, 4),
        files=[entry["path"] for entry in files.entries],
        tensors=files.tensors,
    )


def quantizer_entry(plan: QuantPlan, kernels: KernelChoice) -> QuantizerEntry:
    """Return the manifest's entry of the quantizer."""
    quantizer = Quantizer.load(kernels)
    ggml = quantizer.ggml
    types = {tensor.type for tensor in plan.tensors if tensor.changed}
    return QuantizerEntry(
        library="xllamacpp",
        version=ggml.version,
        sha256=ggml.library_sha256,
        probe_hash=ggml.probe_hash(types & QUANTIZABLE),
        kernels=quantizer.entry(quantized_types(plan)),
    )
