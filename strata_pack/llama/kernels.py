"""Loads the kernels: C code of this project that writes the same bytes as ggml, several times faster.

They are in ``build/kernels`` of a checkout, or inside the package of a wheel. If there is none for this machine, ggml
quantizes. ctypes releases the GIL during a call, as for ggml.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from strata_pack.errors import EnvironmentFailure
from strata_pack.llama.ggml_types import GGML_QUANT_SIZES
from strata_pack.llama.ggml_types import GGMLQuantizationType as Q
from strata_pack.resources import data_dir

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

VERSION = 1
"""Version of the calls and of the bytes; equal to the number in ``kernels/version.c``."""
PLAIN = frozenset({Q.Q8_0, Q.Q2_K, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.IQ3_S, Q.IQ4_NL, Q.IQ4_XS})
"""The types that kernels write without importances. For ggml's Q3_K, Q4_0, Q5_0, ... there is little to gain."""
WEIGHED = PLAIN | {Q.Q3_K, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.IQ2_XXS, Q.IQ2_XS, Q.IQ2_S, Q.IQ3_XXS}
"""The types that kernels write with importances."""

_CPU_INFO = Path("/proc/cpuinfo")
_LEVELS = (
    ("v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    ("v3", {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}),
    ("v2", {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}),
)
"""The CPU features that each x86-64 level adds, in Linux's names. Source: the x86-64 psABI, table 3.1."""


@dataclass(frozen=True)
class Missing:
    """The reason, as a clause, why this machine has no kernels."""

    reason: str


def library_names(flags: frozenset[str] | None = None) -> list[str]:
    """Return the names of the libraries that this machine can run, best first; ``flags`` replace the processor's
    features."""
    machine = platform.machine()
    if sys.platform == "darwin" and machine == "arm64":
        return ["macos-aarch64.dylib"]
    if sys.platform != "linux":
        return []
    if machine == "aarch64":
        return ["linux-aarch64.so"]
    if machine != "x86_64":
        return []
    found = processor_flags() if flags is None else flags
    needed: set[str] = set()
    names: list[str] = []
    for level, adds in reversed(_LEVELS):
        needed |= adds
        if needed <= found:
            names.insert(0, f"linux-x86-64-{level}.so")
    return names


@lru_cache(maxsize=1)
def processor_flags() -> frozenset[str]:
    """Return the processor features that Linux lists as usable; empty if unknown."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    words = next((line.partition(":")[2] for line in lines if line.startswith("flags")), "")
    return frozenset(words.split())


class Kernels:
    """One loaded library. All methods may be called from several threads at once."""

    def __init__(self, path: Path) -> None:
        """Load ``path``; ``EnvironmentFailure`` if it is not a kernel library of this version."""
        self.path = path
        try:
            library = ctypes.CDLL(str(path))
            library.strata_kernels_source.restype = ctypes.c_char_p
            version = int(library.strata_kernels_version())
            self.source = str(library.strata_kernels_source().decode("ascii"))
            self._functions = {type: getattr(library, f"strata_quantize_{_name(type)}") for type in WEIGHED}
            self._readers = {Q.F16: library.strata_f16_to_f32, Q.BF16: library.strata_bf16_to_f32}
        except (OSError, AttributeError, UnicodeDecodeError) as error:
            raise EnvironmentFailure(f"cannot be used to quantize ({error})", where=path) from error
        if version != VERSION:
            raise EnvironmentFailure(f"has kernels of version {version}, not {VERSION}", where=path)
        for function in self._functions.values():
            function.restype = None
            function.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int64]
        for reader in self._readers.values():
            reader.restype, reader.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]

    @property
    def multiplies(self) -> bool:
        """Whether it has kernels for products (``llama.products``): from AVX2 on."""
        return self.name.endswith(("-v3", "-v4"))

    @property
    def name(self) -> str:
        """The library's name without its suffix: system and processor."""
        return self.path.stem

    def writes(self, type: Q, *, weighed: bool) -> bool:
        """Return whether there is a kernel for ``type``, with or without importances."""
        return type in (WEIGHED if weighed else PLAIN)

    def quantize_chunk(self, type: Q, source: Floats, out: Bytes, importance: Floats | None = None) -> None:
        """Quantize ``source`` (shape (rows, columns), finite) into ``out``, as ``Ggml.quantize_chunk``.

        Raises ``ValueError`` for buffers of different sizes (the C code does not check).
        """
        rows, columns = source.shape
        block, size = GGML_QUANT_SIZES[type]
        if not self.writes(type, weighed=importance is not None) or columns % block:
            raise ValueError(f"no kernel writes rows of {columns} weights as {type.name}")
        if out.nbytes < rows * columns // block * size:
            raise ValueError("the output buffer is too small")
        if not (source.flags.c_contiguous and out.flags.c_contiguous and source.dtype == np.float32):
            raise ValueError("the buffers must be contiguous, the source float32")
        weights = None
        if importance is not None:
            if importance.shape != (columns,) or importance.dtype != np.float32 or not importance.flags.c_contiguous:
                raise ValueError("the importances must be one float32 a column")
            weights = importance.ctypes.data
        self._functions[type](source.ctypes.data, weights, out.ctypes.data, rows, columns)

    def reads(self, type: Q) -> bool:
        """Return whether ``to_f32`` knows ``type``."""
        return type in self._readers

    def to_f32(self, type: Q, source: Bytes, out: Floats) -> bool:
        """Convert F16 or BF16 bytes to floats and return whether all are finite.

        If not, ``out`` is undefined. Raises ``ValueError`` for buffers of different sizes.
        """
        fits = source.nbytes == 2 * out.size and out.dtype == np.float32
        if not (fits and source.flags.c_contiguous and out.flags.c_contiguous):
            raise ValueError("the buffers do not fit each other")
        return bool(self._readers[type](source.ctypes.data, out.ctypes.data, out.size))


@lru_cache(maxsize=1)
def find_kernels() -> Kernels | Missing:
    """Return the kernels for this machine, loaded once, or the reason why there are none.

    In a checkout, a library that was built from other sources than the present ones is ignored.
    """
    names = library_names()
    if not names:
        return Missing(f"there are none for {sys.platform} on this {platform.machine()} processor")
    sources = data_dir("kernels")
    is_checkout = (sources / "compile.py").is_file()
    folder = sources.parent / "build/kernels" if is_checkout else sources
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        return Missing("they were not built" if is_checkout else "this installation has none for this machine")
    try:
        kernels = Kernels(path)
    except EnvironmentFailure as error:
        return Missing(str(error))
    if is_checkout and kernels.source != source_hash(sources):
        return Missing("they were built from other sources: run python kernels/compile.py")
    return kernels


def source_hash(folder: Path) -> str:
    """Return the hash that ``kernels/compile.py`` embeds in a library built from the sources in ``folder``."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.c"), *folder.glob("*.h")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _name(type: Q) -> str:
    """Return ggml's name of ``type``: q4_K, iq4_xs."""
    family, _, rest = type.name.lower().partition("_")
    return f"{family}_{rest.upper() if rest == 'k' else rest}"
