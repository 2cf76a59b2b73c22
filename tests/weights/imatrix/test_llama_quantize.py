"""llama-quantize reads our importance matrix, and with it writes the tensors that we write."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from strata_pack.weights.gguf.file import GgufFile
from strata_pack.weights.imatrix.collect import ImatrixRequest, make_imatrix
from strata_pack.weights.quantize.imatrix import read_imatrix
from strata_pack.weights.quantize.run import plan_quantization, run_plan
from strata_pack.weights.tensor_source import GgufSource

PRESETS = ["Q4_K_M", "Q5_K_M", "Q3_K_M", "Q2_K", "Q4_0", "IQ4_NL", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_M", "IQ2_XXS"]


@pytest.fixture(scope="module")
def binary() -> str:
    """llama-quantize, compiled from the source of the embedded llama.cpp for plain x86-64."""
    named = os.environ.get("LLAMA_QUANTIZE")
    if not named:
        pytest.skip("LLAMA_QUANTIZE names no llama-quantize")
    return named


@pytest.fixture(scope="module", params=["gguf", "dat"])
def imatrix(request: pytest.FixtureRequest, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("imatrix") / f"smollm2.{request.param}"
    make_imatrix(ImatrixRequest(smollm2, out, chunks=1))
    return out


def tensors(path: Path) -> dict[str, tuple[str, bytes]]:
    with GgufFile.open(path) as file:
        data = path.read_bytes()[file.data_offset :]
        return {one.name: (one.type.name, data[one.offset : one.offset + one.nbytes]) for one in file.tensors}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("preset", PRESETS)
def test_llama_quantize_writes_our_bytes_with_our_imatrix(
    preset: str, binary: str, imatrix: Path, smollm2: Path, tmp_path: Path
) -> None:
    if imatrix.suffix == ".dat" and preset != "Q4_K_M":
        pytest.skip("one preset shows that the old form is read")
    command = [
        binary,
        "--allow-requantize",
        "--imatrix",
        str(imatrix),
        str(smollm2),
        str(tmp_path / "theirs.gguf"),
        preset,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    with GgufSource(smollm2) as source:
        run_plan(
            plan_quantization(source, preset, read_imatrix(imatrix), allow_requantize=True), tmp_path / "ours.gguf"
        )
    ours, theirs = tensors(tmp_path / "ours.gguf"), tensors(tmp_path / "theirs.gguf")
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []
