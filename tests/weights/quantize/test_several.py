"""Several presets from one reading of the source: each output is what it would be alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from strata_pack.errors import WrongUse
from strata_pack.files import sha256_file
from strata_pack.progress import Silent, SilentTask
from strata_pack.weights.quantize.command import QuantizeRequest, model_stem, quantize_file, quantize_files
from strata_pack.weights.quantize.journal import PartialFiles
from strata_pack.weights.quantize.plan import plan_quantization
from strata_pack.weights.quantize.recipes import make_recipe
from strata_pack.weights.quantize.run import Output, run_plans
from strata_pack.weights.tensor_source import GgufSource, RowReader, SourceTensor
from tests.weights.quantize.models import DENSE, MOE, write_imatrix, write_model

PRESETS = ("Q8_0", "Q6_K", "Q4_K_M", "F16")
RECIPES = [make_recipe(preset) for preset in PRESETS]
SHAPE = replace(DENSE, layers=3)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("several") / "Model-7B-F16.gguf", SHAPE)


@pytest.fixture(scope="module")
def alone(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("alone")
    return {
        recipe.label: quantize_file(QuantizeRequest(str(source), folder / f"{recipe.label}.gguf", recipe))
        .files[0]
        .sha256
        for recipe in RECIPES
    }


def request(source: Path, folder: Path) -> QuantizeRequest:
    return QuantizeRequest(str(source), folder, RECIPES[0])


def hashes(folder: Path) -> dict[str, str]:
    return {path.stem.removeprefix("Model-7B-"): sha256_file(path) for path in folder.iterdir()}


def test_each_output_is_what_it_would_be_alone(source: Path, alone: dict[str, str], tmp_path: Path) -> None:
    results = quantize_files(request(source, tmp_path / "new"), RECIPES)
    assert hashes(tmp_path / "new") == alone
    assert [result.files[0].sha256 for result in results] == [alone[preset] for preset in PRESETS]


def test_experts_with_importances_are_what_they_would_be_alone(tmp_path: Path) -> None:
    shape = replace(MOE, layers=2)
    model = write_model(tmp_path / "moe.gguf", shape)
    imatrix = write_imatrix(tmp_path / "imatrix.gguf", shape)
    recipes = [make_recipe(preset) for preset in ("IQ4_XS", "Q4_K_S", "F16")]
    asked = QuantizeRequest(str(model), tmp_path / "out", recipes[0], imatrix=imatrix)
    together = [result.files[0].sha256 for result in quantize_files(asked, recipes)]
    for recipe, found in zip(recipes, together, strict=True):
        single = replace(asked, dest=tmp_path / f"{recipe.label}.gguf", recipe=recipe)
        assert quantize_file(single).files[0].sha256 == found


def test_every_row_is_read_once(source: Path, tmp_path: Path) -> None:
    rows: Counter[tuple[str, int]] = Counter()

    class Counting(GgufSource):
        def rows(self, tensor: SourceTensor) -> RowReader:
            inner = super().rows(tensor)

            def read(first: int, count: int, out: np.ndarray) -> None:  # type: ignore[type-arg]
                rows.update((tensor.name, row) for row in range(first, first + count))
                inner(first, count, out)

            return read

    with Counting(source) as opened:
        plans = [plan_quantization(opened, preset) for preset in PRESETS]
        run_plans([Output(plan, tmp_path / f"{plan.recipe.label}.gguf") for plan in plans])
        assert set(rows.values()) == {1}
        assert len(rows) == sum(tensor.rows for tensor in opened.tensors)


class Stop(Silent):
    """Interrupts the run after some chunks."""

    def __init__(self, chunks: int) -> None:
        self.left = chunks

    def task(self, *_: object, **__: object) -> SilentTask:  # type: ignore[override]
        stop = self

        class Task(SilentTask):
            def advance(self, *_: object) -> None:
                stop.left -= 1
                if stop.left == 0:
                    raise KeyboardInterrupt

        return Task()


@pytest.mark.parametrize("chunks", [2, 9, 20])
def test_a_stopped_run_goes_on_in_every_output(
    chunks: int, source: Path, alone: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        quantize_files(request(source, tmp_path), RECIPES, Stop(chunks))
    assert not list(tmp_path.glob("[!.]*"))
    results = quantize_files(request(source, tmp_path), RECIPES)
    assert hashes(tmp_path) == alone
    assert all(result.resumed_tensors > 0 for result in results) == (chunks > 2)


def test_a_run_stopped_after_its_first_output_goes_on(
    source: Path, alone: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = PartialFiles.finish, []

    def finish(self: PartialFiles) -> object:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self)

    monkeypatch.setattr(PartialFiles, "finish", finish)
    with pytest.raises(KeyboardInterrupt):
        quantize_files(request(source, tmp_path), RECIPES)
    assert [path.name for path in tmp_path.glob("[!.]*")] == [f"Model-7B-{PRESETS[0]}.gguf"]
    monkeypatch.undo()
    results = quantize_files(request(source, tmp_path), RECIPES)
    assert hashes(tmp_path) == alone
    assert all(len(result.tensor_types) == result.resumed_tensors for result in results)


def test_outputs_that_keep_floats_and_outputs_in_blocks_each_get_their_own_nonfinite(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf", replace(SHAPE, layers=1), spoil={"blk.0.ffn_up.weight": np.inf})
    recipes = [make_recipe(preset) for preset in ("COPY", "Q4_K_S", "BF16")]
    asked = QuantizeRequest(str(model), tmp_path / "out", recipes[0], allow_nonfinite=True)
    results = quantize_files(asked, recipes)
    for recipe, result in zip(recipes, results, strict=True):
        single = quantize_file(replace(asked, dest=tmp_path / f"{recipe.label}.gguf", recipe=recipe))
        assert (result.files[0].sha256, result.nonfinite) == (single.files[0].sha256, single.nonfinite)


def test_a_preset_named_twice_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="named twice"):
        quantize_files(request(source, tmp_path), [RECIPES[0], RECIPES[0]])


@pytest.mark.parametrize("name", ["out.gguf", "file"])
def test_several_presets_need_a_folder(name: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WrongUse, match="need a folder"):
        quantize_files(request(source, tmp_path / name), RECIPES)


def test_an_output_that_is_there_already_is_not_replaced(source: Path, tmp_path: Path) -> None:
    (tmp_path / "Model-7B-Q6_K.gguf").write_bytes(b"mine")
    with pytest.raises(WrongUse, match="exists already"):
        quantize_files(request(source, tmp_path), RECIPES)
    assert (tmp_path / "Model-7B-Q6_K.gguf").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("qwen3-bf16.gguf", "qwen3"),
        ("Model.F16.gguf", "Model"),
        ("Model-F32-00001-of-00003.gguf", "Model"),
        ("Qwen3-0.6B", "Qwen3-0.6B"),
        ("f16.gguf", "f16"),
    ],
)
def test_outputs_are_called_after_the_source(name: str, stem: str) -> None:
    assert model_stem(f"folder/{name}") == stem
