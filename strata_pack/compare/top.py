"""Compares models by the likeliest tokens that any llama.cpp server returns, if full logits are not available.

A server returns the exact probabilities of the ``n`` likeliest next tokens. All other tokens are merged into one, which
can only decrease the divergence (the log-sum inequality; Cover and Thomas, "Elements of Information Theory", theorem
2.7.1): every divergence here is a lower bound. The top token is exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from strata_pack.compare.full import (
    CONTEXT,
    MIN_CONTEXT,
    Comparison,
    check_same_text,
    model_file,
    summarize,
)
from strata_pack.compare.scores import Scores, joined
from strata_pack.compare.texts import PROSE, Text
from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.llama.client import LlamaClient
from strata_pack.llama.logits import LogitsHeader
from strata_pack.llama.logits_child import MIN_TOKENS, cut_windows, too_short
from strata_pack.llama.runtimes import Runtime
from strata_pack.llama.server import LlamaServer
from strata_pack.progress import Progress, Silent

TOP = 200
"""Number of top tokens requested at every position."""
_LEAST = 1e-12
"""Minimum probability of all other tokens together: the rounding error of the server's sums."""

Likeliest = Mapping[int, float]
"""Maps a token to its log probability, likeliest first."""


def compare_top(
    model: Path,
    against: Path,
    text: Text | None = None,
    *,
    top: int = TOP,
    context: int = CONTEXT,
    limit: int | None = None,
    threads: int | None = None,
    runtime: Runtime | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare as ``compare_full``, but from the ``top`` likeliest tokens at each position.

    The models are served one after the other. Raises ``BadInput`` as ``compare_full``, ``EnvironmentFailure`` if a
    server does not start, dies or returns no probabilities.
    """
    text = text or Text.read(PROSE)
    context = max(context, MIN_CONTEXT)
    told: list[tuple[LogitsHeader, list[Likeliest]]] = []
    for path in (model, against):
        with LlamaServer.start(model_file(path), runtime=runtime, context=context + 8, threads=threads) as server:
            client = server.client
            header = _windows(client, text, context, limit)
            told.append((header, _ask(client, header, top, path, progress or Silent())))
    (header, ours), (other, theirs) = told
    check_same_text(header, other, model, against)
    targets = header.targets
    parts = [score_top(*position) for position in zip(ours, theirs, targets, strict=True)]
    unseen = [sum(target not in rows for rows, target in zip(side, targets, strict=True)) for side in (ours, theirs)]
    bounds = [
        f"KL divergences are lower bounds: all tokens that are not among the {top} likeliest of both count as one",
        f"perplexities are lower bounds: {unseen[0]} of {len(targets)} tokens of the text (reference: {unseen[1]}) "
        f"were not among the {top} likeliest and count as likely as the last of them",
        "top-1 agreement is exact",
    ]
    scores = joined(parts, header.scored)
    return summarize(scores, model, against, text, header, "top-n", bounds)


def score_top(ours: Likeliest, theirs: Likeliest, target: int) -> Scores:
    """Score one position from the likeliest tokens of the model and of the reference."""
    shared = [token for token in theirs if token in ours]
    weights = [math.exp(theirs[token]) for token in shared]
    divergence = sum(w * (theirs[token] - ours[token]) for w, token in zip(weights, shared, strict=True))
    rest = max(1 - sum(weights), _LEAST)
    our_rest = max(1 - sum(math.exp(ours[token]) for token in shared), _LEAST)
    divergence += rest * math.log(rest / our_rest)
    return Scores(
        np.array([-_log_probability(ours, target)]),
        np.array([-_log_probability(theirs, target)]),
        np.array([max(divergence, 0.0)]),
        np.array([next(iter(ours)) == next(iter(theirs))]),
        (1,),
    )


def _log_probability(likeliest: Likeliest, token: int) -> float:
    """Return the token's log probability, or an upper bound if the server does not return it."""
    if token in likeliest:
        return likeliest[token]
    rest = max(1 - sum(math.exp(value) for value in likeliest.values()), _LEAST)
    return min(math.log(rest), *likeliest.values())


def _windows(client: LlamaClient, text: Text, context: int, limit: int | None) -> LogitsHeader:
    tokens = client.tokenize(text.content, parse_special=text.parse_special)
    if len(tokens) < MIN_TOKENS:
        raise BadInput(too_short(len(tokens)), where=text.name)
    context = min(context, len(tokens))
    with_special = client.tokenize("a", add_special=True, parse_special=False)
    without = client.tokenize("a", parse_special=False)
    bos = with_special[0] if with_special[0] != without[0] else None
    windows = cut_windows(tokens, context, limit, bos)
    return LogitsHeader(0, 0, tuple(tuple(window) for window in windows), context // 2, "ggml")


def _ask(client: LlamaClient, header: LogitsHeader, top: int, model: Path, progress: Progress) -> list[Likeliest]:
    task = progress.task(f"ask {model.name}", len(header.targets), "tokens")
    # The server returns nothing if the drawn token ends the text or is part of a character. Its probabilities are those
    # before the logit bias, so a bias forces it to draw a plain letter every time.
    letter = client.tokenize("a", parse_special=False)[-1]
    answers = []
    for window in header.windows:
        for position in range(header.first, len(window) - 1):
            prompt = window[: position + 1]
            answer = client.completion(
                prompt, n_predict=1, n_probs=top, cache_prompt=True, temperature=0.0, logit_bias=[[letter, 1e6]]
            )
            answers.append(_likeliest(answer.raw, model))
            task.advance(1)
    task.done()
    return answers


def _likeliest(raw: Mapping[str, Any], model: Path) -> Likeliest:
    try:
        rows = raw["completion_probabilities"][0]["top_logprobs"]
        found = {int(row["id"]): float(row["logprob"]) for row in rows}
    except (KeyError, IndexError, TypeError, ValueError):
        found = {}
    if not found:
        problem = "the server returns no probabilities of likely tokens"
        raise EnvironmentFailure(problem, where=model, remedy="use llama.cpp's llama-server")
    return found
