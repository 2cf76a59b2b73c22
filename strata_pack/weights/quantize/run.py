"""Quantizing a model: from a ``TensorSource`` and a plan to one GGUF file, or to one a shard of the source.

    plan = plan_quantization(source, "Q4_K_M")
    result = run_plan(plan, Path("model-Q4_K_M.gguf"))

The bytes are those of llama.cpp's quantizer: the same functions quantize, the same rules choose the types, and header
and tensors come in the same order. Memory is bounded by a few chunks of rows, whatever the size of the model.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType, GGUFValueType

from strata_pack.errors import WrongUse
from strata_pack.llama.ggml import Bytes
from strata_pack.llama.quantizer import KernelChoice, Quantizer
from strata_pack.progress import Progress, Silent
from strata_pack.weights.gguf.file import MetaValue, TensorInfo, align, encode_header, shard_name
from strata_pack.weights.quantize.journal import PartialFiles, WrittenFile
from strata_pack.weights.quantize.plan import (
    QUANTIZATION_VERSION,
    PlannedTensor,
    QuantPlan,
    plan_quantization,
    requantize_note,
)
from strata_pack.weights.quantize.rows import Pipeline, TensorJob, usable_cores

__all__ = [
    "PlannedTensor",
    "QuantPlan",
    "QuantResult",
    "WrittenFile",
    "output_headers",
    "output_paths",
    "output_sizes",
    "plan_quantization",
    "quantized_types",
    "run_plan",
]

_SHARD_STEM = re.compile(r"(.+?)(?:-\d{5}-of-\d{5})?\.gguf", re.DOTALL)
_VERSION_KEY, _FILE_TYPE_KEY = "general.quantization_version", "general.file_type"


@dataclass(frozen=True)
class QuantResult:
    """What was written."""

    files: tuple[WrittenFile, ...]
    tensor_types: Mapping[str, str]
    """The name of every tensor's type, in the order of the files."""
    resumed_tensors: int = 0
    """How many tensors an interrupted run had finished before."""
    nonfinite: Mapping[str, int] = field(default_factory=dict)
    """By tensor, the NaN and infinities that ``allow_nonfinite`` let pass."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON data."""
        return {
            "files": [{"path": str(file.path), "size": file.size, "sha256": file.sha256} for file in self.files],
            "resumed_tensors": self.resumed_tensors,
            "nonfinite": dict(self.nonfinite),
            "tensor_types": dict(self.tensor_types),
        }


def output_paths(plan: QuantPlan, out_path: Path) -> list[Path]:
    """Return the files ``run_plan`` will write: ``out_path``, or its shards in llama.cpp's naming."""
    if plan.shards == 1:
        return [out_path]
    match = _SHARD_STEM.fullmatch(out_path.name)
    if match is None:
        raise WrongUse("the name of a GGUF file ends in .gguf", where=out_path)
    return [out_path.with_name(shard_name(match[1], index, plan.shards)) for index in range(plan.shards)]


def output_headers(plan: QuantPlan, metadata_overrides: Mapping[str, MetaValue | None]) -> list[bytes]:
    """Return the whole header of every output file.

    All keys of the source come first, then version and file type, then the overrides, as llama.cpp has them (``None``
    removes a key). A split model has its metadata in the first shard.
    """
    preset = plan.recipe.base
    metadata = dict(plan.source.metadata)
    file_type = metadata.pop(_FILE_TYPE_KEY, None)
    metadata.pop(_VERSION_KEY, None)
    metadata[_VERSION_KEY] = MetaValue.uint32(QUANTIZATION_VERSION)
    if not preset.copy:
        metadata[_FILE_TYPE_KEY] = MetaValue.uint32(preset.file_type)
    elif file_type is not None:
        metadata[_FILE_TYPE_KEY] = file_type
    for key, value in {**plan.closing, **metadata_overrides}.items():
        metadata.pop(key, None)
        if value is not None:
            metadata[key] = value
    headers = []
    for shard in range(plan.shards):
        keys = metadata if shard == 0 else {}
        if plan.shards > 1:
            keys = keys | _split_keys(shard, plan)
        directory, offset = [], 0
        for tensor in plan.tensors:
            if tensor.shard == shard:
                directory.append(TensorInfo(tensor.name, _dimensions(tensor), tensor.type, offset, tensor.nbytes))
                offset += align(tensor.nbytes, plan.alignment)
        headers.append(encode_header(keys, directory, plan.alignment))
    return headers


def _dimensions(tensor: PlannedTensor) -> tuple[int, ...]:
    """Return a tensor's shape as ggml counts its dimensions: without ones at the end, but for the first."""
    shape = tensor.source.shape
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def output_sizes(plan: QuantPlan, metadata_overrides: Mapping[str, MetaValue | None] | None = None) -> list[int]:
    """Return the exact bytes of every file ``run_plan`` will write."""
    sizes = [len(header) for header in output_headers(plan, metadata_overrides or {})]
    for tensor in plan.tensors:
        sizes[tensor.shard] += align(tensor.nbytes, plan.alignment)
    return sizes


