"""Scores logits of two models: surprisal of the actual tokens, KL divergence, agreement on the top token.

Exponentials are taken and added up in single precision, 128 at a time, everything else in double precision: a
divergence is off by at most some 1e-7 nats, or some 1e-7 of itself if it is above one nat. Where it is so small that
this would count, it is computed again in double precision. Kullback and Leibler, "On Information and Sufficiency",
1951.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strata_pack.errors import CheckFailed
from strata_pack.llama.logits import LogitsHeader
from strata_pack.progress import Progress

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]

CACHED_ROWS = 4
"""Rows scored at a time: with a vocabulary of 50,000 they stay in a core's cache."""
CHUNK = 128
"""Numbers added up in single precision."""
SMALL = 1e-5
"""Divergence in nats below which a row is scored in double precision: there, errors of single precision are above one
percent."""


@dataclass(frozen=True)
class Scores:
    """Arrays with one entry per scored position: surprisal of both models and divergence in nats, and same top token.

    ``windows``: number of scored positions of each window, in order; no block of an error bar spans two windows.
    """

    surprise: Doubles
    reference_surprise: Doubles
    kl: Doubles
    same_top: npt.NDArray[np.bool_]
    windows: tuple[int, ...]


def score_blocks(
    ours: Iterable[Floats], theirs: Iterable[Floats], header: LogitsHeader, progress: Progress, label: str = "compare"
) -> Scores:
    """Score blocks of logits of a model against the corresponding blocks of the reference."""
    targets, parts, done = header.targets, list[Scores](), 0
    scorer = Scorer(header.n_vocab)
    task = progress.task(label, len(targets), "tokens")
    for logits, reference in zip(ours, theirs, strict=True):
        parts += scorer.score(logits, reference, targets[done : done + len(logits)])
        done += len(logits)
        task.advance(len(logits))
    task.done()
    return joined(parts, header.scored)


def score_rows(logits: Floats, reference: Floats, targets: Sequence[int]) -> Scores:
    """Score logits of both models, shape (rows, ``n_vocab``), against the actual next tokens."""
    return joined(Scorer(logits.shape[1]).score(logits, reference, targets), (len(targets),))


def joined(parts: Sequence[Scores], windows: Sequence[int] = ()) -> Scores:
    """Return the scores of all ``parts``, in order, with the given ``windows`` (default: those of the parts)."""
    return Scores(
        np.concatenate([part.surprise for part in parts]),
        np.concatenate([part.reference_surprise for part in parts]),
        np.concatenate([part.kl for part in parts]),
        np.concatenate([part.same_top for part in parts]),
        tuple(windows) or tuple(size for part in parts for size in part.windows),
    )


class Scorer:
    """Scores rows of ``n_vocab`` logits, a few at a time in the same memory."""

    def __init__(self, n_vocab: int) -> None:
        chunks = -(-n_vocab // CHUNK)
        self._n_vocab = n_vocab
        # The numbers after a row stay 0.
        self._ours, self._theirs, self._difference = (
            np.zeros((CACHED_ROWS, chunks, CHUNK), np.float32) for _ in range(3)
        )

    def score(self, logits: Floats, reference: Floats, targets: Sequence[int]) -> list[Scores]:
        """Return the scores of all rows, a few in each part."""
        return [
            self._score(logits[at : at + CACHED_ROWS], reference[at : at + CACHED_ROWS], targets[at : at + CACHED_ROWS])
            for at in range(0, len(targets), CACHED_ROWS)
        ]

    def _score(self, logits: Floats, reference: Floats, targets: Sequence[int]) -> Scores:
        rows = np.arange(len(targets))
        likeliest, reference_likeliest = logits.argmax(axis=1), reference.argmax(axis=1)
        top, reference_top = logits[rows, likeliest], reference[rows, reference_likeliest]
        if not (np.isfinite(top).all() and np.isfinite(reference_top).all()):
            which = "the reference" if np.isfinite(top).all() else "the model"
            problem = f"{which} computes NaN or infinite logits on this text"
            raise CheckFailed(problem, remedy="its weights are damaged")
        total = top + np.log(self._weigh(logits, top, self._ours))
        sums = self._weigh(reference, reference_top, self._theirs)
        reference_total = reference_top + np.log(sums)
        with np.errstate(invalid="ignore"):  # a token that both models exclude: -inf - -inf, or inf * 0
            offset = (reference_top - top)[:, None]
            difference = np.subtract(reference, logits, out=self._rows(self._difference, len(rows)))
            np.subtract(difference, offset, out=difference)  # large offsets would cost digits
            products = np.einsum("ijk,ijk->ij", self._theirs[: len(rows)], self._difference[: len(rows)])
            divergence = products.sum(axis=1, dtype=np.float64) / sums + offset[:, 0] - (reference_total - total)
        for row in np.flatnonzero(~(divergence >= SMALL)):
            divergence[row] = exact_divergence(logits[row], reference[row])
        return Scores(
            surprise=total - logits[rows, targets],
            reference_surprise=reference_total - reference[rows, targets],
            kl=divergence,
            same_top=likeliest == reference_likeliest,
            windows=(len(targets),),
        )

    def _weigh(self, logits: Floats, top: Floats, weights: Floats) -> Doubles:
        """Set ``weights`` to the exponentials of the logits less their maximum, and return their sums."""
        used = self._rows(weights, len(logits))
        np.subtract(logits, top[:, None], out=used)
        np.exp(used, out=used)
        sums: Doubles = np.einsum("ijk->ij", weights[: len(logits)]).sum(axis=1, dtype=np.float64)
        return sums

    def _rows(self, buffer: Floats, count: int) -> Floats:
        return buffer.reshape(CACHED_ROWS, -1)[:count, : self._n_vocab]


def exact_divergence(logits: Floats, reference: Floats) -> float:
    """Return the divergence of one row, in double precision; infinite if only the reference allows a token."""
    shifted = np.subtract(logits, logits.max(), dtype=np.float64)
    difference = np.subtract(reference, reference.max(), dtype=np.float64)
    weights = np.exp(difference)
    total = weights.sum()
    with np.errstate(invalid="ignore"):
        difference -= shifted
        difference[weights == 0] = 0.0
        divergence = np.einsum("i,i->", weights, difference) / total - np.log(total) + np.log(np.exp(shifted).sum())
    return max(float(divergence), 0.0)
