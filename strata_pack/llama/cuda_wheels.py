"""Provides a CUDA toolkit from NVIDIA's wheels: nvcc, headers, cuBLAS, with cmake and ninja, but without the driver.

The wheels lack the unversioned library names that linkers use; symbolic links provide them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from strata_pack.errors import EnvironmentFailure
from strata_pack.llama.runtimes import runtimes_dir
from strata_pack.llama.wheels import PinnedWheel, unpack_wheels
from strata_pack.progress import Progress

CUDA = "13.5"
"""The CUDA release of the wheels; its programs need NVIDIA's driver 580 or later."""

MEGABYTES = 603
"""Size of the download in MB."""

TOOLKIT_WHEELS = (
    PinnedWheel(
        "nvidia-cuda-nvcc",
        "13.5.37",
        (
            "f5c4f7ead5d964fb4af42bbf1e6d3ec3c1e6e9d83b53749f691d387e7fcaa3a7",
            "588eda18eb5076ae859fe272844b526459228af22df0b117f54eec3aa82bc9c8",
        ),
    ),
    PinnedWheel(
        "nvidia-nvvm",
        "13.5.37",
        (
            "c41bfa362e407405163f103c2229f0765f8cc2ed7d148b754dc77f228bf7e070",
            "b659bd3115b7ac7ec8931e67d0e2c0dd09cd35b08a6a7372df6f8f22c67da80a",
        ),
    ),
    PinnedWheel(
        "nvidia-cuda-crt",
        "13.5.37",
        (
            "e898b7f73d3035fa89915a3f7bf3b54a73e90249746111aed295822c4729bb29",
            "9ed2c565fdf3244fa6719769a80a466b85bfd4b1467ea339353bc91c971d09e0",
        ),
    ),
    PinnedWheel(
        "nvidia-cuda-runtime",
        "13.5.37",
        (
            "df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d",
            "de2dc5a7367974228b0a69588a9acc9340d3768bef1bf38bf0801eb08497cd2d",
        ),
    ),
    PinnedWheel(
        "nvidia-cuda-cccl",
        "13.3.5.0.6",
        (
            "d5230098fa2df5021e1a00c0c4eee41797671a91119d31e892463e5ccf3ee326",
            "6f30b8076b3e69951c459c94ae190bde51924b320076ebaec376d36848b4c76e",
        ),
    ),
    PinnedWheel(
        "nvidia-cublas",
        "13.10.0.20",
        (
            "dcc6d63884c53d07e267ce7e6feac17b2538cebaafec5db865736c3e28e4dc84",
            "c5f3418c0a845232a8cabc58f6fa52cfae7d8bd3680d94c3907aca710fd48d70",
        ),
    ),
    PinnedWheel(
        "cmake",
        "4.4.5",
        (
            "85625a9b6d5e88ff99c7eb79123d85570844e77ac076366cf75c609cc0b1b579",
            "25fc8469e67857124ef10c002331c0ab416eb7b8d9e1d6e4c58e84e730013ece",
        ),
    ),
    PinnedWheel(
        "ninja",
        "1.13.2",
        (
            "65a24341b5ac09fcadcc37082660be40a94174e51a937fabf6e2cae26225fa2c",
            "d775a5e43e9088f507a6250d57fcf5678eb31268c545feb5064ffeee33735622",
        ),
    ),
)
"""The wheels, each for Linux on x86-64 and on AArch64."""

RUNTIME_LIBRARIES = ("libcudart.so", "libcublas.so", "libcublasLt.so")
"""The libraries that a finished server needs at run time."""


@dataclass(frozen=True)
class WheelToolkit:
    """The unpacked wheels; ``root`` is cmake's toolkit root."""

    root: Path
    cmake: Path
    ninja: Path

    def flags(self) -> list[str]:
        """Return the cmake flags that select this toolkit."""
        return [
            f"-DCMAKE_CUDA_COMPILER={self.root / 'bin/nvcc'}",
            f"-DCUDAToolkit_ROOT={self.root}",
            f"-DCMAKE_MAKE_PROGRAM={self.ninja}",
        ]

    def libraries(self) -> list[Path]:
        """Return the library files that a finished server needs, by the names under which it loads them."""
        return [_versioned(self.root / "lib", name) for name in RUNTIME_LIBRARIES]


def toolkit_key() -> str:
    """Return the hash of the pinned wheels, which identifies the toolkit."""
    return hashlib.sha256("\n".join(wheel.requirement for wheel in TOOLKIT_WHEELS).encode()).hexdigest()[:12]


def fetch_toolkit(progress: Progress) -> WheelToolkit:
    """Return the toolkit in the cache, fetched if it is missing; raises ``EnvironmentFailure`` if pip fails."""
    folder = runtimes_dir() / "toolkits" / f"cuda-{CUDA}-{toolkit_key()}"
    if not folder.is_dir():
        progress.note(f"fetching CUDA {CUDA}, cmake and ninja: {len(TOOLKIT_WHEELS)} wheels, {MEGABYTES} MB")
    return use_toolkit(unpack_wheels(TOOLKIT_WHEELS, folder))


def use_toolkit(folder: Path) -> WheelToolkit:
    """Return the toolkit of the wheels in ``folder``, and create the links that linkers need."""
    root = next(iter(sorted(folder.glob("nvidia/cu*"))), folder / "nvidia")
    libraries = root / "lib"
    for file in sorted(libraries.glob("lib*.so.*")):
        _link(libraries / (file.name.partition(".so")[0] + ".so"), file.name)
    _link(root / "lib64", "lib")
    found = WheelToolkit(root, folder / "cmake/data/bin/cmake", folder / "bin/ninja")
    for tool in (found.cmake, found.ninja, root / "bin/nvcc"):
        if not tool.is_file():
            raise EnvironmentFailure("is missing in the wheels", where=tool, remedy=f"remove {folder} and run again")
    return found


def _link(path: Path, target: str) -> None:
    if not path.exists():
        path.unlink(missing_ok=True)
        path.symlink_to(target)


def _versioned(folder: Path, name: str) -> Path:
    return next(iter(sorted(folder.glob(f"{name}.*"))), folder / name)
