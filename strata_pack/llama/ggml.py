"""Calls ggml's quantizing functions through ctypes on the shared object of the ``xllamacpp`` wheel.

The extension module is never imported; only its exported C functions are used. ctypes releases the GIL during a call,
so threads that quantize different rows use all cores. Source: ``ggml.h`` and ``ggml-quants.h`` of llama.cpp
(https://github.com/ggml-org/llama.cpp).
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from strata_pack.errors import EnvironmentFailure
from strata_pack.files import sha256_file
from strata_pack.llama.ggml_types import GGML_QUANT_SIZES, Q2_0
from strata_pack.llama.ggml_types import GGMLQuantizationType as Q

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

FLOAT_TYPES = frozenset({Q.F32, Q.F16, Q.BF16})
BLOCK_TYPES = (
    *(Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0, Q.MXFP4, Q.Q1_0, Q2_0),
    *(Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.TQ1_0, Q.TQ2_0),
    *(Q.IQ1_S, Q.IQ1_M, Q.IQ2_XXS, Q.IQ2_XS, Q.IQ2_S, Q.IQ3_XXS, Q.IQ3_S, Q.IQ4_NL, Q.IQ4_XS),
)
"""The block types for weights. (Q8_1 and Q8_K are used only during computation and have no quantizer.)"""
QUANTIZABLE = frozenset({*FLOAT_TYPES, *BLOCK_TYPES})
TABLE_TYPES = frozenset({Q.IQ1_S, Q.IQ1_M, Q.IQ2_XXS, Q.IQ2_XS, Q.IQ2_S, Q.IQ3_XXS, Q.IQ3_S})
"""Types whose quantizer first builds search tables: 0.2 s (IQ3) to 16 s (IQ1) on one core, once per process."""

LATER_TYPES = frozenset({Q.Q1_0, Q2_0})
"""Types that were added after packs had probe hashes: included only if a pack uses them, so that old hashes stay
valid."""

_PROBE_ROWS, _PROBE_COLUMNS = 6, 512
_MODULE = "xllamacpp"
EXPONENT_BITS = {Q.F16: np.uint16(0x7C00), Q.BF16: np.uint16(0x7F80)}
"""The exponent bits, which are all set in NaN and infinities."""
_TO_F32_FLOATS = {Q.F16: "ggml_fp16_to_fp32_row", Q.BF16: "ggml_bf16_to_fp32_row"}


def library_path() -> Path:
    """Return the shared object of the ``xllamacpp`` wheel; ``EnvironmentFailure`` if it is not installed."""
    spec = importlib.util.find_spec(_MODULE)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    for folder in folders:
        found = sorted(Path(folder).glob(f"{_MODULE}*.so")) or sorted(Path(folder).glob(f"{_MODULE}*.dylib"))
        if found:
            return found[0]
    raise EnvironmentFailure(
        "the package xllamacpp, which quantizes, is not installed", remedy="install it with: pip install xllamacpp"
    )


def row_nbytes(type: Q, n_per_row: int) -> int:
    """Return the bytes of one row of ``n_per_row`` weights, which must be a multiple of the type's block size."""
    block, size = GGML_QUANT_SIZES[type]
    return n_per_row // block * size


