"""Has the embedded llama.cpp multiply weights with this project's kernels (``kernels/products.c``).

The kernels are a backend of ggml, in addition to the CPU's, which takes over the products with many columns. Their
factors are those that ggml multiplies, integers for quantized weights; only the order of the last sums differs, as it
does between ggml's own kernels. All processor levels give the same bits.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from strata_pack.llama.ggml_types import GGML_QUANT_SIZES
from strata_pack.llama.ggml_types import GGMLQuantizationType as Q
from strata_pack.llama.kernels import Missing, find_kernels, processor_flags
from strata_pack.llama.logits_native import load_library

ProductKernels = Literal["auto", "ggml"]
"""``ggml``: llama.cpp multiplies all weights; ``auto``: this project's kernels do where they can."""
PRODUCT_TYPES = frozenset(
    {
        Q.F32,
        Q.F16,
        Q.BF16,
        Q.Q4_0,
        Q.Q4_1,
        Q.Q5_0,
        Q.Q5_1,
        Q.Q8_0,
        Q.Q2_K,
        Q.Q3_K,
        Q.Q4_K,
        Q.Q5_K,
        Q.Q6_K,
        Q.IQ4_NL,
        Q.IQ4_XS,
    }
)
"""The types of weights that the kernels multiply."""
_OPERATIONS = ("MUL_MAT", "MUL_MAT_ID", "NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE")
_ADDRESSES = (
    *("ggml_backend_cpu_buffer_type", "ggml_backend_buft_is_host", "ggml_graph_n_nodes", "ggml_graph_node"),
    *("quantize_row_q8_0", "quantize_row_q8_1", "quantize_row_q8_K", "ggml_cpu_fp32_to_fp16", "ggml_cpu_fp32_to_bf16"),
)
_FIRST_OPERATIONS = 64
"""All of ``_OPERATIONS`` are among this many in ``ggml_op``."""
TOLERANCE = 1e-4
"""Largest difference between a kernel's product and ggml's, as a share of the products' size. Seen are 3e-6."""
_ROWS, _COLUMNS, _LENGTH = 17, 5, 256


class _Functions(ctypes.Structure):
    """``Ggml`` of ``kernels/ggml_abi.h``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _ADDRESSES),
        *((name.lower(), ctypes.c_int32) for name in _OPERATIONS),
    )


class _GgufParams(ctypes.Structure):
    """``gguf_init_params``."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


class _Traits(ctypes.Structure):
    """``ggml_type_traits_cpu``."""

    _fields_ = (
        ("from_float", ctypes.c_void_p),
        ("vec_dot", ctypes.c_void_p),
        ("vec_dot_type", ctypes.c_int),
        ("nrows", ctypes.c_int64),
    )


_FromFloat = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_Dot = ctypes.CFUNCTYPE(
    *(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p),
    *(ctypes.c_size_t, ctypes.c_int),
)


def product_kernels(choice: ProductKernels = "auto") -> str:
    """Return the name of the kernel library that multiplies on this machine, or ``ggml``."""
    kernels = find_kernels()
    return "ggml" if choice == "ggml" or isinstance(kernels, Missing) or not kernels.multiplies else kernels.name


@lru_cache(maxsize=1)
def register_products() -> str | Missing:
    """Add the kernels to the backends of the embedded llama.cpp, for all contexts to come, and return their name.

    Returns the reason if there are none for this processor, or if one is not as exact as ggml's. Raises
    ``LogitsUnavailable`` as ``load_library``.
    """
    kernels = find_kernels()
    if isinstance(kernels, Missing):
        return kernels
    library, own = load_library(), ctypes.CDLL(str(kernels.path))
    own.strata_backend.restype, own.strata_backend.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_bool]
    registry = own.strata_backend(ctypes.byref(functions(library)), "avx512_vnni" in processor_flags())
    if not registry:
        return Missing("there are none for products on this processor")
    for type in sorted(PRODUCT_TYPES):
        difference = largest_difference(library, own, type)
        if not difference <= TOLERANCE:
            return Missing(f"products of {type.name} differ from ggml's by {difference:.1e}")
    library.ggml_backend_register.restype, library.ggml_backend_register.argtypes = None, [ctypes.c_void_p]
    library.ggml_backend_register(registry)
    return kernels.name


