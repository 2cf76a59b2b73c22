"""Forecasts what a planned pack needs: memory to serve it, disk to make it.

A table of n-grams is no part of the memory: llama-server reads its rows from the disk as they are needed (``-lzm``,
on by itself above 4 GiB). Layers with linear attention keep no keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strata_pack.errors import BadInput
from strata_pack.llama.memory import OVERHEAD, kv_cache_bytes
from strata_pack.weights.gguf.file import MetaValue
from strata_pack.weights.preflight import size_text
from strata_pack.weights.quantize.roles import PER_LAYER_EMBEDDING
from strata_pack.weights.quantize.run import QuantPlan

CONTEXT = 32768
"""Tokens that the KV cache is worked out for."""
LAZY_FROM = 4 << 30
"""Bytes from which on llama-server leaves the table on the disk."""


@dataclass(frozen=True)
class Forecast:
    """Bytes: ``held`` weights in memory, ``lazy`` ones on the disk, the KV cache; on the disk source, model, projector.

    ``kv_cache`` is None where the model does not say enough.
    """

    held: int
    lazy: int
    kv_cache: int | None
    source: int
    model: int
    projector: int

    @property
    def memory(self) -> int:
        """Bytes of memory to serve it, with llama.cpp's own buffers."""
        return self.held + (self.kv_cache or 0) + self.projector + OVERHEAD

    def lines(self) -> list[str]:
        """Return the forecast as sentences."""
        parts = [f"{size_text(self.held)} of weights"]
        if self.kv_cache is not None:
            parts.append(f"{size_text(self.kv_cache)} of KV cache for {CONTEXT:,} tokens")
        if self.projector:
            parts.append(f"{size_text(self.projector)} of projector")
        lazy = f"; {size_text(self.lazy)} of n-gram table stay on the disk" if self.lazy else ""
        eyes = f" and {size_text(self.projector)} for the projector" if self.projector else ""
        return [
            f"memory to serve it: {size_text(self.memory)} ({', '.join(parts)}, buffers){lazy}",
            f"disk: {size_text(self.model)} for the model{eyes}; the source's {size_text(self.source)} are needed "
            f"until it is whole",
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "memory": self.memory,
            "held": self.held,
            "lazy": self.lazy,
            "kv_cache": self.kv_cache,
            "disk": {"source": self.source, "model": self.model, "projector": self.projector},
        }


def forecast(plan: QuantPlan, projector: int, source: int) -> Forecast:
    """Return what the pack of ``plan`` will need; ``projector`` and ``source`` are bytes on the disk."""
    table = sum(tensor.nbytes for tensor in plan.tensors if tensor.name == PER_LAYER_EMBEDDING)
    lazy = table if table >= LAZY_FROM else 0
    cache = _kv_cache(plan.source.metadata)
    return Forecast(plan.data_bytes - lazy, lazy, cache, source, plan.padded_bytes, projector)


def _kv_cache(metadata: Mapping[str, MetaValue]) -> int | None:
    values = {key: found.value for key, found in metadata.items() if not key.startswith("tokenizer.")}
    architecture = values.get("general.architecture")
    linear = values.get(f"{architecture}.attention.recurrent_layers")
    heads = values.get(f"{architecture}.attention.head_count_kv")
    if linear is not None and isinstance(heads, int):
        values[f"{architecture}.attention.head_count_kv"] = [0 if recurrent else heads for recurrent in linear]
    try:
        return kv_cache_bytes(values, CONTEXT)
    except BadInput:
        return None
