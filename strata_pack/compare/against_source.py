"""Compares every tensor of a pack with its source's, and names those that are not its source's rounded to their type.

The source is a GGUF, a pack, or a checkpoint that this tool converts: the tensors are those of the same conversion, so
that rows which a converter reorders are in the same places. A layer that the build left out is left out here too.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from strata_pack.compare.deviation import Deviation, Stored, deviation
from strata_pack.compare.full import model_file
from strata_pack.compare.limits import DeviationLimits, deviation_limits
from strata_pack.llama.ggml import Ggml
from strata_pack.pack.layout import Pack
from strata_pack.pack.manifest import Manifest
from strata_pack.pack.paths import is_pack
from strata_pack.pack.request import BY_REFERENCE
from strata_pack.plural import counted
from strata_pack.progress import Progress
from strata_pack.weights.local_weights import find_weights, open_weights
from strata_pack.weights.quantize.edits import EditedSource, edits_from_options
from strata_pack.weights.quantize.rows import usable_cores
from strata_pack.weights.tensor_source import GgufSource, SourceTensor, TensorSource

SHOWN = 3
"""Number of tensors that a sentence names."""
FOCUSED = 2.0
"""Ratio of the error of a part to that of the whole from which on the part is named."""
TRIED = 8
"""Number of wrong tensors in whose place another wrong one is looked for."""


class OtherTensorDict(TypedDict):
    """A tensor that is not its source's, as JSON. Errors are relative; ``block`` is the largest one of a block."""

    tensor: str
    type: str
    whole: float
    row: float
    block: float
    problem: str


class TensorsDict(TypedDict):
    """The comparison of all tensors, as JSON: how many were compared, and the names of those that could not be."""

    compared: int
    left_out: list[str]
    faults: list[OtherTensorDict]


@dataclass(frozen=True)
class OtherTensor:
    """A tensor that is not its source's."""

    tensor: str
    type: str
    found: Deviation
    problem: str

    def __str__(self) -> str:
        return f"{self.tensor} ({self.type}) {self.problem}"

    def to_dict(self) -> OtherTensorDict:
        return {
            "tensor": self.tensor,
            "type": self.type,
            "whole": self.found.whole,
            "row": self.found.row,
            "block": self.found.block,
            "problem": self.problem,
        }


@dataclass(frozen=True)
class TensorComparison:
    """The tensors of a pack against its source's."""

    compared: int
    left_out: tuple[str, ...]
    faults: tuple[OtherTensor, ...]

    def to_dict(self) -> TensorsDict:
        return {
            "compared": self.compared,
            "left_out": list(self.left_out),
            "faults": [fault.to_dict() for fault in self.faults],
        }

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        if not self.faults:
            left = f"; {counted(len(self.left_out), 'tensor')} of other shapes or types left out" * bool(self.left_out)
            return f"{counted(self.compared, 'tensor')} compared{left}"
        more = f"; and {len(self.faults) - SHOWN} more" * (len(self.faults) > SHOWN)
        return "; ".join(map(str, self.faults[:SHOWN])) + more


def compare_tensors(pack: Pack, source: Path, progress: Progress) -> TensorComparison | None:
    """Compare every tensor of ``pack`` with that of ``source``, a few rows at a time, on all cores.

    Returns ``None`` if the tensors of ``source`` cannot be read as those of the pack: a checkpoint that llama.cpp's own
    converter converted. Raises ``BadInput`` for a source that is no model, or is damaged.
    """
    with ExitStack() as stack:
        theirs = stack.enter_context(_open_source(pack.manifest, source))
        if theirs is None:
            return None
        ours = stack.enter_context(GgufSource(pack.model_files[0]))
        theirs = _edited(ours, theirs, pack.manifest)
        pool = stack.enter_context(ThreadPoolExecutor(usable_cores(), "compare tensors"))
        weighed = pack.manifest["recipe"]["imatrix_sha256"] is not None
        return compare_sources(ours, theirs, weighed=weighed, pool=pool, progress=progress)


