"""Shapes and presets of the tests of whole files, and one call that quantizes a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from strata_pack.weights.quantize.imatrix import read_imatrix
from strata_pack.weights.quantize.presets import PRESETS
from strata_pack.weights.quantize.recipes import Recipe
from strata_pack.weights.quantize.run import (
    QuantResult,
    plan_quantization,
    run_plan,
)
from strata_pack.weights.tensor_source import GgufSource
from tests.weights.quantize.models import DENSE, EIGHT, MOE, ODD

SMALL = replace(DENSE, layers=2, ffn=256, vocab=64)
SHAPES = {
    "dense": SMALL,
    "moe": replace(MOE, layers=1, vocab=32),
    "eight": replace(EIGHT, layers=1, vocab=32),
    "odd": replace(ODD, layers=1, vocab=96),
}
LOW = ("Q2_K_S", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "IQ3_XS")
YOUNGER = "Q2_0"
"""A preset that the oracle's llama.cpp does not know yet."""
UNWEIGHTED = [name for name in PRESETS if name not in LOW and name != YOUNGER]


def quantize(source: Path, out: Path, recipe: Recipe | str, imatrix: Path | None = None, **options: Any) -> QuantResult:
    importances = None if imatrix is None else read_imatrix(imatrix)
    runs = {key: options.pop(key) for key in ("threads", "metadata_overrides", "allow_nonfinite") if key in options}
    with GgufSource(source) as opened:
        return run_plan(plan_quantization(opened, recipe, importances, **options), out, **runs)
