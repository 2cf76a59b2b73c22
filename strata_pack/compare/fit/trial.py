"""Measures mixes of types on the model and returns the one with the least divergence.

Costs of errors are estimates that add up only to second order. So the mix of the least estimated cost competes with
llama-quantize's presets of the same size, each written to a file and evaluated over the same short texts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from strata_pack.compare.fit.choose import Option, filled
from strata_pack.compare.fit.planner import Planner
from strata_pack.compare.fit.sensitivity import divergence, keep_logits
from strata_pack.compare.texts import Text
from strata_pack.errors import WrongUse
from strata_pack.files import dump_json, read_state, write_atomic
from strata_pack.llama.ggml_types import GGMLQuantizationType as Q
from strata_pack.progress import Progress
from strata_pack.weights.quantize.imatrix import Imatrix
from strata_pack.weights.quantize.plan import plan_quantization
from strata_pack.weights.quantize.presets import PRESETS
from strata_pack.weights.quantize.recipes import read_recipe
from strata_pack.weights.quantize.run import run_plan
from strata_pack.weights.tensor_source import TensorSource

Mix = Mapping[str, Option[Q]]

CONTEXT = 512
"""Tokens of the evaluated window of each text; presets can be close rivals."""
RIVALS = 2
"""Number of presets that are tried: the largest that fit."""


def preset_mixes(
    source: TensorSource, options: Mapping[str, Sequence[Option[Q]]], budget: int, imatrix: Imatrix | None
) -> list[Mix]:
    """Return the mixes of the largest presets within ``budget`` bytes, the rest of it spent on the best steps."""
    found: dict[int, Mix] = {}
    for name, preset in PRESETS.items():
        if preset.copy:
            continue
        try:
            plan = plan_quantization(source, name, imatrix, allow_requantize=True)
        except WrongUse:  # it needs an imatrix
            continue
        types = {tensor.name: tensor.type for tensor in plan.tensors}
        mix = {
            tensor: option for tensor, some in options.items() for option in some if option.type is types.get(tensor)
        }
        size = sum(option.nbytes for option in mix.values())
        if len(mix) == len(options) and size <= budget:
            found.setdefault(size, filled(mix, options, budget - size))
    return [found[size] for size in sorted(found, reverse=True)[:RIVALS]]


def least_divergent(
    planner: Planner,
    mixes: Sequence[tuple[Mix, str]],
    over: Sequence[Text],
    *,
    cache: Path,
    threads: int,
    progress: Progress,
) -> Mix:
    """Return the mix whose file diverges least from the source of ``planner``; each comes with the text of its recipe.

    ``cache``: a file with the divergences of earlier trials, by recipe. Raises as ``open_logits``.
    """
    known = _read(cache)
    task = progress.task("trials of mixes", len(mixes), "mixes")
    with tempfile.TemporaryDirectory(prefix="strata-fit-") as scratch:
        folder = Path(scratch)
        if any(recipe not in known for _, recipe in mixes):
            base = folder / "base.gguf"
            run_plan(planner.trial("F16"), base, threads=threads)
            kept = keep_logits(base, over, folder, threads, CONTEXT)
            base.unlink()
        for _, recipe in mixes:
            if recipe not in known:
                place, file = folder / "mix.toml", folder / "mix.gguf"
                place.write_text(recipe, encoding="utf-8")
                run_plan(planner.trial(read_recipe(place)), file, threads=threads)
                known[recipe] = divergence(file, kept, threads, CONTEXT)
                file.unlink()
                write_atomic(cache, dump_json(known))
            task.advance(1)
    task.done()
    return min(mixes, key=lambda one: known[one[1]])[0]


def _read(cache: Path) -> dict[str, float]:
    try:
        return {recipe: float(seen) for recipe, seen in read_state(cache).items()}
    except (ValueError, TypeError):
        return {}
