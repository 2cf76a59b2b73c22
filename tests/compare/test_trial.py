"""Mixes of types compete on the model: the least divergent one wins, presets among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Q

from strata_pack.compare.fit.budget import FitBudget
from strata_pack.compare.fit.choose import Option
from strata_pack.compare.fit.planner import FileShape, Planner
from strata_pack.compare.fit.search import recipe_text
from strata_pack.compare.fit.trial import RIVALS, Mix, least_divergent, preset_mixes
from strata_pack.compare.texts import texts
from strata_pack.progress import Silent
from strata_pack.weights.gguf.file import tensor_nbytes
from strata_pack.weights.quantize.roles import is_quantizable
from strata_pack.weights.tensor_source import GgufSource
from tests.compare.test_compare import write_wide

TYPES = (Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.Q8_0)


@pytest.fixture
def source(tmp_path: Path) -> GgufSource:
    return GgufSource(write_wide(tmp_path / "wide.gguf"))


def options_of(source: GgufSource) -> Mapping[str, Sequence[Option[Q]]]:
    return {
        tensor.name: [
            Option(type, tensor_nbytes(tensor.shape, type), 1.0 / (place + 1)) for place, type in enumerate(TYPES)
        ]
        for tensor in source.tensors
        if is_quantizable(tensor.name, tensor.shape)
    }


def planner(source: GgufSource) -> Planner:
    return Planner(source, None, FileShape())


def uniform(source: GgufSource, type: Q) -> tuple[Mix, str]:
    mix = {name: next(one for one in some if one.type is type) for name, some in options_of(source).items()}
    return mix, recipe_text(FitBudget("x", 1), dict.fromkeys(mix, type), 2)


def test_the_mix_with_the_least_measured_divergence_wins_whatever_its_estimate(
    source: GgufSource, tmp_path: Path
) -> None:
    coarse, fine = uniform(source, Q.Q2_K), uniform(source, Q.Q8_0)
    cache = tmp_path / "mixes.json"
    won = least_divergent(planner(source), [coarse, fine], texts(), cache=cache, threads=1, progress=Silent())
    assert won is fine[0]


def test_a_mix_is_tried_once(source: GgufSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixes = [uniform(source, Q.Q2_K), uniform(source, Q.Q8_0)]
    cache = tmp_path / "mixes.json"
    first = least_divergent(planner(source), mixes, texts(), cache=cache, threads=1, progress=Silent())
    monkeypatch.setattr("strata_pack.compare.fit.trial.run_plan", None)
    assert least_divergent(planner(source), mixes, texts(), cache=cache, threads=1, progress=Silent()) is first


def test_presets_that_fit_become_mixes_within_the_budget(source: GgufSource) -> None:
    options = options_of(source)
    budget = sum(option.nbytes for some in options.values() for option in some if option.type is Q.Q5_K)
    mixes = preset_mixes(source, options, budget, None)
    assert 0 < len(mixes) <= RIVALS
    assert all(sum(option.nbytes for option in mix.values()) <= budget for mix in mixes)


def test_presets_that_need_an_imatrix_are_no_rivals_without_one(source: GgufSource) -> None:
    options = options_of(source)
    budget = sum(option.nbytes for some in options.values() for option in some if option.type is Q.Q3_K)
    mixes = preset_mixes(source, options, budget, None)
    assert all(option.type is not Q.IQ2_XXS for mix in mixes for option in mix.values())
