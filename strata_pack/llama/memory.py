"""Estimates before loading whether a model and its context fit in memory: weights plus KV cache.

The cache holds, for every token and every layer, one key and one value of each KV head in 16 bits (llama.cpp's
default). Layers with a sliding window or with recurrent state need less, so for them the figure is an upper bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from strata_pack.errors import BadInput

KV_BYTES = 2
"""Bytes of one number in the KV cache (F16)."""

OVERHEAD = 256 << 20
"""Bytes for compute buffers and the program: a few hundred MB for common models."""


@dataclass(frozen=True)
class Fit:
    """Bytes needed and there. ``total`` includes an allowance for compute buffers."""

    weights: int
    kv_cache: int
    available: int
    place: str

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache + OVERHEAD

    @property
    def fits(self) -> bool:
        return self.total <= self.available


def kv_cache_bytes(metadata: Mapping[str, object], context: int) -> int:
    """Return the size of the KV cache for ``context`` tokens, from a GGUF's metadata (plain values).

    Raises ``BadInput`` if the model does not say its shape.
    """
    architecture = metadata.get("general.architecture")

    def number(key: str, default: int | None = None) -> int | list[int]:
        value = metadata.get(f"{architecture}.{key}", default)
        if isinstance(value, list) and all(isinstance(entry, int) for entry in value):
            return value
        if not isinstance(value, int):
            raise BadInput(f"the model does not say its {architecture}.{key}")
        return value

    layers, heads = number("block_count"), number("attention.head_count")
    assert isinstance(layers, int)
    kv_heads = number("attention.head_count_kv", heads if isinstance(heads, int) else None)
    widest = max(heads) if isinstance(heads, list) else heads
    width = number("embedding_length")
    assert isinstance(width, int)
    default = width // max(widest, 1)
    key, value = number("attention.key_length", default), number("attention.value_length", default)
    assert isinstance(key, int)
    assert isinstance(value, int)
    per_layer = kv_heads if isinstance(kv_heads, list) else [kv_heads] * layers
    return context * KV_BYTES * (key + value) * sum(per_layer)


def available_memory() -> int:
    """Return the bytes of main memory that a new program can have; the smaller of the system's and the cgroup's."""
    system = _meminfo()
    limit, used = _read_number("/sys/fs/cgroup/memory.max"), _read_number("/sys/fs/cgroup/memory.current")
    return system if limit is None or used is None else min(system, max(limit - used, 0))


def _meminfo() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        import os

        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def _read_number(path: str) -> int | None:
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
