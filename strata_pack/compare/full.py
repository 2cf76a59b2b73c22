"""Compares two models over a text by full logits: perplexities, KL divergence, agreement on the top token.

llama.cpp evaluates both models side by side (``llama.logits``), and every figure follows from the full logits
(``scores``). If full logits are not available, ``compare_top`` bounds the figures instead. Perplexity and windows are
those of llama.cpp's ``llama-perplexity``; a divergence, in nats, is that of the model's distribution from the
reference's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

import numpy as np

from strata_pack.compare.scores import Doubles, Scores, score_blocks
from strata_pack.compare.texts import PROSE, Text
from strata_pack.errors import BadInput
from strata_pack.llama.logits import LogitsHeader, open_logits
from strata_pack.llama.products import ProductKernels
from strata_pack.llama.row_ring import shared_file
from strata_pack.pack.layout import Pack
from strata_pack.pack.recovery import recover
from strata_pack.progress import Progress, Silent
from strata_pack.weights.gguf.file import shard_paths

CONTEXT = 512
MIN_CONTEXT = 32
LARGEST = 700.0
"""Surprise in nats whose exponential a float still holds."""
BLOCK = 64
"""Scored positions per block for error bars: neighbouring positions are correlated."""


class TokensDiffer(BadInput):
    """Two models do not have the same vocabulary, or split the text into different tokens."""


@dataclass(frozen=True)
class Perplexity:
    """exp of the mean surprisal of the tokens, and its standard error (from the means of blocks of 64 tokens)."""

    value: float
    error: float


class PerplexityDict(TypedDict):
    """A ``Perplexity`` as JSON."""

    value: float
    error: float


class ComparisonDict(TypedDict):
    """A ``Comparison`` as JSON: its fields."""

    model: str
    reference: str
    text: str
    text_sha256: str
    context: int
    windows: int
    tokens: int
    method: Literal["full logits", "top-n"]
    kernels: str
    perplexity: PerplexityDict
    reference_perplexity: PerplexityDict
    kl_mean: float
    kl_mean_error: float
    kl_median: float
    kl_p99: float
    kl_max: float
    top1_agreement: float
    bounds: list[str]


@dataclass(frozen=True)
class Comparison:
    """All figures of one comparison. KL divergences in nats; ``top1_agreement`` is a share from 0 to 1.

    ``method`` "full logits": the figures are exact. "top-n": they are computed from the ``n`` likeliest tokens, and
    ``bounds`` explains in what sense they are bounds. ``kernels``: what multiplied the weights, the name of a kernel
    library of this project or ``ggml``.
    """

    model: str
    reference: str
    text: str
    text_sha256: str
    context: int
    windows: int
    tokens: int
    method: Literal["full logits", "top-n"]
    kernels: str
    perplexity: Perplexity
    reference_perplexity: Perplexity
    kl_mean: float
    kl_mean_error: float
    kl_median: float
    kl_p99: float
    kl_max: float
    top1_agreement: float
    bounds: list[str] = field(default_factory=list)

    def to_dict(self) -> ComparisonDict:
        return cast(ComparisonDict, asdict(self))


def compare_full(
    model: Path,
    against: Path,
    text: Text | None = None,
    *,
    context: int = CONTEXT,
    limit: int | None = None,
    threads: int | None = None,
    kernels: ProductKernels = "auto",
    progress: Progress | None = None,
) -> Comparison:
    """Compare ``model`` with ``against`` (PACK or GGUF each) over ``text`` (``None``: the shipped prose).

    ``context``: tokens per window, whose second half is scored; ``limit``: maximum number of windows; ``kernels``:
    whether this project's kernels may multiply weights. Raises
    ``BadInput`` if the models do not share a vocabulary or the text is too short, ``LogitsUnavailable`` if the build of
    llama.cpp is not the supported one (use ``compare_top`` then), ``EnvironmentFailure`` if it dies.
    """
    text = text or Text.read(PROSE)
    scores, header = score_side_by_side(
        model, against, text, context=context, limit=limit, threads=threads, kernels=kernels, progress=progress
    )
    return summarize(scores, model, against, text, header)


def score_side_by_side(
    model: Path,
    against: Path,
    text: Text,
    *,
    context: int = CONTEXT,
    limit: int | None = None,
    threads: int | None = None,
    kernels: ProductKernels = "auto",
    progress: Progress | None = None,
) -> tuple[Scores, LogitsHeader]:
    """Score every position of ``text`` with both models running at the same time. Raises as ``compare_full``."""
    # All threads for each, in turn: with a half, the cores of the faster model would wait for the slower one.
    options: dict[str, Any] = {"context": max(context, MIN_CONTEXT), "limit": limit, "threads": threads}
    options["kernels"] = kernels
    options |= {"parse_special": text.parse_special, "text_name": text.name}
    files = model_file(model), model_file(against)
    with (
        shared_file() as turns,
        open_logits(files[0], text.content, turns=turns, **options) as ours,
        open_logits(files[1], text.content, turns=turns, **options) as theirs,
    ):
        check_same_text(ours.header, theirs.header, model, against)
        return score_blocks(ours.blocks(), theirs.blocks(), ours.header, progress or Silent()), ours.header


def model_file(path: Path) -> Path:
    """Return the GGUF (its first shard) of a PACK or GGUF."""
    if path.is_dir():
        return Pack.open(path).model_files[0]
    recover(path)
    return shard_paths(path)[0]


def check_same_text(ours: LogitsHeader, theirs: LogitsHeader, model: Path, against: Path) -> None:
    """Raise ``TokensDiffer`` unless both models have as many tokens and split the text into the same ones."""
    check_vocabularies(ours.n_vocab, theirs.n_vocab, model, against)
    if ours.windows != theirs.windows:
        problem = f"splits the text into different tokens from {against}"
        raise TokensDiffer(problem, where=model, remedy="compare two quantizations of the same model")


def check_vocabularies(ours: int, theirs: int, model: Path, against: Path) -> None:
    """Raise ``TokensDiffer`` unless both models have as many tokens."""
    if ours != theirs:
        problem = f"has {ours} tokens in its vocabulary and {against} has {theirs}"
        raise TokensDiffer(problem, where=model, remedy="compare two quantizations of the same model")


def summarize(
    scores: Scores,
    model: Path,
    against: Path,
    text: Text,
    header: LogitsHeader,
    method: Literal["full logits", "top-n"] = "full logits",
    bounds: Sequence[str] = (),
) -> Comparison:
    """Return the figures of all scored positions."""
    return Comparison(
        model=str(model),
        reference=str(against),
        text=text.name,
        text_sha256=text.sha256,
        context=len(header.windows[0]),
        windows=len(header.windows),
        tokens=len(scores.kl),
        method=method,
        kernels=header.kernels,
        perplexity=_perplexity(scores.surprise, scores.windows),
        reference_perplexity=_perplexity(scores.reference_surprise, scores.windows),
        kl_mean=float(scores.kl.mean()),
        kl_mean_error=standard_error(scores.kl, scores.windows),
        kl_median=float(np.median(scores.kl)),
        kl_p99=float(np.percentile(scores.kl, 99)),
        kl_max=float(scores.kl.max()),
        top1_agreement=float(scores.same_top.mean()),
        bounds=list(bounds),
    )


def _perplexity(surprise: Doubles, windows: Sequence[int]) -> Perplexity:
    mean = float(surprise.mean())
    value = math.exp(mean) if mean < LARGEST else math.inf
    return Perplexity(value, value * standard_error(surprise, windows))


def standard_error(values: Doubles, windows: Sequence[int]) -> float:
    """Return the standard error of the mean of ``values``, from the means of blocks of ``BLOCK`` neighbours.

    ``windows``: the number of values in each window; a block does not span windows. The rest of a window after its
    complete blocks is spread over them. Returns 0 if there are fewer than two blocks.
    """
    blocks: list[Doubles] = []
    start = 0
    for size in windows:
        blocks += np.array_split(values[start : start + size], max(1, size // BLOCK))
        start += size
    if len(blocks) < 2:
        return 0.0
    sizes = np.array([len(block) for block in blocks])
    means = np.array([block.mean() for block in blocks])
    mean = float((means * sizes).sum() / sizes.sum())
    spread = float((sizes * (means - mean) ** 2).sum() / sizes.sum())
    return math.sqrt(spread / (len(blocks) - 1))
