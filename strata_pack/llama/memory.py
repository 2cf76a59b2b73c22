"""Estimates from a header the memory for a model and its context, and determines the free memory.

The KV cache has, for every token and layer, one key and one value of each KV head in 16 bits (llama.cpp's default).
Layers with linear attention have no cache; layers with a sliding window cache the window and one batch per slot. An
n-gram table does not count: llama-server reads its rows from the disk on demand (``--lazy-mode auto``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from strata_pack.errors import BadInput

KV_BYTES = 2
"""Bytes of one number in the KV cache (F16)."""

OVERHEAD = 256 << 20
"""Estimated bytes for compute buffers and the program: a few hundred MB for common models."""

NGRAM_TABLE = "per_layer_token_embd.weight"
"""The tensor whose rows llama.cpp reads individually."""

LAZY_ABOVE = 4 << 30
"""A table larger than this many bytes stays on the disk."""

BATCH = 512
"""Tokens per batch of llama.cpp: the cache of a sliding window has room for a batch too."""

WINDOW_PERIODS: Mapping[str, int] = {
    "gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "cohere2": 4, "exaone4": 4, "llama4": 4, "olmo2": 4,
}  # fmt: skip
"""By architecture, the interval of layers with attention over the whole context (llama.cpp's ``src/models``)."""


@dataclass(frozen=True)
class MemoryNeed:
    """Needed bytes: ``held`` for weights in memory, ``lazy`` for weights that stay on the disk, KV cache, projector.

    ``kv_cache`` is None if the header lacks the needed numbers.
    """

    held: int
    lazy: int
    kv_cache: int | None
    projector: int = 0

    @property
    def total(self) -> int:
        """Bytes of memory to serve it, with llama.cpp's own buffers."""
        return self.held + (self.kv_cache or 0) + self.projector + OVERHEAD


@dataclass(frozen=True)
class Room:
    """``free`` bytes in ``place``; layers that do not fit may use ``main_memory`` bytes of main memory."""

    free: int
    place: str
    main_memory: int = 0


@dataclass(frozen=True)
class Fit:
    """A model's need and the free memory. ``runs``: it fits, possibly with layers in main memory."""

    need: MemoryNeed
    room: Room

    @property
    def fits(self) -> bool:
        return self.need.total <= self.room.free

    @property
    def runs(self) -> bool:
        return self.need.total <= self.room.free + self.room.main_memory


def memory_need(
    metadata: Mapping[str, object],
    tensors: Iterable[tuple[str, int]],
    context: int,
    *,
    slots: int = 1,
    projector: int = 0,
) -> MemoryNeed:
    """Return the memory that a server needs for the model with ``context`` tokens in all ``slots`` together.

    ``metadata`` are the plain values of a GGUF header, ``tensors`` names and bytes of all its tensors, ``projector``
    the bytes of a projector next to it.
    """
    held = lazy = 0
    for name, size in tensors:
        if name == NGRAM_TABLE and size > LAZY_ABOVE:
            lazy += size
        else:
            held += size
    try:
        cache: int | None = kv_cache_bytes(metadata, context, slots)
    except BadInput:
        cache = None
    return MemoryNeed(held, lazy, cache, projector)


MOST_LAYERS = 512
"""``LLAMA_MAX_LAYERS`` of llama.cpp."""


def kv_cache_bytes(metadata: Mapping[str, object], context: int, slots: int = 1) -> int:
    """Return the size of the KV cache for ``context`` tokens of all ``slots``, from a GGUF's metadata (plain values).

    Raises ``BadInput`` if the header lacks the model's shape.
    """
    architecture = metadata.get("general.architecture")

    def numbers(key: str, default: int | None = None) -> int | list[int]:
        value = metadata.get(f"{architecture}.{key}", default)
        if isinstance(value, list) and all(isinstance(entry, int) for entry in value):
            return value
        if not isinstance(value, int):
            raise BadInput(f"the header has no {architecture}.{key}")
        return value

    def number(key: str, default: int | None = None) -> int:
        value = numbers(key, default)
        if isinstance(value, list):
            raise BadInput(f"{architecture}.{key} in the header is a list, not a number")
        return value

    layers, heads = number("block_count"), numbers("attention.head_count")
    if not 0 <= layers <= MOST_LAYERS:
        raise BadInput(
            f"the header's {architecture}.block_count is {layers}; at most {MOST_LAYERS} layers are possible"
        )
    kv_heads = numbers("attention.head_count_kv", heads if isinstance(heads, int) else None)
    widest = max(heads, default=1) if isinstance(heads, list) else heads
    width = number("embedding_length")
    default = width // max(widest, 1)
    key, value = number("attention.key_length", default), number("attention.value_length", default)
    per_layer = kv_heads if isinstance(kv_heads, list) else [kv_heads] * layers
    kept = _kept_tokens(metadata, str(architecture), len(per_layer), context, slots)
    return KV_BYTES * (key + value) * sum(map(int.__mul__, per_layer, kept))


def _kept_tokens(metadata: Mapping[str, object], architecture: str, layers: int, context: int, slots: int) -> list[int]:
    """Return the number of tokens that each layer's cache has room for."""
    kept = [context] * layers
    window = metadata.get(f"{architecture}.attention.sliding_window")
    if isinstance(window, int) and window > 0:
        narrow = min(context, slots * (window + BATCH))
        kept = [narrow if slides else context for slides in _sliding(metadata, architecture, layers)]
    for layer in range(layers):
        if _is_linear(metadata, architecture, layer):
            kept[layer] = 0
    return kept


def _sliding(metadata: Mapping[str, object], architecture: str, layers: int) -> list[bool]:
    pattern = metadata.get(f"{architecture}.attention.sliding_window_pattern", WINDOW_PERIODS.get(architecture, 1))
    if isinstance(pattern, list):
        return [bool(slides) for slides in pattern[:layers]] + [False] * (layers - len(pattern))
    period = pattern if isinstance(pattern, int) and pattern > 0 else 1
    return [layer % period < period - 1 for layer in range(layers)]


def _is_linear(metadata: Mapping[str, object], architecture: str, layer: int) -> bool:
    listed = metadata.get(f"{architecture}.attention.recurrent_layers")
    if isinstance(listed, list):
        return layer < len(listed) and bool(listed[layer])
    interval = metadata.get(f"{architecture}.full_attention_interval")
    return isinstance(interval, int) and interval > 1 and (layer + 1) % interval != 0


def main_memory() -> Room:
    """Return the main memory in bytes for a new process: the smaller of the system's and the control group's."""
    return Room(min(_system_memory(), *_group_memory()), "main memory")


def _system_memory() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        import os

        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


_GROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
)
"""Control groups, version 2 and 1: folder, limit, usage, and the reclaimable part of the usage (cached files)."""


def _group_memory() -> list[int]:
    found = []
    for folder, limit_file, used_file, cached in _GROUPS:
        limit, used = _read_number(f"{folder}/{limit_file}"), _read_number(f"{folder}/{used_file}")
        if limit is not None and used is not None:
            found.append(max(limit - used + _read_entry(f"{folder}/memory.stat", cached), 0))
    return found


def _read_number(path: str) -> int | None:
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _read_entry(path: str, name: str) -> int:
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
