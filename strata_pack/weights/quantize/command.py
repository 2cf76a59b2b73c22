"""From what a user names (a path, a preset, a few flags) to a plan and a quantized file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from strata_pack.errors import WrongUse
from strata_pack.llama.quantizer import KernelChoice
from strata_pack.outputs import check_file_output, check_outputs
from strata_pack.progress import Progress, Silent
from strata_pack.weights.local_weights import find_weights, open_weights
from strata_pack.weights.partial_file import partial_path
from strata_pack.weights.preflight import Stage, check_disk
from strata_pack.weights.quantize.edits import NO_EDITS, EditedSource, Edits, edit_imatrix
from strata_pack.weights.quantize.imatrix import read_imatrix
from strata_pack.weights.quantize.plan import QuantPlan, plan_quantization
from strata_pack.weights.quantize.recipes import Recipe
from strata_pack.weights.quantize.run import QuantResult, output_paths, output_sizes, run_plan
from strata_pack.weights.source import LocalFolder, LocalGguf, parse_source
from strata_pack.weights.tensor_source import GgufSource, TensorSource


@dataclass(frozen=True)
class QuantizeRequest:
    """What to quantize and how. ``threads`` of ``None`` means all cores; ``dest`` may be ``None`` for a plan only.

    ``split_bytes`` is the most that the tensors of one output file may take.
    """

    source: str
    dest: Path | None
    recipe: Recipe
    imatrix: Path | None = None
    keep_split: bool = False
    allow_requantize: bool = False
    allow_nonfinite: bool = False
    force: bool = False
    threads: int | None = None
    kernels: KernelChoice = "auto"
    edits: Edits = NO_EDITS
    split_bytes: int | None = None


@contextmanager
def open_tensors(text: str) -> Iterator[TensorSource]:
    """Open the model that ``text`` names: a GGUF, a folder with one, or a folder with safetensors.

    Raises ``WrongUse`` for a model on the Hub, ``BadInput`` for a folder without weights or with several models.
    """
    named = parse_source(text)
    if isinstance(named, LocalGguf):
        with GgufSource(named.path) as source:
            yield source
        return
    if not isinstance(named, LocalFolder):
        raise WrongUse(
            "quantize reads local files", where=text, remedy="fetch it first, or do all in one with strata-pack build"
        )
    with open_weights(named.path, find_weights(named.path)) as opened:
        yield opened


@contextmanager
def open_plan(request: QuantizeRequest) -> Iterator[QuantPlan]:
    """Open the source and yield the checked plan, valid inside the block; raises as ``plan_quantization`` does."""
    importances = None if request.imatrix is None else read_imatrix(request.imatrix)
    with open_tensors(request.source) as opened:
        source = EditedSource(opened, request.edits)
        plan = plan_quantization(
            source,
            request.recipe,
            None if importances is None else edit_imatrix(importances, source, request.edits),
            allow_requantize=request.allow_requantize,
            keep_split=request.keep_split,
            split_bytes=request.split_bytes,
        )
        yield replace(plan, closing=source.closing)


def quantize_file(request: QuantizeRequest, progress: Progress | None = None) -> QuantResult:
    """Quantize as ``request`` says. ``WrongUse`` when there is no destination or it is there already.

    The disk space is checked before the first byte; what an interrupted run has written counts.
    """
    if request.dest is None:
        raise WrongUse("there is no FILE to write", remedy="name one, or look at the plan with --dry-run")
    if request.dest.suffix != ".gguf":
        raise WrongUse("the name of a GGUF file ends in .gguf", where=request.dest)
    with open_plan(request) as plan:
        paths = output_paths(plan, request.dest)
        partial = [partial_path(path) for path in paths]
        check_outputs([*paths, *partial], [*plan.source.inputs.paths, request.imatrix, request.recipe.path])
        for path in paths:
            check_file_output(path, force=request.force)
        written = sum(path.stat().st_size for path in partial if path.is_file())
        needed = max(0, sum(output_sizes(plan)) - written)
        check_disk([Stage("quantized model", request.dest.parent, needed)])
        return run_plan(
            plan,
            request.dest,
            progress=progress or Silent(),
            threads=request.threads,
            allow_nonfinite=request.allow_nonfinite,
            kernels=request.kernels,
        )
