"""Checks this machine for the tools of a llama.cpp build and names each missing one in one sentence.

There is a table for each backend; every entry locates a tool or says what to install.
"""

from __future__ import annotations

import os
import platform
import shutil
import site
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from strata_pack.llama.runtimes import Backend

CUDA_ROOTS = ("/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda")
LIBRARY_DIRS = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib", "lib/x86_64-linux-gnu")
SYSTEM_ROOTS = ("/usr", "/usr/local", "/usr/local/nvidia")


Needs = Backend | Literal["compiler"]
"""The backends; "compiler" is for builds whose other tools are wheels."""


@dataclass(frozen=True)
class ToolchainPart:
    """One requirement of a build. ``find`` returns its path; ``missing`` is the sentence if it is not found."""

    name: str
    find: Callable[[], Path | None]
    missing: str


@dataclass(frozen=True)
class Toolchain:
    """The found parts by name and sentences on the missing ones; a build can start if nothing is missing."""

    needs: Needs
    found: Mapping[str, Path]
    missing: tuple[str, ...]


def _program(*names: str) -> Path | None:
    return next((Path(path) for path in map(shutil.which, names) if path), None)


def _first(paths: Iterable[Path]) -> Path | None:
    return next((path for path in paths if path.exists()), None)


def cuda_roots() -> list[Path]:
    """Return the possible folders of a CUDA toolkit: from the environment, next to nvcc, in the usual places."""
    named = [Path(os.environ[name]) for name in ("CUDA_PATH", "CUDA_HOME") if os.environ.get(name)]
    nvcc = _program("nvcc")
    beside = [nvcc.resolve().parent.parent] if nvcc else []
    every = [*named, *beside, *map(Path, CUDA_ROOTS)]
    return [root for root in dict.fromkeys(every) if (root / "include/cuda_runtime.h").is_file()]


def _wheel_roots() -> list[Path]:
    """Return the folders of NVIDIA's wheels (``nvidia-cublas``): ``nvidia/cu13``, ``nvidia/cublas``."""
    places = {*site.getsitepackages(), *(path for path in sys.path if path.endswith("site-packages"))}
    return sorted(root for place in places for root in Path(place, "nvidia").glob("*") if root.is_dir())


def _nvcc() -> Path | None:
    return _program("nvcc") or _first(root / "bin/nvcc" for root in cuda_roots())


def _toolkit() -> Path | None:
    return next(iter(cuda_roots()), None)


def _cuda_header(name: str) -> Path | None:
    return _first(root / "include" / name for root in (*cuda_roots(), *_wheel_roots(), Path("/usr")))


def _library(pattern: str, roots: Iterable[Path]) -> Path | None:
    found = (path for root in roots for folder in LIBRARY_DIRS for path in sorted((root / folder).glob(pattern)))
    return next(found, None)


def _cublas(name: str) -> Path | None:
    return _library(f"lib{name}.so*", (*cuda_roots(), *_wheel_roots(), *map(Path, SYSTEM_ROOTS)))


def _driver_stub() -> Path | None:
    return _library("stubs/libcuda.so", cuda_roots()) or _library("libcuda.so", map(Path, SYSTEM_ROOTS))


_COMPILER = ToolchainPart(
    "C++ compiler",
    partial(_program, os.environ.get("CXX", "c++"), "g++", "clang++"),
    "a C++ compiler is missing: install the package g++",
)

_BASE = (
    ToolchainPart("cmake", partial(_program, "cmake"), "cmake is missing: install the package cmake (3.14 or later)"),
    _COMPILER,
    ToolchainPart(
        "build tool", partial(_program, "ninja", "make"), "ninja and make are missing: install the package ninja-build"
    ),
)

