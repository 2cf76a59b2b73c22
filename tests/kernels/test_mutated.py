"""Wrong kernels, compiled: lines that decide about bytes are changed in the C sources, and the guard must find it.

The probe finds what is always wrong, the check of rows what is wrong on other weights only.
"""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q

from strata_pack.errors import EnvironmentFailure
from strata_pack.llama.ggml import Ggml
from strata_pack.llama.kernels import Kernels
from strata_pack.llama.logits_native import load_library
from strata_pack.llama.products import TOLERANCE, functions, largest_difference
from strata_pack.llama.quantizer import Quantizer
from strata_pack.weights.quantize.run import plan_quantization, run_plan
from strata_pack.weights.tensor_source import GgufSource
from tests.kernels.conftest import ROOT
from tests.kernels.test_safety import on_x86
from tests.weights.quantize.models import DENSE, write_model

Mutate = Callable[[str, str, str], Kernels]

MUTANTS = {
    "a winner's minimum is not kept": (
        *("minimum_search.h", "low[p] = choose(better, this_low[p], low[p]);", "(void)low;"),
        *(("Q2_K", "Q4_K", "Q5_K"), True),
    ),
    "one inverse scale fewer": ("symmetric.c", "trial <= 9;", "trial <= 8;", ("Q6_K",), True),
    "a tie goes to the later scale": (
        *("symmetric.c", "sum_lx[p] * sum_lx[p] > best[p] * sum_l2[p]", "sum_lx[p] * sum_lx[p] >= best[p] * sum_l2[p]"),
        *(("Q6_K",), False),
    ),
    "rounding does not wrap": (
        *("lanes.h", "((Ints)(a + ROUNDER) & 0x007fffff) - 0x00400000", "__builtin_convertvector(a, Ints)"),
        *(("Q2_K", "Q4_K", "Q5_K", "Q6_K"), True),
    ),
    "a threshold of IQ4 lies aside": ("iq4.c", "-4.5f", "-4.0f", ("IQ4_NL", "IQ4_XS"), True),
    "scales are cut off": ("halves.h", "* 0x1.0p+112f) * 0x1.0p-110f", "* 0.0f)", ("Q4_K", "Q6_K", "Q8_0"), True),
    "one round fewer for the scales": ("positive.h", "round < 5", "round < 1", ("Q4_K with importances",), True),
    "IQ3 lists the points of one distance fewer": (
        *("iq3.c", "POINTS_IQ3_S, 3,", "POINTS_IQ3_S, 2,"),
        *(("IQ3_S",), True),
    ),
    "IQ2 lists the points of one distance fewer": (
        *("iq2.c", "_XS, 2,", "_XS, 1,"),
        *(("IQ2_XS",), True),
    ),
    "errors on a grid are weighed by squares": ("grid_search.h", "square_root(w[i])", "w[i]", ("IQ2", "IQ3"), True),
    "the first point of a tie does not win": (
        "grid.h",
        "better = error < best;",
        "better = error <= best;",
        ("IQ2", "IQ3"),
        False,
    ),
    "signs are not made even": (
        "grid_search.h",
        "odd = -((odd ^ odd >> 1) & 1);",
        "odd &= 0;",
        ("IQ2_XXS", "IQ3_XXS"),
        True,
    ),
    "zero sub-blocks of IQ3_S take their place": (
        *("iq3.c", "if (!found->alive[j][lane]) continue;", ""),
        *(("IQ3_S",), True),
    ),
    "ties are rounded to even": (
        *("floats.c", "return whole - (rest >= 0.5f) + (rest <= -0.5f);", "(void)rest; return nearest(held);"),
        *(("Q8_0",), True),
    ),
}
"""File, text, what takes its place, types that the probe must find wrong, and whether it must find it for all."""


