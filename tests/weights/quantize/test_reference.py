"""Whole files have the bytes of the reference (llama-quantize), for every preset, flag and split."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q

from strata_pack.weights.gguf.file import GgufFile, MetaValue, open_shards
from strata_pack.weights.quantize.imatrix import read_imatrix
from strata_pack.weights.quantize.presets import PRESETS
from strata_pack.weights.quantize.recipes import make_recipe
from tests.weights.quantize.models import write_imatrix, write_model
from tests.weights.quantize.oracle import needs_oracle, reference
from tests.weights.quantize.whole_files import SHAPES, SMALL, UNWEIGHTED, YOUNGER, quantize


def oracle_parameters(preset: str) -> dict[str, Any]:
    return {"only_copy": True} if PRESETS[preset].copy else {"ftype": PRESETS[preset].file_type}


@needs_oracle()
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "every"),
    [("dense", 1), ("moe", 1), ("odd", 1), ("eight", 5), pytest.param("eight", 1, marks=pytest.mark.slow)],
)
def test_whole_files_are_the_references_for_all_presets(
    name: str, every: int, models: dict[str, Path], tmp_path: Path
) -> None:
    """Of ``eight`` every fifth preset: its rule for attention has tests of its own in ``test_presets``."""
    # Odd rows are no whole blocks of Q1_0: the reference stops there, ours keeps such a tensor as F16.
    presets = (
        [preset for preset in PRESETS if preset not in ("Q1_0", YOUNGER)] if name == "odd" else UNWEIGHTED[::every]
    )
    jobs = [(models[name], tmp_path / f"{preset}.ref.gguf", oracle_parameters(preset)) for preset in presets]
    reference(jobs)
    different = []
    for preset in presets:
        quantize(models[name], tmp_path / "ours.gguf", preset)
        if (tmp_path / "ours.gguf").read_bytes() != (tmp_path / f"{preset}.ref.gguf").read_bytes():
            different.append(preset)
    assert different == []


def compare_weighted(name: str, presets: list[str], source: Path, folder: Path) -> list[str]:
    imatrix = write_imatrix(folder / "imatrix.gguf", SHAPES[name], idle_expert=True)
    loaded = read_imatrix(imatrix)
    np.savez(folder / "imatrix.npz", **{key: entry.load() for key, entry in loaded.entries.items()})
    parameters = {"imatrix": str(folder / "imatrix.npz")}
    reference([(source, folder / f"{preset}.gguf", oracle_parameters(preset) | parameters) for preset in presets])
    different = []
    for preset in presets:
        quantize(source, folder / "ours.gguf", preset, imatrix)
        if (folder / "ours.gguf").read_bytes() != (folder / f"{preset}.gguf").read_bytes():
            different.append(preset)
    return different


@needs_oracle()
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["dense", "moe"])
def test_files_with_an_imatrix_are_the_references(name: str, models: dict[str, Path], tmp_path: Path) -> None:
    presets = ["Q4_0", "Q5_1", "Q2_K_S", "Q3_K_M", "Q4_K_M", "Q5_K_S", "Q6_K", "IQ4_XS", "IQ3_XS"]
    assert compare_weighted(name, presets, models[name], tmp_path) == []


@pytest.mark.slow
@needs_oracle()
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["dense", "moe", "eight"])
def test_files_of_all_presets_with_an_imatrix_are_the_references(
    name: str, models: dict[str, Path], tmp_path: Path
) -> None:
    presets = [name for name, preset in PRESETS.items() if preset.is_block and name not in ("IQ1_M", YOUNGER)]
    assert compare_weighted(name, presets, models[name], tmp_path) == []


@pytest.mark.slow
@needs_oracle()
@pytest.mark.timeout(600)
def test_iq1_m_differs_from_the_reference_only_in_the_rounding_of_some_blocks(dense: Path, tmp_path: Path) -> None:
    """The two wheels' compilers add up the errors of this type's search in another order."""
    compare_weighted("dense", ["IQ1_M"], dense, tmp_path)
    with GgufFile.open(tmp_path / "ours.gguf") as ours, GgufFile.open(tmp_path / "IQ1_M.gguf") as theirs:
        assert ours.tensors == theirs.tensors
        assert dict(ours.metadata) == dict(theirs.metadata)
        for info in ours.tensors:
            pair = [np.frombuffer(file.tensor_bytes(info), np.uint8) for file in (ours, theirs)]
            if info.type is not Q.IQ1_M:
                assert (pair[0] == pair[1]).all()
            else:
                blocks = (pair[0] != pair[1]).reshape(-1, 56).any(axis=1)
                assert blocks.mean() < 0.1


@needs_oracle()
@pytest.mark.timeout(600)
def test_a_real_quantized_model_is_requantized_to_the_references_bytes(smollm2: Path, tmp_path: Path) -> None:
    reference([(smollm2, tmp_path / "ref.gguf", {"ftype": 15, "allow_requantize": True, "nthread": 2})])
    result = quantize(smollm2, tmp_path / "ours.gguf", "Q4_K_M", allow_requantize=True)
    assert result.files[0].sha256 == hashlib.sha256((tmp_path / "ref.gguf").read_bytes()).hexdigest()


@pytest.mark.slow
@needs_oracle()
@pytest.mark.timeout(1200)
def test_a_real_model_is_the_references_for_all_presets(smollm2: Path, tmp_path: Path) -> None:
    different = []
    # Blocks of 128 (Q1_0) do not divide rows of 576: the reference gives up there.
    for preset in (name for name in UNWEIGHTED if name != "Q1_0"):
        parameters = oracle_parameters(preset) | {"allow_requantize": True, "nthread": 2}
        reference([(smollm2, tmp_path / "ref.gguf", parameters)])
        result = quantize(smollm2, tmp_path / "ours.gguf", preset, allow_requantize=True)
        if result.files[0].sha256 != hashlib.sha256((tmp_path / "ref.gguf").read_bytes()).hexdigest():
            different.append(preset)
    assert different == []


FLAGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pure": ({"pure": True}, {"pure": True}),
    "output type": ({"output": "Q5_K"}, {"output_tensor_type": int(Q.Q5_K)}),
    "embedding type": ({"embedding": "Q8_0"}, {"token_embedding_type": int(Q.Q8_0)}),
    "left output": ({"leave_output": True}, {"quantize_output_tensor": False}),
}


@needs_oracle()
@pytest.mark.parametrize("flag", FLAGS)
def test_flags_give_the_references_file(flag: str, dense: Path, tmp_path: Path) -> None:
    ours, theirs = FLAGS[flag]
    reference([(dense, tmp_path / "ref.gguf", {"ftype": 15} | theirs)])
    quantize(dense, tmp_path / "ours.gguf", make_recipe("Q4_K_M", **ours))
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "ref.gguf").read_bytes()


@needs_oracle()
def test_a_split_model_stays_split_as_the_reference_splits_it(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model.gguf", SMALL, shards=3)
    reference([(source, tmp_path / "ref", {"ftype": 15, "keep_split": True})])
    result = quantize(source, tmp_path / "ours.gguf", "Q4_K_M", keep_split=True)
    assert [file.path.name for file in result.files] == [f"ours-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    for index, file in enumerate(result.files, 1):
        assert file.path.read_bytes() == (tmp_path / f"ref-0000{index}-of-00003.gguf").read_bytes()
    assert len(open_shards(result.files[0].path)) == 3


@needs_oracle()
def test_another_alignment_is_kept_as_the_reference_keeps_it(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf", SMALL, extra={"general.alignment": MetaValue.uint32(64)})
    reference([(source, tmp_path / "ref.gguf", {"ftype": 15})])
    quantize(source, tmp_path / "ours.gguf", "Q4_K_M")
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "ref.gguf").read_bytes()
