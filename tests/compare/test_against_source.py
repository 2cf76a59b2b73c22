"""Damage to single weights is found by comparing every tensor with its source's, and no good pack is blamed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q

from strata_pack.compare.against_source import TensorComparison, compare_tensors
from strata_pack.compare.proof import comparer, predictions_check
from strata_pack.files import dump_json
from strata_pack.llama.ggml import BLOCK_TYPES, TABLE_TYPES
from strata_pack.pack.layout import Pack
from strata_pack.progress import Silent
from strata_pack.weights.convert.convert import SafetensorsSource, convert_checkpoint
from tests.pack.tiny_gguf import STOCK, metadata, tensors, write_file
from tests.pack.tiny_pack import write_pack
from tests.smoke.tiny import write_tiny_model
from tests.tiny_models import write_model

Weights = dict[str, np.ndarray]
WIDTH = 256
KEY, QUERY = "blk.0.attn_k.weight", "blk.0.attn_q.weight"


def pack_of(folder: Path, model: Path, **recipe: object) -> Pack:
    """Return a pack of the given model."""
    root = write_pack(folder)
    manifest = json.loads((root / "manifest.json").read_bytes())
    model.replace(root / manifest["model"]["files"][0])
    manifest["recipe"] |= recipe
    (root / "manifest.json").write_bytes(dump_json(manifest))
    return Pack.open(root)


def weights(seed: int = 0) -> Weights:
    return tensors(seed, WIDTH, 0.1)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "f32.gguf"
    write_file(path, metadata(STOCK, WIDTH), weights())
    return path


def stored(folder: Path, changed: Weights, type: Q = Q.Q4_K, **recipe: object) -> Pack:
    path = folder / "model.gguf"
    write_file(path, metadata(STOCK, WIDTH), changed, type)
    return pack_of(folder / "pack", path, **recipe)


def compared(pack: Pack, source: Path) -> TensorComparison:
    found = compare_tensors(pack, source, Silent())
    assert found is not None
    return found


def permuted(found: Weights) -> None:
    found[KEY] = found[KEY][np.random.default_rng(1).permutation(WIDTH)]


def two_rows_swapped(found: Weights) -> None:
    found[KEY][[3, 90]] = found[KEY][[90, 3]]


def row_times_100(found: Weights) -> None:
    found[KEY][17] *= 100


def block_of_other_sign(found: Weights) -> None:
    found[KEY][17, :] *= -1


def norm_changed(found: Weights) -> None:
    found["output_norm.weight"] *= 1.01


DAMAGE: list[tuple[Callable[[Weights], None], str, str]] = [
    (permuted, KEY, "differs from the source's by 14"),
    (two_rows_swapped, KEY, "differs from the source's in row "),
    (row_times_100, KEY, "differs from the source's in row 17 by 9,9"),
    (block_of_other_sign, KEY, "differs from the source's in row 17 by 200%"),
    (norm_changed, "output_norm.weight", "differs from the source's by 1.0% (0.2% is the limit)"),
]


@pytest.mark.parametrize(("damage", "tensor", "problem"), DAMAGE, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("imatrix", [None, "0" * 64], ids=["plain", "imatrix"])
def test_damage_names_its_tensor(
    damage: Callable[[Weights], None], tensor: str, problem: str, imatrix: str | None, source: Path, tmp_path: Path
) -> None:
    changed = weights()
    damage(changed)
    faults = compared(stored(tmp_path, changed, imatrix_sha256=imatrix), source).faults
    assert [fault.tensor for fault in faults] == [tensor]
    assert faults[0].problem.startswith(problem)


def test_a_block_in_a_long_row_is_named(source: Path, tmp_path: Path) -> None:
    changed = weights()
    changed["blk.0.ffn_down.weight"][5, 64:96] *= -1
    (fault,) = compared(stored(tmp_path, changed, Q.Q8_0), source).faults
    assert fault.problem.startswith("differs from the source's in row 5, column 64 by 200%")


def test_swapped_tensors_name_each_other(source: Path, tmp_path: Path) -> None:
    changed = weights()
    changed[KEY], changed[QUERY] = changed[QUERY], changed[KEY]
    faults = compared(stored(tmp_path, changed), source).faults
    assert {fault.tensor: fault.problem.rpartition("; ")[2] for fault in faults} == {
        KEY: f"it is the source's {QUERY}",
        QUERY: f"it is the source's {KEY}",
    }


@pytest.mark.parametrize("type", [type for type in (*BLOCK_TYPES, Q.F16, Q.BF16) if type not in TABLE_TYPES])
def test_a_good_tensor_of_every_type_passes(type: Q, source: Path, tmp_path: Path) -> None:
    found = compared(stored(tmp_path, weights(), type), source)
    assert (found.compared, found.left_out, found.faults) == (len(weights()), (), ())


def test_a_pruned_layer_is_left_out_of_the_source_too(tmp_path: Path) -> None:
    other = {name.replace("blk.0", "blk.1"): value for name, value in weights(1).items() if "blk." in name}
    whole = {**metadata(STOCK, WIDTH), "llama.block_count": metadata(STOCK, WIDTH)["llama.block_count"].uint32(2)}
    write_file(tmp_path / "source.gguf", whole, weights() | other)
    kept = weights() | {name.replace("blk.1", "blk.0"): value for name, value in other.items()}
    pack = stored(tmp_path, kept, options={"prune_layers": [0]})
    assert compared(pack, tmp_path / "source.gguf").faults == ()


def test_a_checkpoint_is_compared_by_the_same_conversion(tmp_path: Path) -> None:
    folder = write_model("llama-tied", tmp_path / "llama")
    with SafetensorsSource.open(folder) as checkpoint:
        convert_checkpoint(checkpoint, tmp_path / "model.gguf")
    found = compared(pack_of(tmp_path / "pack", tmp_path / "model.gguf"), folder)
    assert (found.compared > 5, found.left_out, found.faults) == (True, (), ())


def test_another_pre_tokenizer_fails(tmp_path: Path) -> None:
    source = write_tiny_model(tmp_path / "source.gguf", chat_template=None)
    model = write_tiny_model(tmp_path / "model.gguf", chat_template=None, pre="chameleon")
    check = predictions_check(pack_of(tmp_path / "pack", model), source, Silent())
    assert check.status == "failed"
    assert "tokenizer.ggml.pre is chameleon, the source's qwen2" in check.detail


def test_other_predictions_fail(source: Path, tmp_path: Path) -> None:
    changed = weights() | {"output.weight": weights(1)["output.weight"] * 10}
    tensors, predictions = comparer(Silent())(stored(tmp_path, changed, Q.Q8_0).path, source)
    assert (tensors.status, predictions.status) == ("failed", "failed")
    assert predictions.data["kl_mean"] > predictions.data["limit"]


def test_a_good_pack_passes_both_checks(source: Path, tmp_path: Path) -> None:
    checks = comparer(Silent())(stored(tmp_path, weights(), Q.Q8_0).path, source)
    assert [check.status for check in checks] == ["passed", "passed"]


def test_a_build_that_changes_the_model_is_not_judged_by_its_predictions(source: Path, tmp_path: Path) -> None:
    pack = stored(tmp_path, weights(1), options={"override_kv": ["llama.rope.freq_base=float:1.0"]})
    assert predictions_check(pack, source, Silent()).status == "skipped"


def test_a_source_without_weights_is_no_fault_of_the_pack(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    checks = comparer(Silent())(stored(tmp_path, weights()).path, folder)
    assert [check.status for check in checks] == ["skipped", "skipped"]
