"""The kernels of this checkout, all that this machine can run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Q

from strata_pack.llama import kernels as loader
from strata_pack.llama.ggml import Ggml
from strata_pack.llama.kernels import PLAIN, WEIGHED, Kernels, Missing, find_kernels, library_names

ROOT = Path(__file__).parent.parent.parent
BUILT = ROOT / "build/kernels"

CASES = [*((type, False) for type in sorted(PLAIN)), *((type, True) for type in sorted(WEIGHED))]
"""Every type with a kernel, without importances and with them."""
CASE_NAMES = [f"{type.name}{' weighed' if weighed else ''}" for type, weighed in CASES]


def _marks(case: tuple[Q, bool]) -> tuple[pytest.MarkDecorator, ...]:
    return (pytest.mark.slow,) if case[0] in {Q.IQ2_XXS, Q.IQ2_XS, Q.IQ2_S} else ()


GGML_CASES = [pytest.param(case, marks=_marks(case), id=name) for case, name in zip(CASES, CASE_NAMES, strict=True)]
"""The same for tests that call ggml: it takes seconds to make its tables for IQ2."""


def case_name(case: tuple[Q, bool]) -> str:
    return CASE_NAMES[CASES.index(case)]


@pytest.fixture(scope="session")
def kernels() -> Kernels:
    """The library that is used on this machine."""
    found = find_kernels()
    if isinstance(found, Missing):
        pytest.skip(f"no kernels: {found.reason}")
    return found


@pytest.fixture(scope="session")
def variants(kernels: Kernels) -> list[Kernels]:
    """Every library that this machine can run and that was built from these sources."""
    paths = [BUILT / name for name in library_names()]
    return [found for found in (Kernels(path) for path in paths if path.is_file()) if found.source == kernels.source]


@pytest.fixture(scope="session")
def ggml() -> Ggml:
    return Ggml.load()


@pytest.fixture
def unloaded() -> Iterator[None]:
    """Nothing that was loaded before the test is used in it, nor what it loads after it."""
    from strata_pack.llama.quantizer import Quantizer

    loader.find_kernels.cache_clear()
    Quantizer.load.cache_clear()
    yield
    loader.find_kernels.cache_clear()
    Quantizer.load.cache_clear()