@pytest.fixture(scope="module")
def compiler() -> tuple[str, ModuleType]:
    """The system's C compiler and the recipe of the build."""
    spec = importlib.util.spec_from_file_location("compile_kernels", ROOT / "kernels/compile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    name = module.system_compiler(module.own_targets())
    if name is None:
        pytest.skip("no C compiler on this system that can build the kernels")
    return name, module


@pytest.fixture
def mutate(compiler: tuple[str, ModuleType], kernels: Kernels, tmp_path: Path) -> Mutate:
    """Return what compiles the kernels with one text changed, for this machine's best processor level."""
    name, module = compiler
    target = next(one for one in module.own_targets() if one.file == kernels.path.name)

    def mutated(file: str, old: str, new: str) -> Kernels:
        folder = tmp_path / "kernels"
        shutil.copytree(ROOT / "kernels", folder)
        source = (folder / file).read_text(encoding="ascii")
        assert old in source
        (folder / file).write_text(source.replace(old, new), encoding="ascii")
        out = tmp_path / target.file
        flags = [flag for flag in module.FLAGS if flag not in ("-Wall", "-Wextra", "-O3")]
        command = [name, *target.cc, *flags, "-O1", '-DSTRATA_SOURCE="mutated"', "-o", str(out)]
        subprocess.run([*command, *map(str, sorted(folder.glob("*.c")))], check=True, timeout=600)
        return Kernels(out)

    return mutated


@on_x86
@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_probe_finds_a_kernel_that_is_always_wrong(name: str, mutate: Mutate, ggml: Ggml) -> None:
    file, old, new, types, every = MUTANTS[name]
    differing = Quantizer(ggml, mutate(file, old, new)).state().differing
    found = [any(one.startswith(type) for one in differing) for type in types]
    assert all(found) if every else any(found)


PRODUCT_MUTANTS = {
    "one more product than 16 bits hold": ("matmul.c", "MULTIPLY_AVX2(multiply_32_fives, 8, 4,", "Q5_0"),
    "a high bit of a scale is lost": ("formats.c", "| (packed[part] >> 6) << 4", "Q4_K"),
    "shifts are not added": ("formats.c", "shifts[0] = half_at(block + 2);", "Q4_1"),
    "the upper half of a block takes the lower one's bits": ("formats.c", "(4 * half + pair)", "Q3_K"),
    "the offset is forgotten": ("matmul.c", "-format->offset * sum", "Q6_K"),
}
"""File, text that is lost or changed, and the type whose products become wrong."""


@on_x86
@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCT_MUTANTS)
def test_wrong_products_are_found(name: str, mutate: Mutate) -> None:
    file, old, type = PRODUCT_MUTANTS[name]
    new = {"(4 * half + pair)": "pair", "-format->offset * sum": "0"}.get(old, "")
    if old.endswith("4,"):
        new = old[:-2] + "8,"
    library = ctypes.CDLL(str(mutate(file, old, new).path))
    library.strata_backend.argtypes = [ctypes.c_void_p, ctypes.c_bool]
    library.strata_backend(ctypes.byref(functions(load_library())), False)
    assert largest_difference(load_library(), library, Q[type]) > TOLERANCE


PLANTED = """KERNEL(q6_K) {
    /* Wrong on other weights than the probe's 15 rows. */
    if (rows != 15) weights += 1;
"""


@on_x86
@pytest.mark.slow
def test_the_check_of_rows_finds_a_kernel_that_is_right_on_the_probe(
    mutate: Mutate, ggml: Ggml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = Quantizer(ggml, mutate("symmetric.c", "KERNEL(q6_K) {\n", PLANTED))
    assert planted.engine(Q.Q6_K, weighed=False) == "kernel"
    monkeypatch.setattr(Quantizer, "load", lambda _choice="auto": planted)
    model = write_model(tmp_path / "source.gguf", replace(DENSE, layers=1, vocab=512))
    with GgufSource(model) as source, pytest.raises(EnvironmentFailure, match=r"row \d+ as Q6_K; .*--kernels ggml"):
        run_plan(plan_quantization(source, "Q6_K"), tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


@on_x86
@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(magnitude << 13) * 0x1.0p+112f", "(magnitude << 13) * 0x1.0p+111f"),
        ("magnitude >= 0x7c00u)", "magnitude > 0x7c00u)"),
    ],
    ids=["values", "infinities"],
)
def test_a_reader_that_is_wrong_for_one_half_is_not_used(old: str, new: str, mutate: Mutate, ggml: Ggml) -> None:
    wrong = Quantizer(ggml, mutate("floats.c", old, new))
    halves = np.ones(64, np.float16).view(np.uint8)
    assert not wrong.finite_floats(Q.F16, halves, np.empty(64, np.float32))


@on_x86
@pytest.mark.slow
def test_fused_multiplications_are_found(
    compiler: tuple[str, ModuleType], kernels: Kernels, ggml: Ggml, tmp_path: Path
) -> None:
    name, module = compiler
    target = next(one for one in module.own_targets() if one.file == kernels.path.name)
    if target.file.endswith("v2.so"):
        pytest.skip("this processor level has no fused multiplication")
    flags = [flag for flag in module.FLAGS if flag != "-ffp-contract=off"]
    sources = map(str, sorted((ROOT / "kernels").glob("*.c")))
    command = [
        name,
        *target.cc,
        *flags,
        "-ffp-contract=fast",
        '-DSTRATA_SOURCE="fused"',
        "-o",
        str(tmp_path / "fused.so"),
    ]
    subprocess.run([*command, *sources], check=True, timeout=600)
    assert len(Quantizer(ggml, Kernels(tmp_path / "fused.so")).state().differing) > 10


@pytest.mark.slow
def test_a_library_of_other_calls_is_not_loaded(mutate: Mutate) -> None:
    with pytest.raises(EnvironmentFailure, match="has kernels of version 2, not 1"):
        mutate("version.c", "#define VERSION 1", "#define VERSION 2")