def keeps_layouts(path: Path) -> bool:
    """Return whether llama.cpp should store the model's weights in its own layouts, which the kernels cannot read.

    So it is if most bytes have a type without kernels for which llama.cpp has such a layout. Of a split model, only the
    given file counts. ``False`` for a file that cannot be read.
    """
    library = load_library()
    library.gguf_init_from_file.restype = ctypes.c_void_p
    library.gguf_init_from_file.argtypes = [ctypes.c_char_p, _GgufParams]
    header = library.gguf_init_from_file(str(path).encode(), _GgufParams(True, None))
    if not header:
        return False
    pointer = ctypes.c_void_p
    count, type, size = (getattr(library, f"gguf_get_{name}") for name in ("n_tensors", "tensor_type", "tensor_size"))
    count.restype, size.restype = ctypes.c_int64, ctypes.c_size_t
    count.argtypes, type.argtypes, size.argtypes = [pointer], [pointer, ctypes.c_int64], [pointer, ctypes.c_int64]
    sizes = Counter[int]()
    for tensor in range(count(header)):
        sizes[type(header, tensor)] += size(header, tensor)
    library.gguf_free.restype, library.gguf_free.argtypes = None, [pointer]
    library.gguf_free(header)
    return 2 * sizes[Q.MXFP4] > sizes.total()


def functions(library: ctypes.CDLL) -> ctypes.Structure:
    """Return what ``strata_backend`` needs of ggml."""
    library.ggml_op_name.restype, library.ggml_op_name.argtypes = ctypes.c_char_p, [ctypes.c_int]
    numbers = {library.ggml_op_name(number).decode(): number for number in range(_FIRST_OPERATIONS)}
    addresses = (ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _ADDRESSES)
    return _Functions(*addresses, *(numbers[name] for name in _OPERATIONS))


def largest_difference(library: ctypes.CDLL, kernels: ctypes.CDLL, type: Q) -> float:
    """Return how far products of ``type`` differ from ggml's, as a share of the root mean square of the products.

    ``kernels``: a library whose ``strata_backend`` was called. Infinite if it does not multiply the type.
    """
    random = np.random.default_rng(int(type))
    weights = random.standard_normal((_ROWS, _LENGTH), np.float32)
    activations = random.standard_normal((_COLUMNS, _LENGTH), np.float32)
    # The largest quants of all types, in both factors: they must fit into the sums.
    weights[0], weights[0, ::32], activations[0] = 1, -1, 1
    block, size = GGML_QUANT_SIZES[type]
    quantized = np.zeros((_ROWS, _LENGTH // block * size), np.uint8)
    found, expected = (np.zeros((_COLUMNS, _ROWS), np.float32) for _ in range(2))
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    quantize, multiply = library.ggml_quantize_chunk, kernels.strata_multiply
    quantize.argtypes = [ctypes.c_int, pointer, pointer, number, number, number, pointer]
    multiply.argtypes = [ctypes.c_int32, pointer, number, number, pointer, number, ctypes.c_int, pointer]
    multiply.restype = ctypes.c_bool
    quantize(type, weights.ctypes.data, quantized.ctypes.data, 0, _ROWS, _LENGTH, None)
    sizes = (_ROWS, _LENGTH, activations.ctypes.data, _COLUMNS)
    if not multiply(type, quantized.ctypes.data, *sizes, 1, found.ctypes.data):
        return float("inf")
    library.ggml_cpu_init()
    library.ggml_get_type_traits_cpu.restype = ctypes.POINTER(_Traits)
    traits = library.ggml_get_type_traits_cpu(type).contents
    to_integers = _FromFloat(library.ggml_get_type_traits_cpu(traits.vec_dot_type).contents.from_float)
    dot = _Dot(traits.vec_dot)
    block, size = GGML_QUANT_SIZES[Q(traits.vec_dot_type)]
    integers = np.zeros(_LENGTH // block * size, np.uint8)
    out, factor, first_row, row_bytes = (
        *(one.ctypes.data for one in (expected, integers, quantized)),
        quantized.strides[0],
    )
    for column in range(_COLUMNS):
        to_integers(activations[column].ctypes.data, factor, _LENGTH)
        for row in range(_ROWS):
            place = out + 4 * (column * _ROWS + row)
            dot(_LENGTH, place, 0, first_row + row * row_bytes, 0, factor, 0, 1)
    return float(abs(found - expected).max() / np.sqrt((expected.astype(np.float64) ** 2).mean()))