@contextmanager
def _open_source(manifest: Manifest, source: Path) -> Iterator[TensorSource | None]:
    if source.is_file() or is_pack(source):
        with GgufSource(model_file(source)) as file:
            yield file
    elif BY_REFERENCE in manifest.get("request", {}).get("parts", ""):
        yield None
    else:
        with open_weights(source, find_weights(source)) as tensors:
            yield tensors


def _edited(ours: TensorSource, theirs: TensorSource, manifest: Manifest) -> TensorSource:
    """Return ``theirs`` without the layers that the build left out, unless they are left out already."""
    edits = edits_from_options(manifest["recipe"]["options"])
    key = f"{manifest['model']['architecture']}.block_count"
    layers = [None if found is None else found.value for found in (ours.metadata.get(key), theirs.metadata.get(key))]
    return EditedSource(theirs, edits) if edits.pruned and layers[0] != layers[1] else theirs


def compare_sources(
    ours: TensorSource, theirs: TensorSource, *, weighed: bool, pool: ThreadPoolExecutor, progress: Progress
) -> TensorComparison:
    """Compare all tensors of two models of the same conversion; ``weighed``: importances were used."""
    sources = {tensor.name: tensor for tensor in theirs.tensors}
    pairs, left_out = list[tuple[SourceTensor, SourceTensor]](), list[str]()
    for tensor in ours.tensors:
        source = sources.get(tensor.name)
        if source is not None and _comparable(tensor, source):
            pairs.append((tensor, source))
        else:
            left_out.append(tensor.name)

    def compare(tensor: SourceTensor, source: SourceTensor) -> tuple[Deviation, str | None]:
        found = deviation(Stored(tensor, ours.rows(tensor)), Stored(source, theirs.rows(source)), pool)
        return found, problem_of(tensor, found, deviation_limits(tensor.type, source.type, weighed=weighed))

    task = progress.task("comparing tensors", sum(tensor.nbytes for tensor, _ in pairs))
    wrong: dict[SourceTensor, tuple[Deviation, str]] = {}
    for tensor, source in pairs:
        found, problem = compare(tensor, source)
        if problem is not None:
            wrong[tensor] = found, problem
        task.advance(tensor.nbytes)
    task.done()
    faults = []
    for tensor, (found, problem) in wrong.items():
        others = [sources[one.name] for one in list(wrong)[:TRIED] if one != tensor and one.shape == tensor.shape]
        owner = next((one.name for one in others if compare(tensor, one)[1] is None), None)
        named = problem if owner is None else f"{problem}; it is the source's {owner}"
        faults.append(OtherTensor(tensor.name, tensor.type.name, found, named))
    return TensorComparison(len(pairs), tuple(left_out), tuple(faults))


def _comparable(tensor: SourceTensor, source: SourceTensor) -> bool:
    ggml = Ggml.load()
    readable = ggml.can_dequantize(tensor.type) and ggml.can_dequantize(source.type)
    return readable and tensor.shape == source.shape and tensor.elements > 0


def problem_of(tensor: SourceTensor, found: Deviation, limits: DeviationLimits) -> str | None:
    """Return what is wrong with a tensor, where most of it is: in one block, in one row, or in all."""
    whole, row, block = found.whole > limits.whole, found.row > limits.row, found.block > limits.block
    if tensor.rows == 1:
        row = False
    if block and (found.block > FOCUSED * found.row or not (whole or row)):
        place, error, limit = f" in row {found.block_row}, column {found.column}", found.block, limits.block
    elif row and (found.row > FOCUSED * found.whole or not whole):
        place, error, limit = f" in row {found.worst_row}", found.row, limits.row
    elif whole:
        place, error, limit = "", found.whole, limits.whole
    else:
        return None
    return f"differs from the source's{place} by {_share(error)} ({_share(limit)} is the limit)"


def _share(error: float) -> str:
    return f"{error:,.1%}" if error < 0.1 else f"{error:,.0%}"
