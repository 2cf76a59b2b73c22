"""Weights of many kinds: what models hold, and what breaks a quantizer that is almost right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Q

from strata_pack.llama.ggml import TABLE_TYPES

Floats = npt.NDArray[np.float32]
Make = Callable[[np.random.Generator, int], npt.NDArray[np.floating]]


def _zeros(rng: np.random.Generator, n: int) -> npt.NDArray[np.floating]:
    weights = rng.normal(size=n) * (rng.random(n) > 0.7)
    weights[: n // 4] = 0
    return weights


def _negative_zeros(rng: np.random.Generator, n: int) -> npt.NDArray[np.floating]:
    return np.where(rng.random(n) < 0.5, -0.0, np.where(rng.random(n) < 0.9, 0.0, rng.normal(size=n)))


def _bfloat(rng: np.random.Generator, n: int) -> npt.NDArray[np.floating]:
    bits = (rng.normal(size=n) * 0.02).astype(np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def _scales(rng: np.random.Generator, n: int) -> npt.NDArray[np.floating]:
    return rng.normal(size=n) * np.repeat(np.exp(4 * rng.normal(size=-(-n // 16))), 16)[:n]


def _constant(rng: np.random.Generator, n: int) -> npt.NDArray[np.floating]:
    return np.repeat(rng.normal(size=-(-n // 32)), 32)[:n]


def _nearly_constant(rng: np.random.Generator, n: int) -> npt.NDArray[np.floating]:
    values = _constant(rng, n).astype(np.float32)
    return (values.view(np.int32) + rng.integers(-3, 4, n, dtype=np.int32)).view(np.float32)


DISTRIBUTIONS: dict[str, Make] = {
    "normal": lambda rng, n: rng.normal(size=n) * 0.02,
    "student": lambda rng, n: rng.standard_t(3, n) * 0.02,
    "cauchy": lambda rng, n: rng.standard_cauchy(n),
    "zeros": _zeros,
    "negative zeros": _negative_zeros,
    "bfloat16": _bfloat,
    "float16": lambda rng, n: (rng.normal(size=n) * 0.02).astype(np.float16),
    "integers": lambda rng, n: rng.integers(-8, 8, n).astype(np.float64),
    "positive": lambda rng, n: np.abs(rng.normal(size=n)) + 1,
    "negative": lambda rng, n: -np.abs(rng.normal(size=n)) - 1,
    "tiny": lambda rng, n: rng.normal(size=n) * 1e-20,
    "huge": lambda rng, n: rng.normal(size=n) * 1e6,
    "overflowing": lambda rng, n: rng.normal(size=n) * np.repeat(10.0 ** rng.integers(15, 38, -(-n // 64)), 64)[:n],
    "scales": _scales,
    "denormal": lambda rng, n: rng.normal(size=n) * 1e-39,
    "constant": _constant,
    "nearly constant": _nearly_constant,
    "one of many": lambda rng, n: np.where(rng.random(n) < 0.02, rng.normal(size=n), 0.0),
}


def distributions_of(type: Q) -> list[str]:
    """Return the names of those that ``type`` can hold: ggml ends the process where a search on a grid overflows."""
    return [name for name in DISTRIBUTIONS if type not in TABLE_TYPES or name != "overflowing"]


def weights(name: str, rows: int, columns: int, seed: int = 1) -> Floats:
    """Return ``rows`` of ``columns`` weights of the distribution ``name``, always the same for one ``seed``."""
    rng = np.random.default_rng([seed, *name.encode()])
    found = DISTRIBUTIONS[name](rng, rows * columns)
    limit = np.finfo(np.float32).max
    return np.clip(found, -limit, limit).astype(np.float32).reshape(rows, columns)


def importances(columns: int, seed: int = 1) -> Floats:
    """Return importances of ``columns`` columns: wide range, some of them zero."""
    rng = np.random.default_rng([seed, columns])
    found = rng.gamma(0.5, size=columns) * np.exp(rng.normal(size=columns))
    found[rng.random(columns) < 0.05] = 0
    return found.astype(np.float32)
