"""Assigns a preset's types to a model's tensors, in writing order, counting layers by role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strata_pack.errors import BadInput
from strata_pack.llama.ggml_types import GGML_QUANT_SIZES
from strata_pack.llama.ggml_types import GGMLQuantizationType as Q
from strata_pack.weights.gguf.file import MetaValue
from strata_pack.weights.quantize.presets import Preset, PresetFacts, TensorPlace
from strata_pack.weights.quantize.roles import Role, block_number, role_of
from strata_pack.weights.tensor_source import SourceTensor

PROJECTOR = "clip"
"""The architecture of projectors: the reference treats them as models without layers and heads."""
MAX_ARCHITECTURE = 64
"""Maximum length of an architecture's name; llama.cpp's longest has 20 letters."""
_70B_LAYERS = 80
_70B_IF_GROUPED: Mapping[str, bool] = {
    **dict.fromkeys(("llama", "llama-embed"), True),
    **dict.fromkeys(("deci", "olmo", "qwen2"), False),
}
"""Models that llama.cpp calls 70B; if true, only with grouped keys and values (otherwise it is the older 65B). Their
attention values are small and deserve more bits."""


def read_facts(metadata: Mapping[str, MetaValue], *, has_imatrix: bool) -> PresetFacts:
    """Return the facts in a header; ``BadInput`` without an architecture or a number of layers."""
    architecture = metadata.get("general.architecture")
    name = None if architecture is None else architecture.value
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MAX_ARCHITECTURE:
        raise BadInput("the header has no general.architecture, so it is not a model")
    if f"{name}.block_count" not in metadata and name != PROJECTOR:
        raise BadInput(f"the header has no {name}.block_count, so it is not a model")

    def number(key: str, default: int) -> int:
        stored = metadata.get(f"{name}.{key}")
        value = default if stored is None else stored.value
        if isinstance(value, list):
            value = value[0] if value else default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise BadInput(f"{name}.{key} is no number")
        return value

    layers = number("block_count", 0)
    heads = number("attention.head_count", 0)
    kv_heads = number("attention.head_count_kv", heads)
    return PresetFacts(
        architecture=name,
        layers=layers,
        experts=number("expert_count", 0),
        grouping=heads // kv_heads if kv_heads else 0,
        is_70b=layers == _70B_LAYERS and _70B_IF_GROUPED.get(name) in (False, heads != kv_heads),
        has_imatrix=has_imatrix,
    )


class Assigner:
    """Assigns types to a model's tensors, which must be passed in writing order, because it counts layers."""

    def __init__(self, preset: Preset, facts: PresetFacts, names: Sequence[str]) -> None:
        self._preset, self._facts = preset, facts
        self._tied = "output.weight" not in names
        self._values = sum(role_of(name) is Role.ATTN_V for name in names)
        self._seen = dict.fromkeys(Role, 0)

    def type_for(self, tensor: SourceTensor) -> Q:
        """Return the preset's type for a quantizable tensor, before any fallback."""
        role, preset = role_of(tensor.name), self._preset
        place = self._place(role, tensor.name)
        self._seen[role] += 1
        if role is Role.OUTPUT or (self._tied and role is Role.EMBEDDING):
            return self._output(tensor)
        if preset.base is Q.MXFP4:
            return Q.MXFP4 if tensor.matrices > 1 else Q.Q8_0
        if self._facts.experts == 8 and role in preset.eight:
            return preset.eight[role]
        rule = preset.rules.get(role)
        type = (rule(place, self._facts) if rule else None) or preset.base
        if role is Role.ATTN_V and self._facts.is_70b and not preset.lowest and type in (Q.Q3_K, Q.Q4_K):
            return Q.Q5_K
        return type

    def _output(self, tensor: SourceTensor) -> Q:
        preset = self._preset
        if preset.base is Q.Q8_0:
            return Q.Q8_0
        if self._facts.is_falcon or tensor.row_length % GGML_QUANT_SIZES[preset.base][0]:
            return Q.Q8_0
        return preset.output

    def _place(self, role: Role, name: str) -> TensorPlace:
        """Return the place of a tensor: experts' layers are taken from the name (they may be out of order), others
        are counted."""
        if role is Role.ATTN_V:
            return TensorPlace(self._seen[role], self._values)
        number = block_number(name) if self._facts.experts > 1 and not self._preset.lowest else None
        return TensorPlace(self._seen[role] if number is None else number, self._facts.layers)
