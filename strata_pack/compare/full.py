"""How much a model lost: two models and a text in, perplexities and the divergence of their next tokens out.

Both models are evaluated side by side by the real llama.cpp (``llama.logits``), and every figure is computed here from
the full logits, in double precision. Where full logits cannot be had, ``compare_top`` bounds the figures instead.
Perplexity and windows as in llama.cpp's ``llama-perplexity``; Kullback and Leibler, "On Information and Sufficiency",
1951, for the divergence, in nats, of the model's distribution from the reference's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from strata_pack.errors import BadInput, CheckFailed
from strata_pack.files import read_bytes, sha256_text
from strata_pack.llama.logits import LogitsHeader, open_logits
from strata_pack.pack.layout import Pack
from strata_pack.pack.recovery import recover
from strata_pack.progress import Progress, Silent
from strata_pack.weights.gguf.file import shard_paths

Doubles = npt.NDArray[np.float64]

SHIPPED_TEXT = Path(__file__).parent / "compare_text.txt"
"""Chapter I of Lewis Carroll's "Alice's Adventures in Wonderland" (1865), in the public domain."""
TEXT_LIMIT = 64 << 20
CONTEXT = 512
MIN_CONTEXT = 32


@dataclass(frozen=True)
class Perplexity:
    """exp of the mean surprise of the tokens, and its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class Comparison:
    """All figures of one comparison. KL divergences in nats; ``top1_agreement`` is a share from 0 to 1.

    ``method`` "full logits": the figures are exact. "top-n": those of the ``n`` likeliest tokens, and ``bounds`` says
    what they bound.
    """

    model: str
    reference: str
    text: str
    text_sha256: str
    context: int
    windows: int
    tokens: int
    method: Literal["full logits", "top-n"]
    perplexity: Perplexity
    reference_perplexity: Perplexity
    kl_mean: float
    kl_mean_error: float
    kl_median: float
    kl_p99: float
    kl_max: float
    top1_agreement: float
    bounds: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Scores:
    """One number a scored position: surprise of both models in nats, divergence in nats, and same likeliest token."""

    surprise: Doubles
    reference_surprise: Doubles
    kl: Doubles
    same_top: npt.NDArray[np.bool_]


def log_softmax(logits: npt.NDArray[np.float32]) -> Doubles:
    """Return the logarithms of the probabilities, row by row, in double precision."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def score_rows(logits: npt.NDArray[np.float32], reference: npt.NDArray[np.float32], targets: Sequence[int]) -> Scores:
    """Score rows of logits (rows, ``n_vocab``) of both models against the tokens that really followed."""
    if any(np.isnan(rows).any() or np.isposinf(rows).any() for rows in (logits, reference)):
        raise CheckFailed("a model computes NaN or infinite logits on this text", remedy="its weights are damaged")
    model_log, reference_log = log_softmax(logits), log_softmax(reference)
    at = np.arange(len(targets)), np.asarray(targets)
    weights = np.exp(reference_log)
    with np.errstate(invalid="ignore"):  # a token that both models exclude: -inf - -inf
        terms = np.where(weights > 0, weights * (reference_log - model_log), 0.0)
    divergence = terms.sum(axis=1)
    return Scores(
        surprise=-model_log[at],
        reference_surprise=-reference_log[at],
        kl=np.maximum(divergence, 0.0),
        same_top=logits.argmax(axis=1) == reference.argmax(axis=1),
    )


def compare(
    model: Path,
    against: Path,
    text: Path | None = None,
    *,
    context: int = CONTEXT,
    limit: int | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare ``model`` with ``against`` (PACK or GGUF each) over ``text`` (a UTF-8 file; the shipped one if ``None``).

    ``context``: tokens of a window, whose second half is scored; ``limit``: windows at most. Raises ``BadInput`` when
    the models do not share a vocabulary or the text is too short, ``LogitsUnavailable`` when llama.cpp is another build
    than the known one (``compare_top`` works then), ``EnvironmentFailure`` when it dies.
    """
    name, content = read_text(text)
    files = model_file(model), model_file(against)
    options: dict[str, Any] = {"context": max(context, MIN_CONTEXT), "limit": limit, "threads": threads}
    parts: list[Scores] = []
    with open_logits(files[0], content, **options) as ours, open_logits(files[1], content, **options) as theirs:
        check_same_text(ours.header, theirs.header, model, against)
        targets = ours.header.targets
        task = (progress or Silent()).task("compare", len(targets), "tokens")
        done = 0
        for logits, reference in zip(ours.blocks(), theirs.blocks(), strict=True):
            parts.append(score_rows(logits, reference, targets[done : done + len(logits)]))
            done += len(logits)
            task.advance(len(logits))
        task.done()
        header = ours.header
    return summarize(joined(parts), model, against, (name, content), header)


def read_text(path: Path | None) -> tuple[str, str]:
    """Return (name, content) of the text; ``BadInput`` if it is not UTF-8."""
    path = path or SHIPPED_TEXT
    try:
        return path.name, read_bytes(path, TEXT_LIMIT).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"is not UTF-8 (byte {error.start})", where=path) from None


def model_file(path: Path) -> Path:
    """Return the GGUF (its first shard) of a PACK or GGUF."""
    if path.is_dir():
        return Pack.open(path).model_files[0]
    recover(path)
    return shard_paths(path)[0]


def check_same_text(ours: LogitsHeader, theirs: LogitsHeader, model: Path, against: Path) -> None:
    """Raise ``BadInput`` unless both models see the same tokens of the same vocabulary."""
    if ours.n_vocab != theirs.n_vocab:
        problem = f"has {ours.n_vocab} tokens in its vocabulary and {against} has {theirs.n_vocab}"
        raise BadInput(problem, where=model, remedy="compare two quantizations of one model")
    if ours.windows != theirs.windows:
        problem = f"splits the text into other tokens than {against}"
        raise BadInput(problem, where=model, remedy="compare two quantizations of one model")


def summarize(
    scores: Scores,
    model: Path,
    against: Path,
    text: tuple[str, str],
    header: LogitsHeader,
    method: Literal["full logits", "top-n"] = "full logits",
    bounds: Sequence[str] = (),
) -> Comparison:
    """Return the figures of all scored positions."""
    name, content = text
    return Comparison(
        model=str(model),
        reference=str(against),
        text=name,
        text_sha256=sha256_text(content),
        context=len(header.windows[0]),
        windows=len(header.windows),
        tokens=len(scores.kl),
        method=method,
        perplexity=_perplexity(scores.surprise),
        reference_perplexity=_perplexity(scores.reference_surprise),
        kl_mean=float(scores.kl.mean()),
        kl_mean_error=_standard_error(scores.kl),
        kl_median=float(np.median(scores.kl)),
        kl_p99=float(np.percentile(scores.kl, 99)),
        kl_max=float(scores.kl.max()),
        top1_agreement=float(scores.same_top.mean()),
        bounds=list(bounds),
    )


def _perplexity(surprise: Doubles) -> Perplexity:
    value = math.exp(float(surprise.mean()))
    return Perplexity(value, value * _standard_error(surprise))


def _standard_error(values: Doubles) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def joined(parts: Sequence[Scores]) -> Scores:
    """Return the scores of all ``parts``, in order."""
    return Scores(
        np.concatenate([part.surprise for part in parts]),
        np.concatenate([part.reference_surprise for part in parts]),
        np.concatenate([part.kl for part in parts]),
        np.concatenate([part.same_top for part in parts]),
    )
