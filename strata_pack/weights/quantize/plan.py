"""Plans a quantization: type, size and position of every tensor, before any weight is read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypedDict

from strata_pack.errors import BadInput, WrongUse
from strata_pack.llama.ggml import FLOAT_TYPES, Ggml
from strata_pack.llama.ggml_types import GGML_QUANT_SIZES
from strata_pack.llama.ggml_types import GGMLQuantizationType as Q
from strata_pack.weights.gguf.file import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAX_SHARDS,
    MetaValue,
    TensorInfo,
    align,
    tensor_nbytes,
)
from strata_pack.weights.quantize.assign import Assigner, read_facts
from strata_pack.weights.quantize.imatrix import Imatrix
from strata_pack.weights.quantize.presets import fallback, find_preset, needs_imatrix
from strata_pack.weights.quantize.recipes import Recipe, TypeRule
from strata_pack.weights.quantize.roles import PER_LAYER_EMBEDDING, Role, is_quantizable, role_of, sort_key
from strata_pack.weights.tensor_source import SourceTensor, TensorSource

QUANTIZATION_VERSION = 2
"""``general.quantization_version``: the layout of the block types (GGML_QNT_VERSION)."""


@dataclass(frozen=True)
class PlannedTensor:
    """The plan of one tensor."""

    source: SourceTensor
    type: Q
    base_type: Q
    """The type that the base preset alone would choose."""
    shard: int = 0
    weighted: bool = False
    """Whether importances are used."""

    @property
    def name(self) -> str:
        return self.source.name

    @cached_property
    def nbytes(self) -> int:
        return tensor_nbytes(self.source.shape, self.type)

    @property
    def changed(self) -> bool:
        """Whether its bytes change."""
        return self.type is not self.source.type

    @property
    def requantized(self) -> bool:
        """Whether it is already quantized and gets another type."""
        return self.changed and self.source.type not in FLOAT_TYPES


PlannedTensorDict = TypedDict(
    "PlannedTensorDict",
    {
        "name": str,
        "shape": list[int],
        "from": str,
        "type": str,
        "bytes": int,
        "bits_per_weight": float,
        "base_type": str,
        "imatrix": bool,
    },
)
"""One tensor of a plan as JSON."""


class QuantPlanDict(TypedDict):
    """A ``QuantPlan`` as JSON. Sizes in bytes."""

    source: str
    base: str
    recipe: str
    imatrix: dict[Literal["sha256"], str] | None
    shards: int
    parameters: int
    data_bytes: int
    source_bytes: int
    bits_per_weight: float
    type_counts: dict[str, int]
    tensors: list[PlannedTensorDict]


@dataclass(frozen=True)
class QuantPlan:
    """Everything that determines the bytes of the result, except overridden metadata."""

    source: TensorSource
    recipe: Recipe
    tensors: tuple[PlannedTensor, ...]
    """The tensors in writing order."""
    imatrix: Imatrix | None = None
    shards: int = 1
    split_by_size: bool = False
    closing: Mapping[str, MetaValue] = field(default_factory=dict)
    """Keys at the header's end, which replace the source's."""

    @property
    def alignment(self) -> int:
        stored = self.source.metadata.get(ALIGNMENT_KEY)
        return DEFAULT_ALIGNMENT if stored is None else int(stored.value)

    @property
    def data_bytes(self) -> int:
        """The bytes of all tensors, without headers and padding."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def padded_bytes(self) -> int:
        """The bytes of all tensors including padding, without headers."""
        return sum(align(tensor.nbytes, self.alignment) for tensor in self.tensors)

    @property
    def source_bytes(self) -> int:
        return sum(tensor.source.nbytes for tensor in self.tensors)

    @property
    def parameters(self) -> int:
        return sum(tensor.source.elements for tensor in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.data_bytes / self.parameters if self.parameters else 0.0

    @property
    def types(self) -> Mapping[str, str]:
        """The names of the types, by tensor."""
        return {tensor.name: tensor.type.name for tensor in self.tensors}

    @property
    def type_counts(self) -> Mapping[str, int]:
        """The number of tensors by type name."""
        return dict(sorted(Counter(tensor.type.name for tensor in self.tensors).items()))

    @property
    def requantized(self) -> tuple[PlannedTensor, ...]:
        """The tensors that are quantized a second time."""
        return tuple(tensor for tensor in self.tensors if tensor.requantized)

    def to_dict(self) -> QuantPlanDict:
        """Return the plan as JSON data: sizes in bytes, types by name."""
        return {
            "source": self.source.label,
            "base": self.recipe.base.name,
            "recipe": self.recipe.label,
            "imatrix": None if self.imatrix is None else {"sha256": self.imatrix.sha256},
            "shards": self.shards,
            "parameters": self.parameters,
            "data_bytes": self.data_bytes,
            "source_bytes": self.source_bytes,
            "bits_per_weight": round(self.bits_per_weight, 4),
            "type_counts": dict(self.type_counts),
            "tensors": [
                {
                    "name": tensor.name,
                    "shape": list(tensor.source.shape),
                    "from": tensor.source.type.name,
                    "type": tensor.type.name,
                    "bytes": tensor.nbytes,
                    "bits_per_weight": round(8 * tensor.nbytes / tensor.source.elements, 4),
                    "base_type": tensor.base_type.name,
                    "imatrix": tensor.weighted,
                }
                for tensor in self.tensors
            ],
        }


def plan_quantization(
    source: TensorSource,
    recipe: Recipe | str = "Q4_K_M",
    imatrix: Imatrix | None = None,
    *,
    allow_requantize: bool = False,
    keep_split: bool = False,
    split_bytes: int | None = None,
) -> QuantPlan:
    """Choose the type of every tensor of ``source`` and check that the plan is possible.

    ``recipe`` is a ``Recipe`` or the name of a preset. ``split_bytes`` starts a new file where the tensors of one would
    take more (a larger tensor has a separate file), like llama-gguf-split. Raises ``BadInput`` for a source that is not
    a model or is already quantized (unless ``allow_requantize``), and ``WrongUse`` for a rule that matches nothing and
    for a type that needs a missing imatrix.
    """
    if isinstance(recipe, str):
        recipe = Recipe(find_preset(recipe))
    ordered = _in_writing_order(source.tensors, keep_split=keep_split)
    base_types = _base_types(source, recipe, ordered, has_imatrix=imatrix is not None)
    planned = []
    used: set[TypeRule] = set()
    for tensor in ordered:
        base = base_types[tensor.name]
        type = base
        if _is_open(tensor, recipe):
            rule = next((rule for rule in recipe.rules if rule.matches(tensor.name)), None)
            if rule is not None:
                used.add(rule)
            type = fallback(_explicit(tensor, recipe, rule, tied=_is_tied(ordered)) or base, tensor.row_length)
        weighted = imatrix is not None and type not in FLOAT_TYPES and imatrix.check(tensor)
        shard = tensor.shard if keep_split else 0
        planned.append(PlannedTensor(tensor, type, base, shard, weighted and type is not tensor.type))
    shards = source.shards if keep_split else 1
    if split_bytes is not None:
        if keep_split:
            raise WrongUse("--keep-split and --split-max-size exclude each other", remedy="give one of the two")
        planned = _split_by_size(planned, split_bytes)
        shards = planned[-1].shard + 1
    plan = QuantPlan(source, recipe, tuple(planned), imatrix, shards, split_bytes is not None and shards > 1)
    _refuse_idle_rules(recipe, used, ordered)
    _refuse_missing_importances(plan)
    _refuse_requantizing(plan, allow=allow_requantize)
    return plan


def types_by_recipe(
    metadata: Mapping[str, MetaValue], tensors: Sequence[TensorInfo], recipe: Recipe, *, has_imatrix: bool
) -> dict[str, Q]:
    """Return the types that ``recipe`` chooses, by tensor name, from a finished model's header.

    Tensors that keep the source's type (norms and similar ones, and all tensors of a copy) are left out.
    """
    ordered = sorted((SourceTensor(t.name, t.shape, Q.F32) for t in tensors), key=lambda tensor: sort_key(tensor.name))
    assigner = Assigner(recipe.base, read_facts(metadata, has_imatrix=has_imatrix), [t.name for t in ordered])
    mixed, tied = recipe.base.is_block and not recipe.pure, _is_tied(ordered)
    types = {}
    for tensor in ordered:
        kept = recipe.base.copy or (recipe.leave_output and role_of(tensor.name) is Role.OUTPUT)
        if kept or not is_quantizable(tensor.name, tensor.shape):
            continue
        base = fallback(assigner.type_for(tensor) if mixed else recipe.base.base, tensor.row_length)
        rule = next((rule for rule in recipe.rules if rule.matches(tensor.name)), None)
        types[tensor.name] = fallback(_explicit(tensor, recipe, rule, tied=tied) or base, tensor.row_length)
    return types


def _split_by_size(planned: list[PlannedTensor], limit: int) -> list[PlannedTensor]:
    shard, size, placed = 0, 0, []
    for tensor in planned:
        nbytes = align(tensor.nbytes, DEFAULT_ALIGNMENT)
        if size and size + nbytes > limit:
            shard, size = shard + 1, 0
        size += nbytes
        placed.append(replace(tensor, shard=shard))
    if shard >= MAX_SHARDS:
        raise WrongUse(f"{shard + 1} files are too many", where="--split-max-size", remedy="give a larger size")
    return placed


def _in_writing_order(tensors: Iterable[SourceTensor], *, keep_split: bool) -> list[SourceTensor]:
    if keep_split:
        return sorted(tensors, key=lambda tensor: (tensor.shard, tensor.position))
    return sorted(tensors, key=lambda tensor: sort_key(tensor.name))


def _is_tied(tensors: Iterable[SourceTensor]) -> bool:
    return all(tensor.name != "output.weight" for tensor in tensors)


def _is_open(tensor: SourceTensor, recipe: Recipe) -> bool:
    """Return whether the recipe chooses the tensor's type."""
    if recipe.base.copy or (recipe.leave_output and role_of(tensor.name) is Role.OUTPUT):
        return False
    return is_quantizable(tensor.name, tensor.shape) and Ggml.load().can_dequantize(tensor.type)


def _base_types(
    source: TensorSource, recipe: Recipe, ordered: list[SourceTensor], *, has_imatrix: bool
) -> dict[str, Q]:
    """Return the types that the base preset alone chooses, by tensor name."""
    preset = recipe.base
    assigner = Assigner(
        preset, read_facts(source.metadata, has_imatrix=has_imatrix), [tensor.name for tensor in ordered]
    )
    types: dict[str, Q] = {}
    for tensor in ordered:
        if not _is_open(tensor, recipe):
            types[tensor.name] = tensor.type
            continue
        mixed = preset.is_block and not recipe.pure
        type = assigner.type_for(tensor) if mixed else preset.base
        types[tensor.name] = fallback(type, tensor.row_length)
    return types


def _explicit(tensor: SourceTensor, recipe: Recipe, rule: TypeRule | None, *, tied: bool) -> Q | None:
    """Return the type that a flag or rule gives. The two flags for single tensors take precedence.

    An n-gram table is an embedding too, but so large that a rule may select it separately.
    """
    role = role_of(tensor.name)
    named_apart = rule is not None and tensor.name == PER_LAYER_EMBEDDING
    if role is Role.EMBEDDING and recipe.embedding is not None and not named_apart:
        return recipe.embedding
    if recipe.output is not None and (role is Role.OUTPUT or (role is Role.EMBEDDING and tied)):
        return recipe.output
    return None if rule is None else rule.type


def _refuse_idle_rules(recipe: Recipe, used: set[TypeRule], tensors: list[SourceTensor]) -> None:
    for rule in recipe.rules:
        if rule in used:
            continue
        named = [tensor.name for tensor in tensors if rule.matches(tensor.name)]
        if not named:
            problem, remedy = "the rule matches no tensor", f"names look like {tensors[-1].name}"
        elif any(is_quantizable(tensor.name, tensor.shape) for tensor in tensors if tensor.name in named):
            problem, remedy = f"an earlier rule or flag matches {named[0]}", "put the more specific rule first"
        else:
            problem, remedy = f"the rule matches only tensors that are never quantized ({named[0]})", "drop it"
        raise WrongUse(problem, where=rule.origin or rule.pattern.pattern, remedy=remedy)


def _refuse_missing_importances(plan: QuantPlan) -> None:
    ggml = Ggml.load()
    for tensor in plan.tensors:
        if tensor.weighted or not tensor.changed:
            continue
        if needs_imatrix(tensor.name, tensor.type, plan.recipe.base) or ggml.requires_imatrix(tensor.type):
            where = plan.source.label if plan.imatrix is None else plan.imatrix.path
            missing = "there is none" if plan.imatrix is None else "the imatrix has no values for it"
            raise WrongUse(
                f"{tensor.name} as {tensor.type.name} needs an imatrix and {missing}",
                where=where,
                remedy=_importance_remedy(plan, tensor),
            )


def _importance_remedy(plan: QuantPlan, tensor: PlannedTensor) -> str:
    if plan.imatrix is None:
        return "give one with --imatrix, or choose a preset of 3 bits or more"
    name = re.escape(tensor.name).replace("\\-", "-")
    return f"give this tensor a type that needs none: --tensor-type '{name}=Q4_K'"


def _refuse_requantizing(plan: QuantPlan, *, allow: bool) -> None:
    lost = plan.requantized
    if lost and not allow:
        raise BadInput(
            f"is already quantized ({lost[0].name} is {lost[0].source.type.name}, {len(lost)} tensors in all) and "
            "quantizing it again loses more than quantizing the original once",
            where=plan.source.label,
            remedy="start from the F16 or BF16 model, or accept the loss with --allow-requantize",
        )


def requantize_note(plan: QuantPlan) -> str | None:
    """Return a sentence on tensors that are quantized twice, ``None`` if there are none."""
    if not plan.requantized:
        return None
    pairs = Counter((tensor.source.type, tensor.type) for tensor in plan.requantized)
    listed = ", ".join(
        f"{count} {old.name} ({_bits(old):.2f} bits) to {new.name} ({_bits(new):.2f})"
        for (old, new), count in sorted(pairs.items())
    )
    return f"quantized twice: {listed}; the rounding errors of both add up"


def _bits(type: Q) -> float:
    block, size = GGML_QUANT_SIZES[type]
    return 8 * size / block
