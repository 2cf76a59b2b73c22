"""The presets of llama-quantize: which type each tensor of a model gets.

A preset is one row of ``PRESETS``: a base type and, for the roles whose weights matter more, a rule. A rule looks at
where the tensor stands (layer ``i`` of ``n``) and at a few facts of the model, and names a type or leaves the base.
The figures are those of llama.cpp's ``llama-quant.cpp``; they are its authors' experience, not derived from anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from strata_pack.errors import BadInput
from strata_pack.llama.ggml_types import GGML_QUANT_SIZES
from strata_pack.llama.ggml_types import GGMLQuantizationType as Q
from strata_pack.suggest import unknown
from strata_pack.weights.gguf.file import MetaValue
from strata_pack.weights.tensor_source import SourceTensor


class Role(Enum):
    """What a tensor does in the model, as far as presets care."""

    OUTPUT = "output"
    EMBEDDING = "embedding"
    ATTN_V = "attn_v"
    ATTN_K = "attn_k"
    ATTN_Q = "attn_q"
    ATTN_OUTPUT = "attn_output"
    FFN_UP = "ffn_up"
    FFN_GATE = "ffn_gate"
    FFN_DOWN = "ffn_down"
    OTHER = "other"


PER_LAYER_EMBEDDING = "per_layer_token_embd.weight"
_EMBEDDINGS = frozenset({"token_embd.weight", PER_LAYER_EMBEDDING})
_ROLE_BY_PART: tuple[tuple[str, Role], ...] = (
    ("attn_qkv.weight", Role.ATTN_V),
    ("attn_kv_b.weight", Role.ATTN_V),
    ("attn_v.weight", Role.ATTN_V),
    ("attn_k.weight", Role.ATTN_K),
    ("attn_q.weight", Role.ATTN_Q),
    ("attn_output.weight", Role.ATTN_OUTPUT),
    ("ffn_up", Role.FFN_UP),
    ("ffn_gate", Role.FFN_GATE),
    ("ffn_down", Role.FFN_DOWN),
)
"""The first part found in the name decides. Fused and compressed attention counts as attention values."""

_KEPT_PARTS = (
    *("_norm.weight", "ffn_gate_inp.weight", "altup", "laurel", "per_layer_model_proj"),
    *("ssm_conv1d", "shortconv.conv.weight", "attn_rel_b.weight", "indexer.k_proj.weight", "indexer.q_proj.weight"),
    *("time_mix_first.weight", "time_mix_w0.weight", "time_mix_w1.weight", "time_mix_w2.weight"),
    *("time_mix_v0.weight", "time_mix_v1.weight", "time_mix_v2.weight"),
    *("time_mix_a0.weight", "time_mix_a1.weight", "time_mix_a2.weight"),
    *("time_mix_g1.weight", "time_mix_g2.weight", "time_mix_decay_w1.weight", "time_mix_decay_w2.weight"),
    *("time_mix_lerp_fused.weight", ".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_"),
    *(".rel_pos", ".patch_embd", ".patch_merger"),
)
"""Norms, routers, indexers, small convolutions and the like keep their type: they are tiny and sensitive."""
_KEPT_NAMES = frozenset({"position_embd.weight", "token_types.weight"})

PROJECTOR = "clip"
"""The architecture of projectors: to the reference they have no layers, and no number of heads counts."""
MAX_ARCHITECTURE = 64
"""Letters of an architecture's name; llama.cpp's longest has 20."""
_70B_LAYERS = 80
_70B_IF_GROUPED: Mapping[str, bool] = {
    **dict.fromkeys(("llama", "llama-embed"), True),
    **dict.fromkeys(("deci", "olmo", "qwen2"), False),
}
"""Models that llama.cpp calls 70B; true where only with grouped keys and values (else it is the 65B of old). Their
attention values are small and worth more bits."""
_BLOCK_NUMBER = re.compile(r"blk\.(-?\d+)")


@dataclass(frozen=True)
class Facts:
    """What presets want to know about a model."""

    architecture: str
    layers: int
    experts: int = 0
    grouping: int = 1
    """Attention heads per key/value head."""
    is_70b: bool = False
    has_imatrix: bool = False

    @property
    def is_falcon(self) -> bool:
        return self.architecture == "falcon"


@dataclass(frozen=True)
class TensorPlace:
    """Where a tensor stands: layer ``i`` of ``n`` for its role."""

    i: int
    n: int

    @property
    def more_bits(self) -> bool:
        """The first and last eighth of the layers, and every third in between."""
        eighth = self.n // 8
        # C's remainder has the sign of the dividend, but a negative one is caught by the first comparison.
        return self.i < eighth or self.i >= 7 * self.n // 8 or (self.i - eighth) % 3 == 2


Rule = Callable[[TensorPlace, Facts], Q | None]
"""Names a type, or ``None`` for the base type."""


def always(type: Q) -> Rule:
    return lambda _place, _facts: type


def grouped(type: Q, otherwise: Q | None = None) -> Rule:
    """``type`` where four or more heads share their keys and values."""
    return lambda _place, facts: type if facts.grouping >= 4 else otherwise


def more_bits(type: Q) -> Rule:
    return lambda place, _facts: type if place.more_bits else None


def first_part(divisor: int, type: Q, otherwise: Q | None = None) -> Rule:
    """``type`` in the first ``n / divisor`` layers."""
    return lambda place, _facts: type if place.i < place.n // divisor else otherwise


def first_few(count: int, type: Q, otherwise: Q | None = None) -> Rule:
    return lambda place, _facts: type if place.i < count else otherwise


def with_imatrix(then: Rule, otherwise: Rule | None = None) -> Rule:
    return lambda place, facts: (
        then(place, facts) if facts.has_imatrix else otherwise(place, facts) if otherwise else None
    )


def without_imatrix(then: Rule) -> Rule:
    return lambda place, facts: None if facts.has_imatrix else then(place, facts)


def unless_falcon(then: Rule, falcon: Rule | None = None) -> Rule:
    return lambda place, facts: then(place, facts) if not facts.is_falcon else falcon(place, facts) if falcon else None


def either(first: Rule, second: Rule) -> Rule:
    return lambda place, facts: first(place, facts) or second(place, facts)


def _many_experts_or_grouped(otherwise: Q) -> Rule:
    return lambda _place, facts: Q.Q4_K if facts.grouping >= 4 or facts.experts >= 4 else otherwise


def _middle_layers(type: Q) -> Rule:
    return lambda place, _facts: type if place.n // 8 <= place.i < 7 * place.n // 8 else None


def _eight_experts_more_bits(type: Q) -> Rule:
    return lambda place, facts: type if facts.experts == 8 and place.more_bits else None


@dataclass(frozen=True)
class Preset:
    """One mixture of types."""

    name: str
    file_type: int
    """``general.file_type`` of the result (``llama_ftype``)."""
    base: Q
    rules: Mapping[Role, Rule] = field(default_factory=dict)
    output: Q = Q.Q6_K
    """The output matrix, or the embedding where the two are one."""
    eight: Mapping[Role, Q] = field(default_factory=dict)
    """What mixtures of exactly eight experts get instead: sharing by eight makes attention cheap to keep."""
    lowest: bool = False
    """One of the mixtures around 2 bits and below, which count layers by tensors and know no 70B."""
    copy: bool = False
    """Write every tensor as it is."""

    @property
    def is_block(self) -> bool:
        """Whether the base type is a block type: float presets have no rules at all."""
        return GGML_QUANT_SIZES[self.base][0] > 1


_EIGHT: Final = {Role.ATTN_V: Q.Q8_0, Role.ATTN_K: Q.Q8_0}
_EIGHT_OUTPUT: Final = {**_EIGHT, Role.ATTN_OUTPUT: Q.Q5_K}
_EIGHT_LOWEST: Final = {Role.ATTN_K: Q.Q4_K, Role.ATTN_OUTPUT: Q.Q5_K}


def _plain(name: str, file_type: int, base: Q, **rules: Rule) -> Preset:
    return Preset(name, file_type, base, {Role(role): rule for role, rule in rules.items()}, eight=_EIGHT)


def _mixed(name: str, file_type: int, base: Q, output: Q = Q.Q6_K, **rules: Rule) -> Preset:
    return Preset(name, file_type, base, {Role(role): rule for role, rule in rules.items()}, output, _EIGHT_OUTPUT)


def _lowest(name: str, file_type: int, base: Q, better: Q, embedding: Q, attn_output: Q | None) -> Preset:
    rules = {
        Role.EMBEDDING: always(embedding),
        Role.ATTN_V: _many_experts_or_grouped(better),
        Role.FFN_DOWN: first_part(8, better),
    }
    if attn_output is not None:
        rules[Role.ATTN_OUTPUT] = always(attn_output)
    return Preset(name, file_type, base, rules, Q.Q5_K, _EIGHT_LOWEST, lowest=True)


PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("F32", 0, Q.F32),
        Preset("F16", 1, Q.F16),
        Preset("BF16", 32, Q.BF16),
        Preset("COPY", -1, Q.F32, copy=True),
        _plain("Q8_0", 7, Q.Q8_0),
        _plain("Q4_0", 2, Q.Q4_0, ffn_down=with_imatrix(first_part(8, Q.Q4_1))),
        _plain("Q4_1", 3, Q.Q4_1),
        _plain("Q5_0", 8, Q.Q5_0, ffn_down=with_imatrix(first_part(8, Q.Q5_1))),
        _plain("Q5_1", 9, Q.Q5_1),
        _mixed(
            *("Q2_K", 10, Q.Q2_K),
            attn_v=grouped(Q.Q4_K, Q.Q3_K),
            attn_output=unless_falcon(always(Q.Q3_K)),
            ffn_down=always(Q.Q3_K),
        ),
        _plain("Q2_K_S", 21, Q.Q2_K, attn_v=grouped(Q.Q4_K), ffn_down=first_part(8, Q.Q4_K)),
        _mixed("Q3_K_S", 11, Q.Q3_K),
        _mixed(
            *("Q3_K_M", 12, Q.Q3_K),
            attn_v=first_few(2, Q.Q5_K, Q.Q4_K),
            attn_output=unless_falcon(always(Q.Q4_K)),
            ffn_down=unless_falcon(first_part(16, Q.Q5_K, Q.Q4_K), either(first_part(16, Q.Q5_K), more_bits(Q.Q4_K))),
        ),
        Preset(
            *("Q3_K_L", 13, Q.Q3_K),
            rules={
                Role.ATTN_V: always(Q.Q5_K),
                Role.ATTN_OUTPUT: unless_falcon(always(Q.Q5_K), always(Q.Q4_K)),
                Role.FFN_DOWN: unless_falcon(always(Q.Q5_K), always(Q.Q4_K)),
            },
            eight={**_EIGHT, Role.ATTN_OUTPUT: Q.Q3_K},
        ),
        _mixed(
            *("Q4_K_S", 14, Q.Q4_K),
            attn_v=first_few(4, Q.Q5_K),
            ffn_down=unless_falcon(first_part(8, Q.Q5_K)),
        ),
        _mixed(
            *("Q4_K_M", 15, Q.Q4_K),
            attn_v=more_bits(Q.Q6_K),
            ffn_down=unless_falcon(more_bits(Q.Q6_K), either(first_part(16, Q.Q6_K), more_bits(Q.Q5_K))),
        ),
        _plain("Q5_K_S", 16, Q.Q5_K),
        _plain("Q5_K_M", 17, Q.Q5_K, attn_v=more_bits(Q.Q6_K), ffn_down=more_bits(Q.Q6_K)),
        _plain("Q6_K", 18, Q.Q6_K),
        _lowest("IQ1_S", 24, Q.IQ1_S, better=Q.Q2_K, embedding=Q.Q2_K, attn_output=Q.IQ2_XXS),
        _lowest("IQ1_M", 31, Q.IQ1_M, better=Q.Q2_K, embedding=Q.Q2_K, attn_output=Q.IQ2_XXS),
        _lowest("IQ2_XXS", 19, Q.IQ2_XXS, better=Q.Q2_K, embedding=Q.Q2_K, attn_output=None),
        _lowest("IQ2_XS", 20, Q.IQ2_XS, better=Q.Q2_K, embedding=Q.Q2_K, attn_output=None),
        _lowest("IQ2_S", 28, Q.IQ2_XS, better=Q.IQ3_S, embedding=Q.IQ3_S, attn_output=Q.IQ3_S),
        _lowest("IQ2_M", 29, Q.IQ2_S, better=Q.IQ3_S, embedding=Q.IQ3_S, attn_output=Q.IQ3_S),
        _mixed(
            *("IQ3_XXS", 23, Q.IQ3_XXS, Q.Q5_K),
            embedding=always(Q.IQ3_S),
            attn_v=with_imatrix(grouped(Q.Q4_K, Q.IQ3_XXS), grouped(Q.Q4_K, Q.IQ3_S)),
            attn_k=always(Q.IQ2_S),
            attn_q=always(Q.IQ2_S),
            attn_output=unless_falcon(always(Q.IQ3_S)),
            ffn_down=without_imatrix(first_part(8, Q.Q4_K, Q.Q3_K)),
        ),
        _mixed(
            *("IQ3_XS", 22, Q.IQ3_S),
            attn_v=grouped(Q.Q4_K),
            attn_k=always(Q.IQ3_XXS),
            attn_q=always(Q.IQ3_XXS),
            ffn_gate=_middle_layers(Q.IQ3_XXS),
            ffn_up=_middle_layers(Q.IQ3_XXS),
        ),
        _mixed("IQ3_S", 26, Q.IQ3_S, attn_v=grouped(Q.Q4_K)),
        _mixed(
            *("IQ3_M", 27, Q.IQ3_S),
            attn_v=always(Q.Q4_K),
            attn_output=unless_falcon(always(Q.Q4_K)),
            ffn_down=either(first_part(8, Q.Q4_K), _eight_experts_more_bits(Q.Q4_K)),
        ),
        _mixed("IQ4_NL", 25, Q.IQ4_NL, attn_v=grouped(Q.Q5_K), ffn_down=without_imatrix(first_part(8, Q.Q5_K))),
        _mixed("IQ4_XS", 30, Q.IQ4_XS, attn_v=grouped(Q.Q5_K), ffn_down=without_imatrix(first_part(8, Q.Q5_K))),
        _plain("Q1_0", 40, Q.Q1_0),
        _plain("TQ1_0", 36, Q.TQ1_0, embedding=always(Q.Q4_K)),
        _plain("TQ2_0", 37, Q.TQ2_0, embedding=always(Q.Q4_K)),
        Preset("MXFP4_MOE", 38, Q.MXFP4, output=Q.Q8_0),
    )
}
"""All presets by name."""

ALIASES: Mapping[str, str] = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}

_FALLBACK: Mapping[Q, Q] = {
    **dict.fromkeys((Q.IQ1_S, Q.IQ1_M, Q.IQ2_XXS, Q.IQ2_XS, Q.IQ2_S, Q.IQ3_XXS, Q.IQ3_S, Q.IQ4_XS), Q.IQ4_NL),
    **dict.fromkeys((Q.Q2_K, Q.Q3_K, Q.TQ1_0, Q.TQ2_0), Q.Q4_0),
    Q.Q4_K: Q.Q5_0,
    Q.Q5_K: Q.Q5_1,
    Q.Q6_K: Q.Q8_0,
}
"""What takes the place of a type with blocks of 256 where a row is no multiple of 256."""

_NEEDS_IMATRIX = frozenset({Q.IQ1_S, Q.IQ1_M, Q.IQ2_XXS, Q.IQ2_XS, Q.IQ2_S, Q.IQ3_XXS})


def find_preset(name: str) -> Preset:
    """Return the preset called ``name`` (any case, "Q4_K" for "Q4_K_M"); ``WrongUse`` lists what there is."""
    key = name.upper()
    preset = PRESETS.get(ALIASES.get(key, key))
    if preset is None:
        raise unknown("preset", name, PRESETS)
    return preset


def role_of(name: str) -> Role:
    """Return what the tensor called ``name`` does."""
    if name == "output.weight":
        return Role.OUTPUT
    if name in _EMBEDDINGS:
        return Role.EMBEDDING
    return next((role for part, role in _ROLE_BY_PART if part in name), Role.OTHER)


def is_quantizable(name: str, shape: Sequence[int]) -> bool:
    """Return whether presets touch the tensor: matrices do, except small and sensitive ones."""
    return (
        any(n > 1 for n in shape[1:])
        and name.endswith("weight")
        and name not in _KEPT_NAMES
        and not any(part in name for part in _KEPT_PARTS)
    )


def fallback(type: Q, row_length: int) -> Q:
    """Return ``type``, or what replaces it for rows that are no whole number of its blocks (F16 at last)."""
    if row_length % GGML_QUANT_SIZES[type][0] == 0:
        return type
    smaller = _FALLBACK.get(type, Q.F16)
    return smaller if row_length % GGML_QUANT_SIZES[smaller][0] == 0 else Q.F16


def needs_imatrix(name: str, type: Q, preset: Preset) -> bool:
    """Return whether the tensor turns to garbage in ``type`` without importances."""
    if role_of(name) in (Role.OUTPUT, Role.EMBEDDING):
        return False
    return type in _NEEDS_IMATRIX or (type is Q.Q2_K and preset.name == "Q2_K_S")


def sort_key(name: str) -> tuple[int, bytes]:
    """Order tensors as llama.cpp writes them: those of no block first, then by block number, then by name."""
    match = _BLOCK_NUMBER.match(name)
    return (int(match[1]) if match else -1, name.encode())


def read_facts(metadata: Mapping[str, MetaValue], *, has_imatrix: bool) -> Facts:
    """Read the facts off a header; ``BadInput`` when it names no architecture or no number of layers."""
    architecture = metadata.get("general.architecture")
    name = None if architecture is None else architecture.value
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MAX_ARCHITECTURE:
        raise BadInput("the header has no general.architecture, so it is no model")
    if f"{name}.block_count" not in metadata and name != PROJECTOR:
        raise BadInput(f"the header has no {name}.block_count, so it is no model")

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
    return Facts(
        architecture=name,
        layers=layers,
        experts=number("expert_count", 0),
        grouping=heads // kv_heads if kv_heads else 0,
        is_70b=layers == _70B_LAYERS and _70B_IF_GROUPED.get(name) in (False, heads != kv_heads),
        has_imatrix=has_imatrix,
    )


class Assigner:
    """Walks over a model's tensors in writing order and names each one's type; counts layers as it goes."""

    def __init__(self, preset: Preset, facts: Facts, names: Sequence[str]) -> None:
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
        """Experts' layers are told by the name (their files may have been sprinkled), all others by counting."""
        if role is Role.ATTN_V:
            return TensorPlace(self._seen[role], self._values)
        match = _BLOCK_NUMBER.match(name) if self._facts.experts > 1 and not self._preset.lowest else None
        return TensorPlace(int(match[1]) if match else self._seen[role], self._facts.layers)
