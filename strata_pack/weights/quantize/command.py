"""Turns the user's arguments (a path, a preset, flags) into a plan and a quantized file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
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
from strata_pack.weights.quantize.run import Output, QuantResult, output_paths, output_sizes, run_plans
from strata_pack.weights.source import LocalFolder, LocalGguf, parse_source
from strata_pack.weights.tensor_source import GgufSource, TensorSource


@dataclass(frozen=True)
class QuantizeRequest:
    """A quantization request. ``threads`` ``None`` means all cores; ``dest`` may be ``None`` for a plan only.

    ``split_bytes`` is the maximum bytes of the tensors in one output file.
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
def open_tensors(text: str, *, mtp: bool = True) -> Iterator[TensorSource]:
    """Open the model ``text``: a GGUF, a folder with a GGUF, or a folder with safetensors.

    ``mtp``: see ``open_weights``.
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
    with open_weights(named.path, find_weights(named.path), mtp=mtp) as opened:
        yield opened


@contextmanager
def open_plans(request: QuantizeRequest, recipes: Sequence[Recipe]) -> Iterator[list[QuantPlan]]:
    """Open the source once and yield the checked plans, valid inside the block; raises as ``plan_quantization``.

    ``recipes`` replace the recipe of ``request``.
    """
    importances = None if request.imatrix is None else read_imatrix(request.imatrix)
    with open_tensors(request.source) as opened:
        source = EditedSource(opened, request.edits)
        edited = None if importances is None else edit_imatrix(importances, source, request.edits)
        plans = [
            plan_quantization(
                source,
                recipe,
                edited,
                allow_requantize=request.allow_requantize,
                keep_split=request.keep_split,
                split_bytes=request.split_bytes,
            )
            for recipe in recipes
        ]
        yield [replace(plan, closing=source.closing) for plan in plans]


@contextmanager
def open_plan(request: QuantizeRequest) -> Iterator[QuantPlan]:
    """Open the source and yield the checked plan of ``request``; see ``open_plans``."""
    with open_plans(request, [request.recipe]) as plans:
        yield plans[0]


def quantize_file(request: QuantizeRequest, progress: Progress | None = None) -> QuantResult:
    """Quantize by the recipe of ``request``: ``quantize_files`` with one recipe."""
    return quantize_files(request, [request.recipe], progress)[0]


def quantize_files(
    request: QuantizeRequest, recipes: Sequence[Recipe], progress: Progress | None = None
) -> list[QuantResult]:
    """Quantize to every recipe from one reading of the source.

    With one recipe ``request.dest`` is the file; with several it is a folder (created if missing), and the files are
    named after source and recipe. The disk space is checked first, less the bytes that an interrupted run has written.
    ``WrongUse`` without a destination, for one of the wrong kind or that exists already, and for two recipes with the
    same name.
    """
    targets = _targets(request, recipes)
    with open_plans(request, recipes) as plans:
        outputs = [Output(plan, dest) for plan, dest in zip(plans, targets, strict=True)]
        paths = _checked_paths(request, outputs)
        written = sum(path.stat().st_size for path in map(partial_path, paths) if path.is_file())
        needed = max(0, sum(sum(output_sizes(plan)) for plan in plans) - written)
        check_disk([Stage("quantized model", targets[0].parent, needed)])
        return run_plans(
            outputs,
            progress=progress or Silent(),
            threads=request.threads,
            allow_nonfinite=request.allow_nonfinite,
            kernels=request.kernels,
        )


def existing_outputs(request: QuantizeRequest, recipes: Sequence[Recipe]) -> list[Path]:
    """Return the files that ``quantize_files`` would replace; raises as it does before it writes."""
    targets = _targets(request, recipes)
    with open_plans(request, recipes) as plans:
        outputs = [Output(plan, dest) for plan, dest in zip(plans, targets, strict=True)]
        return [path for path in _checked_paths(request, outputs) if os.path.lexists(path)]


def model_stem(source: str) -> str:
    """Return the base name of outputs of ``source``: its name without suffix, shard number and float type."""
    name = Path(source).resolve().name
    name = re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", name)
    return re.sub(r"[-_.](f16|bf16|f32|fp16|fp32)$", "", name, flags=re.IGNORECASE)


def target_file(dest: Path | None) -> Path:
    """Return ``dest``; ``WrongUse`` unless it is given and its name is that of a GGUF."""
    if dest is None:
        raise WrongUse("no FILE to write is given", remedy="name one, or show the plan with --dry-run")
    if dest.suffix != ".gguf":
        raise WrongUse("the name of a GGUF file must end in .gguf", where=dest)
    return dest


def _targets(request: QuantizeRequest, recipes: Sequence[Recipe]) -> list[Path]:
    """Return the file of every recipe."""
    dest = request.dest
    if len(recipes) == 1:
        return [target_file(dest)]
    if dest is None:
        raise WrongUse("no folder to write to is given", remedy="name one, or show the plans with --dry-run")
    if dest.suffix == ".gguf" or (dest.exists() and not dest.is_dir()):
        raise WrongUse("several presets need a folder to write to, not a file", where=dest)
    labels = [recipe.label for recipe in recipes]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise WrongUse(f"{twice} is named twice", where="--quant", remedy="name each preset once")
    stem = model_stem(request.source)
    return [dest / f"{stem}-{label}.gguf" for label in labels]


def _checked_paths(request: QuantizeRequest, outputs: Sequence[Output]) -> list[Path]:
    """Return the files of ``outputs``; ``WrongUse`` for one that must not be written."""
    paths = [path for output in outputs for path in output_paths(output.plan, output.path)]
    plans = [output.plan for output in outputs]
    read = [*plans[0].source.inputs.paths, request.imatrix, *(plan.recipe.path for plan in plans)]
    check_outputs([*paths, *map(partial_path, paths)], read)
    for output in outputs:
        # If its journal exists, the file is one of several that an interrupted run has finished.
        for path in output_paths(output.plan, output.path):
            check_file_output(path, force=request.force or (len(outputs) > 1 and output.journal_path.is_file()))
    return paths
