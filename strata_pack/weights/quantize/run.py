"""Quantizes a ``TensorSource`` according to a plan to one GGUF file, or to one for each shard of the source.

    plan = plan_quantization(source, "Q4_K_M")
    result = run_plan(plan, Path("model-Q4_K_M.gguf"))

The bytes are those of llama.cpp's quantizer: the same functions quantize, the same rules choose the types, and header
and tensors come in the same order. Memory is bounded by a few chunks of rows for models of any size.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from strata_pack.errors import WrongUse
from strata_pack.llama.ggml import Floats
from strata_pack.llama.ggml_types import GGMLQuantizationType, GGUFValueType
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
from strata_pack.weights.quantize.rows import Pipeline, RowTarget, RowWriter, TensorJob, usable_cores

__all__ = [
    "Output",
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
    "run_plans",
]

_SHARD_STEM = re.compile(r"(.+?)(?:-\d{5}-of-\d{5})?\.gguf", re.DOTALL)
_VERSION_KEY, _FILE_TYPE_KEY = "general.quantization_version", "general.file_type"


class WrittenFileDict(TypedDict):
    """A ``WrittenFile`` as JSON."""

    path: str
    size: int
    sha256: str


class QuantResultDict(TypedDict):
    """A ``QuantResult`` as JSON."""

    files: list[WrittenFileDict]
    resumed_tensors: int
    nonfinite: dict[str, int]
    tensor_types: dict[str, str]


@dataclass(frozen=True)
class QuantResult:
    """The written model."""

    files: tuple[WrittenFile, ...]
    tensor_types: Mapping[str, str]
    """The type names by tensor, in the order of the files."""
    resumed_tensors: int = 0
    """Number of tensors that an interrupted run had finished."""
    nonfinite: Mapping[str, int] = field(default_factory=dict)
    """Number of NaN and infinite values allowed by ``allow_nonfinite``, by tensor."""

    @property
    def size(self) -> int:
        """Total bytes of all files."""
        return sum(file.size for file in self.files)

    def to_dict(self) -> QuantResultDict:
        """Return the result as JSON data."""
        return {
            "files": [{"path": str(file.path), "size": file.size, "sha256": file.sha256} for file in self.files],
            "resumed_tensors": self.resumed_tensors,
            "nonfinite": dict(self.nonfinite),
            "tensor_types": dict(self.tensor_types),
        }


def output_paths(plan: QuantPlan, out_path: Path) -> list[Path]:
    """Return the files that ``run_plan`` will write: ``out_path``, or its shards in llama.cpp's naming."""
    if plan.shards == 1:
        return [out_path]
    match = _SHARD_STEM.fullmatch(out_path.name)
    if match is None:
        raise WrongUse("the name of a GGUF file ends in .gguf", where=out_path)
    return [out_path.with_name(shard_name(match[1], index, plan.shards)) for index in range(plan.shards)]


def output_headers(plan: QuantPlan, metadata_overrides: Mapping[str, MetaValue | None]) -> list[bytes]:
    """Return the whole header of every output file.

    All keys of the source come first, then version and file type, then the overrides, as in llama.cpp (``None`` removes
    a key). A split model has its metadata in the first shard.
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
    """Return a tensor's shape without trailing dimensions of size 1 (except the first), as ggml counts dimensions."""
    shape = tensor.source.shape
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def output_sizes(plan: QuantPlan, metadata_overrides: Mapping[str, MetaValue | None] | None = None) -> list[int]:
    """Return the exact size in bytes of every file that ``run_plan`` will write."""
    sizes = [len(header) for header in output_headers(plan, metadata_overrides or {})]
    for tensor in plan.tensors:
        sizes[tensor.shard] += align(tensor.nbytes, plan.alignment)
    return sizes


def _split_keys(shard: int, plan: QuantPlan) -> dict[str, MetaValue]:
    no, count = MetaValue(GGUFValueType.UINT16, shard), MetaValue(GGUFValueType.UINT16, plan.shards)
    tensors = MetaValue(GGUFValueType.INT32, len(plan.tensors))
    if plan.split_by_size:
        # llama-gguf-split writes the count last, llama-quantize first.
        return {"split.no": no, "split.tensors.count": tensors, "split.count": count}
    return {"split.no": no, "split.count": count, "split.tensors.count": tensors}


@dataclass(frozen=True)
class Output:
    """One model to write: its plan, its path, and the overrides of its header.

    ``journal`` is the path of the journal of finished tensors, by default next to the output.
    """

    plan: QuantPlan
    path: Path
    metadata_overrides: Mapping[str, MetaValue | None] = field(default_factory=dict)
    journal: Path | None = None

    @property
    def journal_path(self) -> Path:
        first = output_paths(self.plan, self.path)[0]
        return self.journal or first.with_name(f".{first.name}.journal")


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
    """Write the model that ``plan`` describes to ``out_path``: ``run_plans`` with one output."""
    output = Output(plan, out_path, metadata_overrides or {}, journal)
    return run_plans([output], progress=progress, threads=threads, allow_nonfinite=allow_nonfinite, kernels=kernels)[0]