def _split_keys(shard: int, plan: QuantPlan) -> dict[str, MetaValue]:
    no, count = MetaValue(GGUFValueType.UINT16, shard), MetaValue(GGUFValueType.UINT16, plan.shards)
    tensors = MetaValue(GGUFValueType.INT32, len(plan.tensors))
    if plan.split_by_size:
        # llama-gguf-split knows the count last, llama-quantize first.
        return {"split.no": no, "split.tensors.count": tensors, "split.count": count}
    return {"split.no": no, "split.count": count, "split.tensors.count": tensors}


def run_plan(
    plan: QuantPlan,
    out_path: Path,
    *,
    metadata_overrides: Mapping[str, MetaValue | None] | None = None,
    progress: Progress | None = None,
    threads: int | None = None,
    journal: Path | None = None,
    allow_nonfinite: bool = False,
    kernels: KernelChoice = "auto",
) -> QuantResult:
    """Write the model that ``plan`` describes to ``out_path`` (replaced if it is there), whole or not at all.

    Killed at any moment, it goes on after the last finished tensor when it is called again with the same source,
    plan and overrides; ``journal`` (default: next to the output) is where that is noted. ``threads`` defaults to the
    cores this process may use; ``kernels`` "ggml" lets ggml quantize all types. Raises ``BadInput`` for NaN and
    infinities unless ``allow_nonfinite`` (which keeps them in float tensors, and in block types turns NaN into 0 and
    infinities into 65504), ``EnvironmentFailure`` for a full disk, another run that writes the same file, or a kernel
    that does not write ggml's bytes.
    """
    progress = progress or Silent()
    paths = output_paths(plan, out_path)
    headers = output_headers(plan, metadata_overrides or {})
    journal = journal or paths[0].with_name(f".{paths[0].name}.journal")
    quantizer = Quantizer.load(kernels)
    fingerprint = _fingerprint(plan, headers, quantizer, allow_nonfinite=allow_nonfinite)
    note = requantize_note(plan)
    types = quantized_types(plan)
    for text in (*([] if note is None else [note]), *(quantizer.notes(types) if kernels == "auto" and types else [])):
        progress.note(text)
    task = progress.task(f"quantize to {plan.recipe.label}", total=plan.source_bytes)
    with (
        PartialFiles(paths, journal, fingerprint) as files,
        Pipeline(
            quantizer, threads or usable_cores(), allow_nonfinite=allow_nonfinite, where=plan.source.label
        ) as pipeline,
    ):
        done = files.finished_tensors
        if done:
            progress.note(f"{out_path.name}: {len(done)} of {len(plan.tensors)} tensors are there already")
            task.advance(sum(tensor.source.nbytes for tensor in plan.tensors if tensor.name in done))
        for shard, header in enumerate(headers):
            if files.size(shard) == 0:
                files.append(shard, header)
        left = [tensor for tensor in plan.tensors if tensor.name not in done]
        for chunk, data in pipeline.run(_jobs(plan, left, files)):
            tensor = chunk.job.planned
            files.count(tensor.shard, data)
            task.advance(chunk.source_bytes)
            if chunk.is_last:
                files.append(tensor.shard, bytes(align(tensor.nbytes, plan.alignment) - tensor.nbytes))
                files.mark(tensor.shard, tensor.name)
        plan.source.inputs.check_unchanged()
        written = files.finish()
    task.done()
    return QuantResult(written, plan.types, len(done), pipeline.nonfinite)


def _jobs(plan: QuantPlan, tensors: Sequence[PlannedTensor], files: PartialFiles) -> Iterator[TensorJob]:
    """Open each tensor's reader when its turn comes, and its place behind what ``files`` hold at the start."""
    ends = [files.size(shard) for shard in range(plan.shards)]
    for tensor in tensors:
        importances = plan.imatrix.importances(tensor.source) if tensor.weighted and plan.imatrix else None
        begin = ends[tensor.shard]
        ends[tensor.shard] += align(tensor.nbytes, plan.alignment)

        def write(start: int, data: Bytes, shard: int = tensor.shard, begin: int = begin) -> None:
            files.put(shard, begin + start, data)

        yield TensorJob(tensor, plan.source.rows(tensor.source), importances, write)


def quantized_types(plan: QuantPlan) -> list[tuple[GGMLQuantizationType, bool]]:
    """Return the types that tensors are turned into, each with whether importances are used for it."""
    return sorted({(tensor.type, tensor.weighted) for tensor in plan.tensors if tensor.changed})


def _fingerprint(plan: QuantPlan, headers: Sequence[bytes], quantizer: Quantizer, *, allow_nonfinite: bool) -> str:
    """Hash everything that decides about the output's bytes; the headers hold names, shapes and types."""
    digest = hashlib.sha256()
    facts = {
        "source": plan.source.fingerprint,
        "imatrix": plan.imatrix.sha256 if plan.imatrix else None,
        "weighted": [tensor.name for tensor in plan.tensors if tensor.weighted],
        "library": quantizer.ggml.library_sha256 if any(tensor.changed for tensor in plan.tensors) else None,
        "kernels": quantizer.entry(quantized_types(plan)),
        "allow_nonfinite": allow_nonfinite,
    }
    digest.update(json.dumps(facts).encode())
    for header in headers:
        digest.update(header)
    return digest.hexdigest()
