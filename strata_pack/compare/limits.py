"""States how far a quantized model may be from its source: limits of each type, measured, with room above.

``DEVIATIONS`` are relative errors of weights (``compare.deviation``). They were measured (``bench/proof.py``) on
SmolLM2-135M in every preset, with and without importances, and on rows of nine other distributions (heavy tails,
columns and rows of other sizes, half of the weights zero) with importances that are zero for half of the columns.
Damage is far above: a row or tensor in the place of another has an error of about 1.4, a changed sign 2.

``DIVERGENCES`` are about three times the mean KL divergence of SmolLM2-135M with all its matrices in the type and
without importances, on the text of ``compare.proof``: larger models lose less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from strata_pack.llama.ggml_types import GGMLQuantizationType as Q


class DeviationLimits(NamedTuple):
    """The largest relative errors of a tensor, of one of its rows, and of one block of the type."""

    whole: float
    row: float
    block: float


_UNKNOWN = DeviationLimits(1.1, 1.25, 1.5)
_FEW_LEVELS = DeviationLimits(1.1, 1.2, 1.4)

DEVIATIONS = {
    "F64": DeviationLimits(0.002, 0.004, 0.01),
    "F32": DeviationLimits(0.002, 0.004, 0.01),
    "F16": DeviationLimits(0.002, 0.004, 0.01),
    "BF16": DeviationLimits(0.005, 0.01, 0.02),
    "Q8_0": DeviationLimits(0.03, 0.05, 0.08),
    "Q6_K": DeviationLimits(0.2, 0.5, 0.7),
    "Q5_K": DeviationLimits(0.12, 0.4, 0.55),
    "Q5_1": DeviationLimits(0.1, 0.2, 0.25),
    "Q5_0": DeviationLimits(0.15, 0.25, 0.3),
    "Q4_K": DeviationLimits(0.2, 0.25, 0.35),
    "Q4_1": DeviationLimits(0.2, 0.3, 0.4),
    "Q4_0": DeviationLimits(0.25, 0.4, 0.5),
    "IQ4_NL": DeviationLimits(0.2, 0.3, 0.4),
    "IQ4_XS": DeviationLimits(0.35, 0.6, 0.8),
    "MXFP4": DeviationLimits(0.3, 0.4, 0.5),
    "Q3_K": DeviationLimits(0.35, 0.45, 0.55),
    "IQ3_S": DeviationLimits(0.5, 0.65, 0.85),
    "IQ3_XXS": DeviationLimits(0.6, 0.85, 1.05),
    "Q2_K": DeviationLimits(0.6, 0.8, 1.0),
    "IQ2_S": DeviationLimits(0.85, 1.0, 1.2),
    "Q2_0": _FEW_LEVELS,
    "Q1_0": _FEW_LEVELS,
    "TQ2_0": _FEW_LEVELS,
    "TQ1_0": _FEW_LEVELS,
}
"""The limits without importances, by type."""

_WEIGHED_4 = DeviationLimits(0.8, 1.1, 1.3)
_WEIGHED_3 = DeviationLimits(1.0, 1.15, 1.4)
_WEIGHED_2 = DeviationLimits(1.1, 1.25, 1.8)
_WEIGHED_1 = DeviationLimits(1.25, 3.5, 10.0)

WEIGHED_DEVIATIONS = {
    **dict.fromkeys(("Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS"), _WEIGHED_4),
    **dict.fromkeys(("Q3_K", "IQ3_S", "IQ3_XXS"), _WEIGHED_3),
    **dict.fromkeys(("Q2_K", "IQ2_S", "IQ2_XS", "IQ2_XXS"), _WEIGHED_2),
    **dict.fromkeys(("IQ1_M", "IQ1_S"), _WEIGHED_1),
}
"""The limits with importances, where they differ: columns of no importance may be stored as anything."""


def deviation_limits(stored: Q, source: Q, *, weighed: bool) -> DeviationLimits:
    """Return the limits of a tensor in type ``stored`` that was made from one in type ``source``.

    ``weighed``: importances were used. A source that is itself quantized may be another quantization of the same
    weights, so the limits of both types count.
    """
    both = (
        [_limits(stored, weighed=weighed)]
        if stored is source
        else [_limits(stored, weighed=weighed), _limits(source, weighed=weighed)]
    )
    return DeviationLimits(*(max(values) for values in zip(*both, strict=True)))


def _limits(type: Q, *, weighed: bool) -> DeviationLimits:
    plain = DEVIATIONS.get(type.name)
    known = WEIGHED_DEVIATIONS.get(type.name) if weighed or plain is None else None
    return known or plain or _UNKNOWN


DIVERGENCES = {
    **dict.fromkeys(("F64", "F32", "F16", "BF16"), 0.03),
    "Q8_0": 0.05,
    "Q6_K": 0.1,
    "Q5_K": 0.25,
    "Q5_1": 0.35,
    "Q5_0": 0.35,
    **dict.fromkeys(("Q4_K", "IQ4_XS", "IQ4_NL"), 0.9),
    "Q4_1": 1.0,
    "Q4_0": 1.5,
    "Q3_K": 3.0,
}
"""The largest mean KL divergence in nats of a model with matrices in the type. Types that are not here have none:
without importances a small model is left with nothing in them (a mean divergence of 3 to 17), which is no damage."""


def divergence_limit(types: Iterable[str]) -> tuple[float | None, str]:
    """Return the largest mean KL divergence in nats of a model with matrices in ``types``, and the type whose limit it
    is; ``None`` for a type without a limit."""
    coarsest = max(sorted(types), key=lambda type: DIVERGENCES.get(type, math.inf))
    return DIVERGENCES.get(coarsest), coarsest