def run_plans(
    outputs: Sequence[Output],
    *,
    progress: Progress | None = None,
    threads: int | None = None,
    allow_nonfinite: bool = False,
    kernels: KernelChoice = "auto",
) -> list[QuantResult]:
    """Write several models from one reading of their source; each atomically replaces the file at its path.

    All plans must have the same source and tensor order, else ``ValueError``. Each output has the same bytes as if it
    were written alone.

    An interrupted run resumes after each output's last finished tensor when it is called again with the same source,
    plans and overrides. ``threads`` defaults to the cores this process may use; with ``kernels`` "ggml" only ggml
    quantizes. Raises ``BadInput`` for NaN and infinities unless ``allow_nonfinite`` (which keeps them in float
    tensors, and in block types turns NaN into 0 and infinities into 65504), ``EnvironmentFailure`` for a full disk,
    another run that writes the same file, or a kernel that does not write ggml's bytes.
    """
    progress = progress or Silent()
    quantizer = Quantizer.load(kernels)
    plans = [output.plan for output in outputs]
    if len({(id(plan.source), tuple(tensor.name for tensor in plan.tensors)) for plan in plans}) != 1:
        raise ValueError("the plans are not of one source with its tensors in one order")
    for note in _notes(plans, quantizer if kernels == "auto" else None):
        progress.note(note)
    source = plans[0].source
    task = progress.task(f"quantize to {', '.join(plan.recipe.label for plan in plans)}", total=plans[0].source_bytes)
    with ExitStack() as stack:
        writers = []
        for output in outputs:
            headers = output_headers(output.plan, output.metadata_overrides)
            fingerprint = _fingerprint(output.plan, headers, quantizer, allow_nonfinite=allow_nonfinite)
            paths = output_paths(output.plan, output.path)
            files = stack.enter_context(PartialFiles(paths, output.journal_path, fingerprint))
            writers.append(files)
            done = files.finished_tensors
            if done:
                progress.note(f"{output.path.name}: {len(done)} of {len(output.plan.tensors)} tensors already done")
            for shard, header in enumerate(headers):
                if files.size(shard) == 0:
                    files.append(shard, header)
        before = [len(files.finished_tensors) for files in writers]
        there = frozenset.intersection(*(files.finished_tensors for files in writers))
        task.advance(sum(tensor.source.nbytes for tensor in plans[0].tensors if tensor.name in there))
        pipeline = stack.enter_context(
            Pipeline(
                quantizer,
                threads or usable_cores(),
                outputs=len(outputs),
                allow_nonfinite=allow_nonfinite,
                where=source.label,
            )
        )
        for chunk, data in pipeline.run(_jobs(plans, writers)):
            task.advance(chunk.source_bytes)
            for number, written in data.items():
                tensor, files = chunk.job.targets[number].planned, writers[number]
                files.count(tensor.shard, written)
                if chunk.is_last:
                    files.append(tensor.shard, bytes(align(tensor.nbytes, plans[number].alignment) - tensor.nbytes))
                    files.mark(tensor.shard, tensor.name)
        source.inputs.check_unchanged()
        finished = [files.finish() for files in writers]
        for files in writers:
            files.forget()
    task.done()
    return [
        QuantResult(files, plan.types, count, nonfinite)
        for files, plan, count, nonfinite in zip(finished, plans, before, pipeline.nonfinite, strict=True)
    ]


def _notes(plans: Sequence[QuantPlan], quantizer: Quantizer | None) -> list[str]:
    """Return notes for the user before the run, each once."""
    notes = [note for note in map(requantize_note, plans) if note is not None]
    types = sorted({case for plan in plans for case in quantized_types(plan)})
    return list(dict.fromkeys([*notes, *(quantizer.notes(types) if quantizer is not None and types else [])]))


def _jobs(plans: Sequence[QuantPlan], writers: Sequence[PartialFiles]) -> Iterator[TensorJob]:
    """Open each tensor's reader when it is needed; positions start after the existing bytes of the files."""
    ends = [[files.size(shard) for shard in range(plan.shards)] for plan, files in zip(plans, writers, strict=True)]
    loaded: dict[int, Floats | None] = {}
    for position, first in enumerate(plans[0].tensors):
        loaded.clear()
        targets = {}
        for number, (plan, files) in enumerate(zip(plans, writers, strict=True)):
            tensor = plan.tensors[position]
            if tensor.name in files.finished_tensors:
                continue
            importances = None
            if tensor.weighted and plan.imatrix:
                if id(plan.imatrix) not in loaded:
                    loaded[id(plan.imatrix)] = plan.imatrix.importances(tensor.source)
                importances = loaded[id(plan.imatrix)]
            begin = ends[number][tensor.shard]
            ends[number][tensor.shard] += align(tensor.nbytes, plan.alignment)
            targets[number] = RowTarget(tensor, importances, _writer(files, tensor.shard, begin))
        if targets:
            yield TensorJob(first.source, plans[0].source.rows(first.source), targets)


def _writer(files: PartialFiles, shard: int, begin: int) -> RowWriter:
    return lambda start, data: files.put(shard, begin + start, data)


def quantized_types(plan: QuantPlan) -> list[tuple[GGMLQuantizationType, bool]]:
    """Return the types to which tensors are quantized, each with whether importances are used."""
    return sorted({(tensor.type, tensor.weighted) for tensor in plan.tensors if tensor.changed})


def _fingerprint(plan: QuantPlan, headers: Sequence[bytes], quantizer: Quantizer, *, allow_nonfinite: bool) -> str:
    """Return a hash of everything that determines the output's bytes; the headers have names, shapes and types."""
    digest = hashlib.sha256()
    facts = {
        "source": plan.source.fingerprint,
        "imatrix": plan.imatrix.sha256 if plan.imatrix else None,
        "weighted": [tensor.name for tensor in plan.tensors if tensor.weighted],
        "library": quantizer.ggml.library_stamp if any(tensor.changed for tensor in plan.tensors) else None,
        "kernels": quantizer.entry(quantized_types(plan)),
        "allow_nonfinite": allow_nonfinite,
    }
    digest.update(json.dumps(facts).encode())
    for header in headers:
        digest.update(header)
    return digest.hexdigest()
