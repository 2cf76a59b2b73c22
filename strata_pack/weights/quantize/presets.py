"""Defines llama-quantize's presets: the type of each tensor.

A preset is one row of ``PRESETS``: a base type and, for the roles whose weights matter more, a rule. A rule takes the
position of the tensor (layer ``i`` of ``n``) and a few facts of the model, and returns a type or the base type. The
figures are those of llama.cpp's ``llama-quant.cpp``; they are empirical.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from strata_pack.llama.ggml_types import GGML_QUANT_SIZES, Q2_0
from strata_pack.llama.ggml_types import GGMLQuantizationType as Q
from strata_pack.suggest import unknown
from strata_pack.weights.quantize.roles import Role, role_of


@dataclass(frozen=True)
class PresetFacts:
    """The facts of a model that presets use."""

    architecture: str
    layers: int
    experts: int = 0
    grouping: int = 1
    """Number of attention heads per key/value head."""
    is_70b: bool = False
    has_imatrix: bool = False

    @property
    def is_falcon(self) -> bool:
        return self.architecture == "falcon"


@dataclass(frozen=True)
class TensorPlace:
    """The position of a tensor: layer ``i`` of ``n`` for its role."""

    i: int
    n: int

    @property
    def more_bits(self) -> bool:
        """Whether the layer gets more bits: the first and last eighth, and every third in between."""
        eighth = self.n // 8
        # C's remainder has the sign of the dividend, but the first comparison catches negative ones.
        return self.i < eighth or self.i >= 7 * self.n // 8 or (self.i - eighth) % 3 == 2


PresetRule = Callable[[TensorPlace, PresetFacts], Q | None]
"""A rule returns a type, or ``None`` for the base type."""


def always(type: Q) -> PresetRule:
    return lambda _place, _facts: type


def grouped(type: Q, otherwise: Q | None = None) -> PresetRule:
    """Return the rule: ``type`` if four or more heads share their keys and values."""
    return lambda _place, facts: type if facts.grouping >= 4 else otherwise


def more_bits(type: Q) -> PresetRule:
    return lambda place, _facts: type if place.more_bits else None


def first_part(divisor: int, type: Q, otherwise: Q | None = None) -> PresetRule:
    """Return the rule: ``type`` in the first ``n / divisor`` layers."""
    return lambda place, _facts: type if place.i < place.n // divisor else otherwise


def first_few(count: int, type: Q, otherwise: Q | None = None) -> PresetRule:
    return lambda place, _facts: type if place.i < count else otherwise


def with_imatrix(then: PresetRule, otherwise: PresetRule | None = None) -> PresetRule:
    return lambda place, facts: (
        then(place, facts) if facts.has_imatrix else otherwise(place, facts) if otherwise else None
    )


def without_imatrix(then: PresetRule) -> PresetRule:
    return lambda place, facts: None if facts.has_imatrix else then(place, facts)


def unless_falcon(then: PresetRule, falcon: PresetRule | None = None) -> PresetRule:
    return lambda place, facts: then(place, facts) if not facts.is_falcon else falcon(place, facts) if falcon else None


def either(first: PresetRule, second: PresetRule) -> PresetRule:
    return lambda place, facts: first(place, facts) or second(place, facts)


def _many_experts_or_grouped(otherwise: Q) -> PresetRule:
    return lambda _place, facts: Q.Q4_K if facts.grouping >= 4 or facts.experts >= 4 else otherwise


def _middle_layers(type: Q) -> PresetRule:
    return lambda place, _facts: type if place.n // 8 <= place.i < 7 * place.n // 8 else None


def _eight_experts_more_bits(type: Q) -> PresetRule:
    return lambda place, facts: type if facts.experts == 8 and place.more_bits else None


@dataclass(frozen=True)
class Preset:
    """One mixture of types."""

    name: str
    file_type: int
    """``general.file_type`` of the result (``llama_ftype``)."""
    base: Q
    rules: Mapping[Role, PresetRule] = field(default_factory=dict)
    output: Q = Q.Q6_K
    """The rule for the output matrix, or for the embedding if the two are tied."""
    eight: Mapping[Role, Q] = field(default_factory=dict)
    """The rule for mixtures of exactly eight experts, in which attention is a small part of the weights."""
    lowest: bool = False
    """Whether it is one of the presets around 2 bits and below, which count layers by tensors and have no rule for
    70B."""
    copy: bool = False
    """Whether every tensor is copied unchanged."""

    @property
    def is_block(self) -> bool:
        """Whether the base type is a block type: float presets have no rules."""
        return GGML_QUANT_SIZES[self.base][0] > 1


_EIGHT: Final = {Role.ATTN_V: Q.Q8_0, Role.ATTN_K: Q.Q8_0}
_EIGHT_OUTPUT: Final = {**_EIGHT, Role.ATTN_OUTPUT: Q.Q5_K}
_EIGHT_LOWEST: Final = {Role.ATTN_K: Q.Q4_K, Role.ATTN_OUTPUT: Q.Q5_K}


def _plain(name: str, file_type: int, base: Q, **rules: PresetRule) -> Preset:
    return Preset(name, file_type, base, {Role(role): rule for role, rule in rules.items()}, eight=_EIGHT)


def _mixed(name: str, file_type: int, base: Q, output: Q = Q.Q6_K, **rules: PresetRule) -> Preset:
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
        _plain("Q2_0", 41, Q2_0, embedding=always(Q.Q4_K)),
        _plain("TQ1_0", 36, Q.TQ1_0, embedding=always(Q.Q4_K)),
        _plain("TQ2_0", 37, Q.TQ2_0, embedding=always(Q.Q4_K)),
        Preset("MXFP4_MOE", 38, Q.MXFP4, output=Q.Q8_0),
    )
}
"""All presets by name."""

ALIASES: Mapping[str, str] = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}

_FALLBACK: Mapping[Q, Q] = {
    **dict.fromkeys((Q.IQ1_S, Q.IQ1_M, Q.IQ2_XXS, Q.IQ2_XS, Q.IQ2_S, Q.IQ3_XXS, Q.IQ3_S, Q.IQ4_XS), Q.IQ4_NL),
    **dict.fromkeys((Q2_0, Q.Q2_K, Q.Q3_K, Q.TQ1_0, Q.TQ2_0), Q.Q4_0),
    Q.Q4_K: Q.Q5_0,
    Q.Q5_K: Q.Q5_1,
    Q.Q6_K: Q.Q8_0,
}
"""The replacement of a type with large blocks if a row is not a whole number of them."""

_NEEDS_IMATRIX = frozenset({Q.IQ1_S, Q.IQ1_M, Q.IQ2_XXS, Q.IQ2_XS, Q.IQ2_S, Q.IQ3_XXS})


def find_preset(name: str) -> Preset:
    """Return the preset ``name`` (any case, "Q4_K" for "Q4_K_M"); ``WrongUse`` lists the presets."""
    key = name.upper()
    preset = PRESETS.get(ALIASES.get(key, key))
    if preset is None:
        raise unknown("preset", name, PRESETS)
    return preset


def fallback(type: Q, row_length: int) -> Q:
    """Return ``type``, or its replacement for rows that are not a whole number of its blocks (finally F16)."""
    if row_length % GGML_QUANT_SIZES[type][0] == 0:
        return type
    smaller = _FALLBACK.get(type, Q.F16)
    return smaller if row_length % GGML_QUANT_SIZES[smaller][0] == 0 else Q.F16


def needs_imatrix(name: str, type: Q, preset: Preset) -> bool:
    """Return whether the tensor is unusable in ``type`` without importances."""
    if role_of(name) in (Role.OUTPUT, Role.EMBEDDING):
        return False
    return type in _NEEDS_IMATRIX or (type is Q.Q2_K and preset.name == "Q2_K_S")