_CUDA = (
    ToolchainPart("nvcc", _nvcc, "nvcc is missing: install the CUDA toolkit, or name it with CUDA_PATH"),
    ToolchainPart("CUDA toolkit", _toolkit, "the CUDA headers (cuda_runtime.h) are missing: install the CUDA toolkit"),
    ToolchainPart(
        "cuBLAS header",
        partial(_cuda_header, "cublas_v2.h"),
        "the cuBLAS header (cublas_v2.h) is missing: pip install nvidia-cublas, or the toolkit's libcublas-dev",
    ),
    ToolchainPart(
        "cuBLAS",
        partial(_cublas, "cublas"),
        "the cuBLAS library (libcublas) is missing: pip install nvidia-cublas, or the toolkit's libcublas-dev",
    ),
    ToolchainPart("cuBLASLt", partial(_cublas, "cublasLt"), "the library libcublasLt is missing: it comes with cuBLAS"),
    ToolchainPart(
        "CUDA driver stub",
        _driver_stub,
        "the CUDA driver stub (libcuda.so) is missing: install the toolkit's cuda-driver-dev, or the driver",
    ),
)

_VULKAN = (
    ToolchainPart(
        "Vulkan header",
        lambda: _first(Path(root, "include/vulkan/vulkan.h") for root in SYSTEM_ROOTS[:2]),
        "the Vulkan headers are missing: install the package libvulkan-dev",
    ),
    ToolchainPart("glslc", partial(_program, "glslc"), "glslc is missing: install the package glslc (shaderc)"),
    ToolchainPart(
        "Vulkan loader",
        lambda: _library("libvulkan.so", map(Path, SYSTEM_ROOTS)),
        "the Vulkan loader (libvulkan.so) is missing: install the package libvulkan-dev",
    ),
)

_HIP = (
    ToolchainPart(
        "hipcc", partial(_program, "hipcc", "/opt/rocm/bin/hipcc"), "hipcc is missing: install ROCm's HIP SDK"
    ),
    ToolchainPart(
        "hipBLAS header",
        lambda: _first(Path(root, "include/hipblas/hipblas.h") for root in ("/opt/rocm", "/usr")),
        "the hipBLAS header is missing: install ROCm's hipblas-dev",
    ),
)

_METAL = (
    ToolchainPart(
        "macOS",
        lambda: Path("/System") if platform.system() == "Darwin" else None,
        "Metal exists on macOS only: choose another backend here",
    ),
    ToolchainPart("xcrun", partial(_program, "xcrun"), "xcrun is missing: install the Xcode command line tools"),
)

PIECES: Mapping[Needs, tuple[ToolchainPart, ...]] = {
    "compiler": (_COMPILER,),
    "cpu": _BASE,
    "cuda": (*_BASE, *_CUDA),
    "vulkan": (*_BASE, *_VULKAN),
    "hip": (*_BASE, *_HIP),
    "metal": (*_BASE, *_METAL),
}


def find_toolchain(needs: Needs) -> Toolchain:
    """Return which parts of the table of ``needs`` are found and which are missing."""
    found: dict[str, Path] = {}
    missing: list[str] = []
    for piece in PIECES[needs]:
        place = piece.find()
        if place is None:
            missing.append(piece.missing)
        else:
            found[piece.name] = place
    return Toolchain(needs, found, tuple(missing))


def cuda_flags(toolchain: Toolchain) -> list[str]:
    """Return the cmake flags for parts that cmake does not find: cuBLAS from a wheel, the driver stub."""
    found = toolchain.found
    include = found["cuBLAS header"].parent
    flags = [
        f"-DCMAKE_CUDA_COMPILER={found['nvcc']}",
        f"-DCUDAToolkit_ROOT={found['CUDA toolkit']}",
        f"-DCUDA_cublas_LIBRARY={found['cuBLAS']}",
        f"-DCUDA_cublasLt_LIBRARY={found['cuBLASLt']}",
        f"-DCUDA_cuda_driver_LIBRARY={found['CUDA driver stub']}",
    ]
    if include != found["CUDA toolkit"] / "include":
        flags += [f"-DCMAKE_CUDA_FLAGS=-I{include}", f"-DCMAKE_CXX_FLAGS=-I{include}"]
    return flags
