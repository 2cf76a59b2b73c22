"""Plans the files of a search: all have the source, importances, header and shards of the file that is wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from strata_pack.llama.memory import LAZY_ABOVE, NGRAM_TABLE
from strata_pack.weights.gguf.file import MetaValue
from strata_pack.weights.quantize.imatrix import Imatrix
from strata_pack.weights.quantize.plan import PlannedTensor, QuantPlan, plan_quantization
from strata_pack.weights.quantize.recipes import Recipe
from strata_pack.weights.tensor_source import TensorSource


@dataclass(frozen=True)
class FileShape:
    """What else is written, and what is allowed.

    ``closing``: keys at the header's end; ``keep_split`` and ``split_bytes`` as in ``plan_quantization``; ``reserve``:
    bytes to leave for a larger header; ``projector``: bytes of a projector in the same memory; ``allow_requantize``: a
    tensor that is already quantized may get another type.
    """

    closing: Mapping[str, MetaValue] = field(default_factory=dict)
    keep_split: bool = False
    split_bytes: int | None = None
    reserve: int = 0
    projector: int = 0
    allow_requantize: bool = False


ONE_FILE = FileShape()
"""One file with the header of its source."""


@dataclass(frozen=True)
class Planner:
    """Plans files of one source with one imatrix."""

    source: TensorSource
    imatrix: Imatrix | None
    shape: FileShape

    def plan(self, recipe: Recipe | str) -> QuantPlan:
        """Return the plan of the wanted file; raises as ``plan_quantization``."""
        plan = plan_quantization(
            self.source,
            recipe,
            self.imatrix,
            allow_requantize=True,
            keep_split=self.shape.keep_split,
            split_bytes=self.shape.split_bytes,
        )
        return replace(plan, closing=self.shape.closing)

    def trial(self, recipe: Recipe | str) -> QuantPlan:
        """Return the plan of a trial, which is one file."""
        whole = replace(self.shape, keep_split=False, split_bytes=None)
        return replace(self, shape=whole).plan(recipe)

    def lazy_table(self) -> PlannedTensor | None:
        """Return the n-gram table that stays on the disk, with its type in the default preset; ``None`` without one."""
        tables = (one for one in self.plan("Q4_K_M").tensors if one.name == NGRAM_TABLE)
        return next((one for one in tables if one.nbytes > LAZY_ABOVE), None)
