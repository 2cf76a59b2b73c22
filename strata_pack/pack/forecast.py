"""Forecasts what a planned pack needs: memory to serve it, disk to make it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from strata_pack.llama.memory import MemoryNeed, memory_need
from strata_pack.weights.preflight import size_text
from strata_pack.weights.quantize.run import QuantPlan

CONTEXT = 32768
"""Tokens of context for which the KV cache is estimated."""


@dataclass(frozen=True)
class Forecast:
    """Memory to serve a pack, and bytes on disk: the source, the model with its padding, the projector."""

    need: MemoryNeed
    source: int
    model: int

    def lines(self) -> list[str]:
        """Return the forecast as sentences."""
        need = self.need
        parts = [f"{size_text(need.held)} of weights"]
        if need.kv_cache is not None:
            parts.append(f"{size_text(need.kv_cache)} of KV cache for {CONTEXT:,} tokens")
        if need.projector:
            parts.append(f"{size_text(need.projector)} of projector")
        lazy = f"; {size_text(need.lazy)} of n-gram table stay on the disk" if need.lazy else ""
        eyes = f" and {size_text(need.projector)} for the projector" if need.projector else ""
        return [
            f"memory to serve it: {size_text(need.total)} ({', '.join(parts)}, buffers){lazy}",
            f"disk: {size_text(self.model)} for the model{eyes}; the source's {size_text(self.source)} are needed "
            f"until it is whole",
        ]

    def to_dict(self) -> dict[str, Any]:
        need = self.need
        return {
            "memory": need.total,
            "held": need.held,
            "lazy": need.lazy,
            "kv_cache": need.kv_cache,
            "disk": {"source": self.source, "model": self.model, "projector": need.projector},
        }


def forecast(plan: QuantPlan, projector: int, source: int) -> Forecast:
    """Return what the pack of ``plan`` will need; ``projector`` and ``source`` are bytes on disk."""
    metadata = {key: found.value for key, found in plan.source.metadata.items()}
    tensors = [(tensor.name, tensor.nbytes) for tensor in plan.tensors]
    return Forecast(memory_need(metadata, tensors, CONTEXT, projector=projector), source, plan.padded_bytes)
