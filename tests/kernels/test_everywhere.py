"""The kernels of other processors write x86-64's bytes: those for ARM are run by an emulator."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from strata_pack.llama.ggml import row_nbytes
from strata_pack.llama.kernels import Kernels
from strata_pack.llama.probe import kernel_probe
from tests.kernels.conftest import CASE_NAMES, CASES, ROOT
from tests.kernels.distributions import Floats, distributions_of, importances, weights
from tests.kernels.test_bytes import written

EMULATOR = "qemu-aarch64-static"
NAMES = sorted({case[0].name for case in CASES})


def c_name(name: str) -> str:
    return name.lower().replace("_k", "_K")


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs the ARM kernels on this machine."""
    if shutil.which(EMULATOR) is None:
        pytest.skip(f"no {EMULATOR}: install the Debian package qemu-user-static")
    pytest.importorskip("ziglang")
    folder = tmp_path_factory.mktemp("arm")
    (folder / "driver_kernels.h").write_text("".join(f"K({c_name(name)})\n" for name in NAMES), encoding="ascii")
    sources = [str(path) for path in (*sorted((ROOT / "kernels").glob("*.c")), Path(__file__).parent / "driver.c")]
    flags = ["-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno", f"-I{folder}", '-DSTRATA_SOURCE="test"']
    target = ["-target", "aarch64-linux-musl", "-static", "-o", str(folder / "driver")]
    subprocess.run([sys.executable, "-m", "ziglang", "cc", *target, *flags, *sources], check=True, timeout=600)
    return [EMULATOR, str(folder / "driver")]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES, ids=CASE_NAMES)
def test_the_kernels_for_arm_write_the_bytes_of_x86(case: tuple, arm: list[str], kernels: Kernels) -> None:  # type: ignore[type-arg]
    type, weighed = case
    pieces: list[tuple[Floats, Floats | None]] = [
        (weights(name, 24, 1280, seed=4), importances(1280, seed=4) if weighed else None)
        for name in distributions_of(type)
    ]
    probe, probe_importances = kernel_probe(type)
    pieces.append((probe, probe_importances if weighed else None))
    sent, expected = b"", b""
    for source, importance in pieces:
        rows, columns = source.shape
        size = rows * row_nbytes(type, columns)
        sent += np.array([NAMES.index(type.name), rows, columns, size, weighed, 0], np.int64).tobytes()
        sent += source.tobytes() + (b"" if importance is None else importance.tobytes())
        expected += written(kernels, type, source, importance)
    done = subprocess.run(arm, input=sent, capture_output=True, timeout=600, check=True)
    found, wanted = np.frombuffer(done.stdout, np.uint8), np.frombuffer(expected, np.uint8)
    assert found.size == wanted.size
    assert np.flatnonzero(found != wanted).size == 0
