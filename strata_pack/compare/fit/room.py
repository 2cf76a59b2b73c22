"""Finds what a budget leaves for the tensors of a model, and the types that each of them may get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from strata_pack.compare.fit.budget import FitBudget
from strata_pack.compare.fit.choose import Option, smallest
from strata_pack.compare.fit.errors import Errors, fits_rows
from strata_pack.compare.fit.planner import FileShape, Planner
from strata_pack.errors import WrongUse
from strata_pack.llama.ggml import FLOAT_TYPES, Ggml
from strata_pack.llama.ggml_types import GGML_QUANT_SIZES
from strata_pack.llama.ggml_types import GGMLQuantizationType as Q
from strata_pack.weights.gguf.file import align, tensor_nbytes
from strata_pack.weights.quantize.plan import QuantPlan
from strata_pack.weights.quantize.roles import Role, is_quantizable, role_of
from strata_pack.weights.quantize.run import output_sizes
from strata_pack.weights.tensor_source import SourceTensor

CANDIDATES = (
    *(Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.Q8_0),
    *(Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.IQ4_NL, Q.IQ4_XS, Q.IQ3_S, Q.F16),
)
SMALL_CANDIDATES = (Q.IQ3_XXS, Q.IQ2_S, Q.IQ2_XS, Q.IQ2_XXS)
"""Types tried only if there are importances, and the budget is below ``SMALL_BITS`` or too small for the others: their
search is slow."""
SMALL_BITS = 3.5
LEAST_BITS = {Role.OUTPUT: 4.0, Role.EMBEDDING: 4.0}
"""Minimum bits per weight, by role: every token passes through these tensors; llama-quantize's presets do the same."""


@dataclass(frozen=True)
class FileRoom:
    """The room in a file: ``limit`` bytes in all, ``taken`` by the header and by tensors that keep their type.

    ``opened`` are the other tensors, ``types`` the types that each may get.
    """

    planner: Planner
    budget: FitBudget
    plan: QuantPlan
    opened: Sequence[SourceTensor]
    types: Mapping[str, Sequence[Q]]
    limit: int
    taken: int

    @classmethod
    def of(cls, planner: Planner, budget: FitBudget) -> FileRoom:
        """Return the room that ``budget`` leaves; raises as ``plan_quantization`` and ``file_bytes``."""
        plan, ggml = planner.plan("Q8_0"), Ggml.load()
        opened = [
            tensor.source
            for tensor in plan.tensors
            if is_quantizable(tensor.name, tensor.source.shape) and ggml.can_dequantize(tensor.source.type)
        ]
        names = {tensor.name for tensor in opened}
        fixed = sum(align(tensor.nbytes, plan.alignment) for tensor in plan.tensors if tensor.name not in names)
        header = sum(output_sizes(plan)) - plan.padded_bytes + planner.shape.reserve
        limit = _limit(budget, plan, header, planner.shape.projector)
        # A card does not hold the table, so it gets a type of its own and its bytes come on top.
        table = planner.lazy_table() if budget.context is not None else None
        limit += 0 if table is None else align(table.nbytes, plan.alignment)
        bits = 8 * (limit - fixed - header) / max(sum(tensor.elements for tensor in opened), 1)
        own = {} if table is None else {table.name: [table.type]}
        few, all_ = (_types(opened, planner.shape, small) | own for small in ((), SMALL_CANDIDATES))
        room = cls(planner, budget, plan, opened, few, limit, fixed + header)
        is_small = (
            bits < SMALL_BITS or room.least({name: dict.fromkeys(some, 0.0) for name, some in few.items()}) > room.free
        )
        return replace(room, types=all_) if is_small and planner.imatrix is not None else room

    @property
    def free(self) -> int:
        """The bytes for the ``opened`` tensors."""
        return self.limit - self.taken

    @property
    def holds_source(self) -> bool:
        """Whether all tensors may keep the type that they have."""
        return sum(align(tensor.nbytes, self.plan.alignment) for tensor in self.opened) <= self.free

    def options(self, tensor: SourceTensor, errors: Mapping[Q, float], cost: float) -> list[Option[Q]]:
        """Return the options of a tensor with ``errors`` by type, each of which costs ``cost`` nats per unit."""
        least = LEAST_BITS.get(role_of(tensor.name), 0.0)
        return [
            Option(type, align(tensor_nbytes(tensor.shape, type), self.plan.alignment), cost * error)
            for type, error in errors.items()
            if type is tensor.type
            or (fits_rows(type, tensor) and 8 * GGML_QUANT_SIZES[type][1] / GGML_QUANT_SIZES[type][0] >= least)
        ]

    def least(self, errors: Errors) -> int:
        """Return the bytes of the smallest types with an error in ``errors``."""
        return smallest({tensor.name: self.options(tensor, errors[tensor.name], 1.0) for tensor in self.opened})

    def check(self, errors: Errors) -> None:
        """Raise ``WrongUse`` if the smallest types with an error in ``errors`` are larger than the room."""
        least = self.least(errors)
        if least <= self.free:
            return
        more = ["allow more"]
        if not self.planner.shape.allow_requantize and any(one.type not in FLOAT_TYPES for one in self.opened):
            more.append("start from the F16 or BF16 model, or quantize it again with --allow-requantize")
        if self.planner.imatrix is None:
            more.append("give an --imatrix, which allows smaller types")
        problem = f"the smallest mix takes {least + self.taken:,} bytes and the budget is {self.limit:,}"
        raise WrongUse(problem, where=f"--fit {self.budget.text}", remedy="; ".join(more))


def _limit(budget: FitBudget, plan: QuantPlan, header: int, projector: int) -> int:
    """Return the maximum bytes of the file. Bits per weight are those of the tensors, without the header."""
    metadata = {key: value.value for key, value in {**plan.source.metadata, **plan.closing}.items()}
    limit = budget.file_bytes(plan.parameters, metadata)
    if budget.bits is not None:
        return limit + header
    return limit if budget.context is None else limit - projector


def _types(opened: Sequence[SourceTensor], shape: FileShape, small: Sequence[Q]) -> dict[str, Sequence[Q]]:
    """Return the types that each tensor may get, ``small`` ones among them."""
    return {
        tensor.name: sorted({*CANDIDATES, *small, tensor.type})
        if shape.allow_requantize or tensor.type in FLOAT_TYPES
        else [tensor.type]
        for tensor in opened
    }