class Ggml:
    """The loaded library. All methods may be called from several threads at once."""

    def __init__(self, path: Path) -> None:
        """Load ``path``; ``EnvironmentFailure`` if it is not a library with ggml's quantizers."""
        self.path = path
        try:
            library = ctypes.CDLL(str(path))
            self._quantize = _prototype(
                library.ggml_quantize_chunk,
                ctypes.c_size_t,
                [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p],
            )
            self._requires = _prototype(library.ggml_quantize_requires_imatrix, ctypes.c_bool, [ctypes.c_int])
            self._validate = _prototype(
                library.ggml_validate_row_data, ctypes.c_bool, [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
            )
            type_name = _prototype(library.ggml_type_name, ctypes.c_char_p, [ctypes.c_int])
        except (OSError, AttributeError) as error:
            raise EnvironmentFailure(
                f"cannot be used to quantize ({error})", where=path, remedy="reinstall the package xllamacpp"
            ) from error
        self._library = library
        self._names = {type: type_name(type).decode() for type in QUANTIZABLE}
        self._readers: dict[Q, Callable[..., Any]] = {}

    @classmethod
    @lru_cache(maxsize=1)
    def load(cls) -> Ggml:
        """Return the library of the installed wheel, loaded once."""
        return cls(library_path())

    @property
    def version(self) -> str:
        """The version of the wheel, which pins a build of llama.cpp."""
        return importlib.metadata.version(_MODULE)

    @cached_property
    def library_sha256(self) -> str:
        """SHA-256 of the shared object, lower-case hex."""
        return sha256_file(self.path)

    @property
    def library_stamp(self) -> str:
        """A value that changes with the shared object on this machine; cheaper than its hash, which takes 0.1 s."""
        status = self.path.stat()
        return f"{self.version} {status.st_size} {status.st_mtime_ns}"

    def requires_imatrix(self, type: Q) -> bool:
        """Return whether ggml cannot quantize to ``type`` without importances (it would abort)."""
        return bool(self._requires(type))

    def can_dequantize(self, type: Q) -> bool:
        """Return whether ``to_f32`` supports ``type``."""
        return type is Q.F32 or self._reader(type) is not None

    def quantize_chunk(self, type: Q, source: Floats, out: Bytes, importance: Floats | None = None) -> int:
        """Quantize ``source`` (rows, columns; C order) into ``out`` and return the bytes written.

        ``importance`` has one value per column, for all rows. ``out`` must have room for all rows, and the columns must
        be a multiple of the block size of ``type``, else ``ValueError`` (the C code does not check).
        """
        rows, columns = source.shape
        if columns % GGML_QUANT_SIZES[type][0] or type not in QUANTIZABLE:
            raise ValueError(f"rows of {columns} weights cannot be quantized to {type.name}")
        if out.nbytes < rows * row_nbytes(type, columns):
            raise ValueError("the output buffer is too small")
        if not (source.flags.c_contiguous and out.flags.c_contiguous and source.dtype == np.float32):
            raise ValueError("the buffers must be contiguous, the source float32")
        if importance is None:
            if self.requires_imatrix(type):
                raise ValueError(f"{type.name} needs importances")
            weights = None
        else:
            if importance.shape != (columns,) or importance.dtype != np.float32 or not importance.flags.c_contiguous:
                raise ValueError("the importances must be one float32 a column")
            weights = importance.ctypes.data
        return int(self._quantize(type, source.ctypes.data, out.ctypes.data, 0, rows, columns, weights))

    def quantize(self, type: Q, source: Floats, importance: Floats | None = None) -> bytes:
        """Return ``source`` (rows, columns) quantized to ``type``."""
        out = np.empty(source.shape[0] * row_nbytes(type, source.shape[1]), np.uint8)
        self.quantize_chunk(type, source, out, importance)
        return out.tobytes()

    def to_f32(self, type: Q, source: Bytes, out: Floats) -> None:
        """Dequantize the bytes of whole blocks of ``type`` to ``out.size`` weights."""
        if source.nbytes != row_nbytes(type, out.size) or not (source.flags.c_contiguous and out.flags.c_contiguous):
            raise ValueError("the buffers do not fit each other")
        reader = None if type is Q.F32 else self._reader(type)
        if type is Q.F32:
            out.reshape(-1).view(np.uint8)[:] = source.reshape(-1)
        elif reader is None:
            raise ValueError(f"{type.name} cannot be turned into floats")
        else:
            reader(source.ctypes.data, out.ctypes.data, out.size)

    def is_finite(self, type: Q, data: Bytes) -> bool:
        """Return whether no float in ``data`` (whole blocks of ``type``) is NaN or infinite.

        For block types the scales are checked; ggml prints a line on stderr if it finds one.
        """
        if type is Q.F32:
            return bool(np.isfinite(data.view(np.float32)).all())
        exponent = EXPONENT_BITS.get(type)
        if exponent is not None:
            # All exponent bits set: numpy compares integers far faster than ggml or numpy convert 16-bit floats.
            return not ((data.view(np.uint16) & exponent) == exponent).any()
        return bool(self._validate(type, data.ctypes.data, data.nbytes))

    def probe_hash(self, types: Iterable[Q] = ()) -> str:
        """Return the SHA-256 over a fixed pattern quantized to every type, with and without importances.

        Two libraries with the same probe hash write the same bytes. Builds differ by fused multiply-adds, which the
        searches for the best scale amplify to different blocks. The types with search tables (IQ1, IQ2, IQ3) take up to
        half a minute to initialize and are included only if ``types`` has them: pass the types of the pack.
        """
        covered = sorted((QUANTIZABLE - TABLE_TYPES - LATER_TYPES) | (QUANTIZABLE & set(types)))
        source, importance = probe_pattern()
        digest = hashlib.sha256()
        for type in covered:
            for weights in (None, importance):
                if weights is not None or not self.requires_imatrix(type):
                    digest.update(f"{type.name} {weights is not None}\n".encode())
                    digest.update(self.quantize(type, source, weights))
        return digest.hexdigest()

    def _reader(self, type: Q) -> Callable[..., Any] | None:
        if type not in self._readers:
            name = _TO_F32_FLOATS.get(type) or f"dequantize_row_{self._names.get(type, '?')}"
            function = getattr(self._library, name, None)
            if function is None:
                return None
            self._readers[type] = _prototype(function, None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64])
        return self._readers[type]


def probe_pattern() -> tuple[Floats, Floats]:
    """Return the probe's weights, shape (6, 512), each row with another scale, and importances, shape (512,).

    Computed from integers and exact divisions by powers of two, so that every machine gets the same floats.
    """
    numbers = np.arange(1, _PROBE_ROWS * _PROBE_COLUMNS + 1, dtype=np.uint64) * np.uint64(2654435761)
    mixed = ((numbers ^ (numbers >> np.uint64(15))) * np.uint64(2246822519)) >> np.uint64(8) & np.uint64(0xFFFFF)
    signed = (mixed.astype(np.int64) - 0x80000).astype(np.float32) / np.float32(0x80000)
    rows = signed.reshape(_PROBE_ROWS, _PROBE_COLUMNS)
    scales = (np.float32(2) ** np.arange(-4, _PROBE_ROWS - 4, dtype=np.float32)).reshape(-1, 1)
    importance = (mixed[:_PROBE_COLUMNS] & np.uint64(0xFF)).astype(np.float32) / np.float32(256) + np.float32(0.125)
    return np.ascontiguousarray(rows * rows * rows * scales), np.ascontiguousarray(importance)


def _prototype(function: Any, result: Any, arguments: list[Any]) -> Callable[..., Any]:
    function.restype, function.argtypes = result, arguments
    return function  # type: ignore[no-any-return]
