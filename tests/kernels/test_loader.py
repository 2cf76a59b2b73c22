"""Which library is loaded, and what happens where there is none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from strata_pack.llama import kernels as loader
from strata_pack.llama.kernels import Kernels, Missing, find_kernels, library_names
from tests.kernels.conftest import BUILT, ROOT

V2 = frozenset({"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"})
V3 = V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@pytest.mark.parametrize(
    ("system", "machine", "flags", "names"),
    [
        ("linux", "x86_64", frozenset(), []),
        ("linux", "x86_64", V2 - {"popcnt"}, []),
        ("linux", "x86_64", V2, ["linux-x86-64-v2.so"]),
        ("linux", "x86_64", V3 - {"fma"}, ["linux-x86-64-v2.so"]),
        ("linux", "x86_64", V3, ["linux-x86-64-v3.so", "linux-x86-64-v2.so"]),
        ("linux", "x86_64", V4 - V2, []),
        ("linux", "x86_64", V4, ["linux-x86-64-v4.so", "linux-x86-64-v3.so", "linux-x86-64-v2.so"]),
        ("linux", "aarch64", frozenset(), ["linux-aarch64.so"]),
        ("darwin", "arm64", frozenset(), ["macos-aarch64.dylib"]),
        ("darwin", "x86_64", V4, []),
        ("linux", "riscv64", frozenset(), []),
        ("win32", "AMD64", V4, []),
    ],
)
def test_the_best_library_that_the_processor_can_run_comes_first(
    system: str, machine: str, flags: frozenset[str], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader.sys, "platform", system)
    monkeypatch.setattr(loader.platform, "machine", lambda: machine)
    assert library_names(flags) == names


def checkout(folder: Path) -> Path:
    """Copy the sources and the libraries to ``folder``."""
    shutil.copytree(ROOT / "kernels", folder / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    if BUILT.is_dir():
        shutil.copytree(BUILT, folder / "build/kernels")
    return folder


@pytest.mark.usefixtures("unloaded", "kernels")
def test_a_library_of_other_sources_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = checkout(tmp_path)
    monkeypatch.setattr(loader, "data_dir", lambda name: place / name)
    assert isinstance(find_kernels(), Kernels)
    with (place / "kernels/iq4.c").open("a", encoding="ascii") as file:
        file.write("/* another byte */\n")
    loader.find_kernels.cache_clear()
    found = find_kernels()
    assert isinstance(found, Missing)
    assert "other sources" in found.reason


@pytest.mark.usefixtures("unloaded")
def test_a_damaged_library_is_not_used(kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = checkout(tmp_path)
    monkeypatch.setattr(loader, "data_dir", lambda name: place / name)
    (place / "build/kernels" / kernels.path.name).write_bytes(b"not a library")
    found = find_kernels()
    assert isinstance(found, Missing)
    assert kernels.path.name in found.reason


@pytest.mark.usefixtures("unloaded")
def test_an_installation_without_libraries_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "data_dir", lambda name: tmp_path / name)
    assert isinstance(find_kernels(), Missing)
