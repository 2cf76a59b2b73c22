"""Measures a model's loss by quantization: perplexity, KL divergence, agreement on the top token, right tool calls."""

from strata_pack.doors import door

TYPE_CHECKING = False
if TYPE_CHECKING:
    from strata_pack.compare.full import Comparison as Comparison
    from strata_pack.compare.full import Perplexity as Perplexity
    from strata_pack.compare.many import compare_many as compare_many

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "compare.full": (
            "Comparison",
            "Perplexity",
        ),
        "compare.many": ("compare_many",),
    },
)
