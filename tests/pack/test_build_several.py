"""Several packs from one reading of their source: each is the pack that it would be alone."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.errors import WrongUse
from strata_pack.pack import build_dir, model_files, model_source
from strata_pack.pack.build import build_pack, build_packs
from strata_pack.pack.request import BuildRequest, requests_by_recipe
from strata_pack.pack.verification import verify
from strata_pack.weights.quantize.recipes import make_recipe
from strata_pack.weights.tensor_source import GgufSource
from tests.hub_server import serve
from tests.pack.test_rebuild_command import write_importances
from tests.pack.tiny_gguf import write_tiny
from tests.pack.tiny_pack import hashes
from tests.tiny_models import write_model

PRESETS = ("Q8_0", "Q4_0", "F16")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "Tiny.F32.gguf")


@pytest.fixture
def requests(tmp_path: Path, source: Path) -> list[BuildRequest]:
    """Three packs; one of them has importances, one is a bare GGUF."""
    base = BuildRequest(str(source), tmp_path / "packs", template="keep")
    first, second, third = requests_by_recipe(base, [make_recipe(name) for name in PRESETS])
    importances = write_importances(tmp_path / "imatrix.gguf")
    return [first, replace(second, imatrix=importances), replace(third, layout="gguf")]


def alone(request: BuildRequest, folder: Path) -> dict[str, str]:
    return hashes(build_pack(replace(request, out=folder / request.out.name)).path)


def test_each_pack_has_the_bytes_of_its_single_build(requests: list[BuildRequest], tmp_path: Path) -> None:
    results = build_packs(requests)
    assert [result.path for result in results] == [request.out for request in requests]
    assert [hashes(result.path) for result in results] == [alone(one, tmp_path / "alone") for one in requests]


def test_the_packs_are_called_after_the_source_and_their_preset(requests: list[BuildRequest]) -> None:
    build_packs(requests)
    assert sorted(path.name for path in requests[0].out.parent.iterdir()) == ["Tiny-F16", "Tiny-Q4_0", "Tiny-Q8_0"]


def test_every_tensor_is_read_once(requests: list[BuildRequest], monkeypatch: pytest.MonkeyPatch) -> None:
    opened: Counter[str] = Counter()
    rows = GgufSource.rows

    def counted(self: GgufSource, tensor: Any) -> Any:
        opened[tensor.name] += 1
        return rows(self, tensor)

    monkeypatch.setattr(GgufSource, "rows", counted)
    build_packs(requests)
    assert set(opened.values()) == {1}


def test_the_source_is_hashed_once(requests: list[BuildRequest], source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []
    sha256_file = model_source.sha256_file
    monkeypatch.setattr(model_source, "sha256_file", lambda path: (hashed.append(path), sha256_file(path))[1])
    build_packs(requests)
    assert hashed == [source]


def test_a_pack_that_is_there_is_not_built_again(requests: list[BuildRequest], monkeypatch: pytest.MonkeyPatch) -> None:
    build_pack(requests[0])
    written: list[str] = []
    run_plans = model_files.run_plans

    def noted(outputs: Any, **options: Any) -> Any:
        written.extend(output.plan.recipe.label for output in outputs)
        return run_plans(outputs, **options)

    monkeypatch.setattr(model_files, "run_plans", noted)
    assert [result.resumed for result in build_packs(requests)] == [True, False, False]
    assert written == ["Q4_0", "F16"]


def test_stopped_between_two_installations_the_next_build_goes_on_with_the_rest(
    requests: list[BuildRequest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, installed = build_dir.put, []

    def once(new: Path, target: Path) -> None:
        if installed:
            raise KeyboardInterrupt
        installed.append(target)
        put(new, target)

    with monkeypatch.context() as stopped:
        stopped.setattr(build_dir, "put", once)
        with pytest.raises(KeyboardInterrupt):
            build_packs(requests)
    monkeypatch.setattr(model_files, "run_plans", lambda *_, **__: pytest.fail("it was quantized again"))
    build_packs(requests)
    monkeypatch.undo()
    assert [hashes(one.out) for one in requests] == [alone(one, tmp_path / "alone") for one in requests]
    assert len(list(requests[0].out.parent.iterdir())) == len(requests)


def test_one_that_cannot_be_built_leaves_all_unbuilt(requests: list[BuildRequest]) -> None:
    requests[1].out.mkdir(parents=True)
    (requests[1].out / "mine.txt").write_text("mine")
    with pytest.raises(WrongUse, match="other files in it"):
        build_packs(requests)
    assert [path.name for path in requests[0].out.parent.iterdir()] == [requests[1].out.name]


def test_packs_of_a_repository_share_what_was_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model("qwen3", tmp_path / "model")
    with serve({"org/Tiny": {path.name: path.read_bytes() for path in folder.iterdir()}}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        base = BuildRequest("hf://org/Tiny", tmp_path / "packs", template="keep")
        build_packs(requests_by_recipe(base, [make_recipe("Q8_0"), make_recipe("F16")]))
        sent = sum(hit.sent for hit in hub.hits if hit.path.endswith(".safetensors"))
    assert sent < 2 * sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert sorted(path.name for path in (tmp_path / "packs").iterdir()) == ["Tiny-F16", "Tiny-Q8_0"]


def test_packs_with_a_tower_get_the_same_projector_as_alone(tmp_path: Path) -> None:
    folder = write_model("qwen35-vision", tmp_path / "Tiny-VL")
    base = BuildRequest(str(folder), tmp_path / "packs", template="keep")
    asked = requests_by_recipe(base, [make_recipe("Q8_0"), make_recipe("F16")])
    built = [hashes(result.path) for result in build_packs(asked)]
    assert built == [alone(one, tmp_path / "alone") for one in asked]
    assert all(any("mmproj" in name for name in pack) for pack in built)


def test_a_template_that_all_packs_get_is_proved_once(
    requests: list[BuildRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    proved: list[str] = []
    monkeypatch.setattr("strata_pack.pack.build_plan.check_template", lambda chosen, _: proved.append(chosen.text))
    build_packs(requests)
    assert len(proved) == 1


@pytest.mark.parametrize("change", [{"mtp": False}, {"keep_split": True}, {"threads": 7}, {"source": "other"}])
def test_packs_of_different_readings_are_a_programming_error(
    requests: list[BuildRequest], change: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="cannot share one reading"):
        build_packs([requests[0], replace(requests[1], **change)])


def test_two_packs_in_one_place_are_refused(requests: list[BuildRequest]) -> None:
    with pytest.raises(WrongUse, match="given for two outputs"):
        build_packs([requests[0], replace(requests[1], out=requests[0].out)])


def test_a_pack_inside_another_is_refused(requests: list[BuildRequest]) -> None:
    with pytest.raises(WrongUse, match="another pack"):
        build_packs([requests[0], replace(requests[1], out=requests[0].out / "inner")])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--quant", "Q8_0", "--quant", "q8_0"], "Q8_0 is named twice"),
        (["--quant", "Q8_0", "--quant", "F16", "--name", "mine"], "names one model"),
    ],
)
def test_what_cannot_be_said_of_several_packs_is_wrong_use(
    source: Path, tmp_path: Path, options: list[str], sentence: str
) -> None:
    run = CliRunner().invoke(app, ["build", str(source), "--out", str(tmp_path / "packs"), *options])
    assert run.exit_code == 2
    assert sentence in " ".join(run.stderr.split())


def test_a_pack_is_no_folder_for_several(requests: list[BuildRequest]) -> None:
    pack = build_pack(requests[0]).path
    with pytest.raises(WrongUse, match="several packs need a common folder"):
        requests_by_recipe(replace(requests[0], out=pack), [make_recipe("Q8_0"), make_recipe("F16")])


def test_the_command_builds_all_and_names_each(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "packs"
    options = ["--quant", "Q8_0", "--quant", "F16", "--template", "keep", "--out", str(out)]
    run = CliRunner().invoke(app, ["build", str(source), *options, "--json"])
    answer = json.loads(run.stdout)
    assert [one["pack"] for one in answer["packs"]] == [str(out / "Tiny-Q8_0"), str(out / "Tiny-F16")]
    assert all(verify(path).ok for path in out.iterdir())


def test_the_dry_run_shows_every_plan_and_writes_nothing(source: Path, tmp_path: Path) -> None:
    options = ["--quant", "Q8_0", "--quant", "F16", "--template", "keep", "--out", str(tmp_path / "packs"), "--dry-run"]
    run = CliRunner().invoke(app, ["build", str(source), *options, "--json"])
    assert [plan["recipe"] for plan in json.loads(run.stdout)["plans"]] == ["Q8_0", "F16"]
    assert not (tmp_path / "packs").exists()
