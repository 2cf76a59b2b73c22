"""The scenarios of models that see and of models with a draft head, on tiny random ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.llama.answers import Completion
from strata_pack.report import Check
from strata_pack.smoke import drafting
from strata_pack.smoke.images import distance
from strata_pack.smoke.run import SmokeOptions, run_smoke
from strata_pack.smoke.scenario import scenarios
from strata_pack.weights.convert.convert import SafetensorsSource, convert_checkpoint
from tests.pack.test_projector import request
from tests.pack.tiny_gguf import write_tiny
from tests.seeing_model import write_seeing
from tests.tiny_models import MODELS, weights, write_model, write_weights

pytestmark = pytest.mark.xdist_group("smoke-images")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from strata_pack.pack.build import build_pack

    root = tmp_path_factory.mktemp("seeing")
    build_pack(request(write_seeing(root / "Tiny-VL"), root / "pack"))
    return root / "pack"


def played(pack: Path, *only: str) -> list[Check]:
    return list(run_smoke(pack, options=SmokeOptions(only=only, context=2048, threads=2)).checks)


def test_a_pack_that_sees_distinguishes_two_pictures_and_drafts_the_same_text(pack: Path) -> None:
    apart, again, head = played(pack, "images", "draft-head")
    assert (apart.status, again.status, head.status) == ("passed", "passed", "passed"), (apart, again, head)
    assert apart.data is not None
    assert apart.data["tokens of a picture"] > 10
    assert head.data is not None
    assert head.data["tokens per second with it"] > 0
    assert head.data["drafted"] > 0
    assert "tokens/s with it" in head.detail


def echoing(folder: Path, *, swapped: bool = False) -> Path:
    """Write a model whose layers add nothing and whose draft head repeats the trunk: it guesses every token right.

    ``swapped``: the two halves of its projection change places, as a wrong conversion would have them.
    """
    tiny = MODELS["qwen35"]
    found = dict(weights(tiny))
    for name in found:
        if name.endswith(("o_proj.weight", "down_proj.weight", "out_proj.weight")):
            found[name] = np.zeros_like(found[name])
    width = found["mtp.fc.weight"].shape[0]
    halves = [np.eye(width, dtype=np.float32), np.zeros((width, width), np.float32)]
    found["mtp.fc.weight"] = np.hstack(halves[::-1] if swapped else halves)
    found["mtp.norm.weight"] = found["model.norm.weight"]
    found["mtp.pre_fc_norm_embedding.weight"] = np.zeros(width, np.float32)
    write_model("qwen35", folder)
    write_weights(folder, found, "F32", 1)
    with SafetensorsSource.open(folder, "f32") as source:
        convert_checkpoint(source, folder.with_suffix(".gguf"))
    return folder.with_suffix(".gguf")


@pytest.mark.parametrize("swapped", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_right_draft_head_is_recognised_by_the_tokens_that_are_accepted(swapped: bool, tmp_path: Path) -> None:
    (head,) = played(echoing(tmp_path / "Echo", swapped=swapped), "draft-head")
    assert head.status == "passed", head
    assert head.data is not None
    assert (head.data["accepted"] == head.data["drafted"]) is not swapped
    assert ("none was right" in head.detail) is swapped


def test_runtime_check_counts_the_projector_and_refuses_another_models(pack: Path, tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["runtime", "check", "--model", str(pack), "--json"])
    assert told.exit_code == 0, told.output
    fit = json.loads(told.stdout)["fit"]
    (eyes,) = pack.glob("model/mmproj-*.gguf")
    assert fit["projector"] == eyes.stat().st_size
    assert fit["total"] > fit["weights"] + fit["kv_cache"] + fit["projector"]
    copy = tmp_path / "pack"
    shutil.copytree(pack, copy)
    (model,) = (path for path in copy.glob("model/*.gguf") if "mmproj" not in path.name)
    write_tiny(model)
    refused = CliRunner().invoke(app, ["runtime", "check", "--model", str(copy)])
    assert refused.exit_code == 2
    assert "projector of another model" in " ".join(refused.stderr.split())


def test_a_model_without_eyes_and_draft_head_skips_both(smollm2: Path) -> None:
    checks = played(smollm2, "images", "draft-head", "special-tokens")
    assert {check.id: check.detail for check in checks if check.status == "skipped"} == {
        "images": "there is no projector with this model",
        "draft-head": "the model has no draft head",
    }


def test_distance_of_probabilities_is_that_of_the_tokens_that_both_have() -> None:
    assert distance({1: -1.0, 2: -2.0}, {2: -2.5, 3: -1.0}) == 0.5
    assert distance({1: -1.0}, {2: -1.0}) == float("inf")


def answer(tokens: list[int], probabilities: list[dict[int, float]] | None = None, drafted: int = 0) -> Completion:
    entries = [
        {"id": token, "top_logprobs": [{"id": one, "logprob": value} for one, value in top.items()]}
        for token, top in zip(tokens, probabilities or [{}] * len(tokens), strict=True)
    ]
    timings = {"predicted_n": len(tokens), "predicted_ms": 10.0, "draft_n": drafted, "draft_n_accepted": 0}
    return Completion.from_dict({"tokens": tokens, "completion_probabilities": entries, "timings": timings})


@pytest.mark.parametrize(
    ("plain", "with_it", "status", "words"),
    [
        (answer([1, 2]), answer([1, 2], drafted=3), "passed", "the same 2 tokens"),
        (answer([1, 2]), answer([1, 2]), "failed", "drafted nothing"),
        (answer([1, 2], [{}, {2: -1.0, 3: -1.01}]), answer([1, 3], drafted=3), "passed", "tie, after 1"),
        (answer([1, 2], [{}, {2: -1.0, 3: -1.5}]), answer([1, 3], drafted=3), "failed", "differs after 1"),
        (answer([1, 2], [{}, {2: -1.0}]), answer([1, 3], drafted=3), "failed", "differs after 1"),
        (answer([1, 2]), answer([1], drafted=3), "failed", "differs after 1"),
    ],
    ids=["same", "nothing drafted", "tie", "another token", "an unlikely token", "shorter"],
)
def test_texts_are_the_same_or_part_at_a_tie(plain: Any, with_it: Any, status: str, words: str) -> None:
    scenario = next(one for one in scenarios() if one.id == "draft-head")
    check = drafting._check(scenario, plain, with_it)
    assert check.status == status
    assert words in check.detail
