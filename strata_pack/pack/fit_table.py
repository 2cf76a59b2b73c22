"""Tabulates, before any download, which models of a repository fit in which memory with which context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strata_pack.llama.memory import Fit, MemoryNeed, Room, memory_need
from strata_pack.progress import Progress
from strata_pack.weights.hub.models import RemoteModel, remote_models
from strata_pack.weights.source import HubSource

GIB = 1 << 30

MEMORIES = tuple(size * GIB for size in (4, 6, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256, 384, 512))
"""Bytes of memory of common GPUs and machines."""

LEAST_CONTEXT = 4096
LONGEST_CONTEXT = 1 << 20
"""The context sizes tried, in tokens, each twice the previous one, up to the model's training context."""


@dataclass(frozen=True)
class ModelFit:
    """One model: its ``need`` at the requested context, whether it fits on this machine, and the longest context
    that fits (0: none) by bytes of memory."""

    name: str
    size: int
    need: MemoryNeed
    fits: bool
    trained_context: int | None
    contexts: dict[int, int]

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        need = self.need
        return {
            "file": self.name,
            "size": self.size,
            "weights": need.held,
            "lazy": need.lazy,
            "kv_cache": need.kv_cache,
            "total": need.total,
            "fits": self.fits,
            "trained_context": self.trained_context,
            "contexts": {str(memory): context for memory, context in self.contexts.items()},
        }


def fit_table(source: HubSource, context: int, room: Room, progress: Progress | None = None) -> list[ModelFit]:
    """Return a row for each GGUF model of ``source``, the smallest first; only the headers are read.

    ``room`` is the memory of this machine, ``context`` the requested tokens. An n-gram table stays on the disk. Raises
    as ``remote_models``.
    """
    return sorted((_row(model, context, room) for model in remote_models(source, progress)), key=lambda row: row.size)


def _row(model: RemoteModel, context: int, room: Room) -> ModelFit:
    metadata = {
        key: value.value for key, value in model.headers[0].metadata.items() if not key.startswith("tokenizer.")
    }
    tensors = [(info.name, info.nbytes) for header in model.headers for info in header.tensors]
    trained = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    longest = trained if isinstance(trained, int) and trained > 0 else None
    needs = {tried: memory_need(metadata, tensors, tried) for tried in _contexts(longest)}
    need = memory_need(metadata, tensors, context)
    contexts = {
        memory: max((tried for tried, one in needs.items() if one.total <= memory), default=0) for memory in MEMORIES
    }
    return ModelFit(model.name, model.size, need, Fit(need, room).fits, longest, contexts)


def _contexts(trained: int | None) -> list[int]:
    last = min(trained or LONGEST_CONTEXT, LONGEST_CONTEXT)
    tried = [LEAST_CONTEXT << step for step in range(10) if LEAST_CONTEXT << step < last]
    return [*tried, last]


def shown_memories(rows: Sequence[ModelFit]) -> list[int]:
    """Return the memory sizes to show: from the smallest in which a model fits to the smallest in which all models
    fit."""
    best = [max(row.contexts.values()) for row in rows]
    some = [memory for memory in MEMORIES if any(row.contexts[memory] for row in rows)]
    whole = [
        memory for memory in some if all(row.contexts[memory] == most for row, most in zip(rows, best, strict=True))
    ]
    return [memory for memory in some if not whole or memory <= whole[0]]
