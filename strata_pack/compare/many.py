"""Compares several models with one reference, whose logits are computed once.

The result has each model's divergence over each text and over all texts, its size, and whether it is on the Pareto
front of both.
"""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from strata_pack.compare.full import (
    CONTEXT,
    MIN_CONTEXT,
    Comparison,
    ComparisonDict,
    Perplexity,
    check_same_text,
    check_vocabularies,
    model_file,
    score_side_by_side,
    summarize,
)
from strata_pack.compare.logits_file import VERSION, LogitsFile, write_logits
from strata_pack.compare.scores import Scores, joined, score_blocks
from strata_pack.compare.texts import Text, texts
from strata_pack.compare.top import TOP, compare_top
from strata_pack.errors import BadInput, CheckFailed, EnvironmentFailure, WrongUse
from strata_pack.files import sha256_text
from strata_pack.llama.logits import LogitsHeader, open_logits
from strata_pack.llama.logits_native import LAYOUT_OF, LogitsUnavailable
from strata_pack.llama.products import ProductKernels, product_kernels
from strata_pack.llama.runtimes import find_binary
from strata_pack.outputs import enclosing_pack
from strata_pack.progress import Progress, Silent
from strata_pack.weights.gguf.file import MetaValue, open_shards, shard_paths

ALL_TEXTS = "all texts"
_ELSEWHERE = "name a folder outside the pack"


@dataclass(frozen=True)
class CompareOptions:
    """The options of a comparison.

    ``context``: tokens per window, whose second half is scored; ``limit``: maximum windows per text; ``keep_logits``: a
    folder in which the reference's logits are kept for later runs; ``server``: a llama-server whose top tokens are used
    instead; ``kernels``: whether this project's kernels may multiply weights.
    """

    context: int = CONTEXT
    limit: int | None = None
    threads: int | None = None
    keep_logits: Path | None = None
    server: Path | None = None
    kernels: ProductKernels = "auto"


class ModelComparisonDict(ComparisonDict):
    """A ``ModelComparison`` as JSON: the figures over all texts, and over each."""

    size: int
    bits_per_weight: float
    pareto: bool
    texts: list[ComparisonDict]


@dataclass(frozen=True)
class ModelComparison:
    """The result of one model: its size in bytes, its bits per weight, its figures over each text and over all texts.

    ``best``: no other model of the run is both no larger and closer to the reference.
    """

    model: str
    size: int
    bits_per_weight: float
    total: Comparison
    by_text: tuple[Comparison, ...]
    best: bool = False

    def to_dict(self) -> ModelComparisonDict:
        found: ModelComparisonDict = {
            **self.total.to_dict(),
            "model": self.model,
            "size": self.size,
            "bits_per_weight": self.bits_per_weight,
            "pareto": self.best,
            "texts": [one.to_dict() for one in self.by_text],
        }
        return found


def compare_many(
    models: Sequence[Path],
    against: Path,
    over: Sequence[Text] = (),
    options: CompareOptions = CompareOptions(),
    progress: Progress | None = None,
) -> list[ModelComparison]:
    """Compare each of ``models`` with ``against`` (PACK or GGUF each) over the texts (default: the shipped ones).

    Uses full logits if they are available, else bounds from the likeliest tokens. Raises ``BadInput`` if models do not
    share a vocabulary or a text is too short, ``EnvironmentFailure`` if llama.cpp dies or the disk is full.
    """
    progress, over = progress or Silent(), tuple(over) or texts()
    names = [model_file(model).resolve() for model in models]
    twice = next((model for model, name in zip(models, names, strict=True) if names.count(name) > 1), None)
    if twice is not None:
        raise BadInput("this model is given twice", where=twice)
    _check_headers(models, against)
    try:
        if options.server is not None:
            return on_front([_bounded(model, against, over, options, progress) for model in models])
        if len(models) == 1 and options.keep_logits is None:
            return on_front([_side_by_side(models[0], against, over, options, progress)])
        return on_front(_against_kept(models, against, over, options, progress))
    except LogitsUnavailable as error:
        progress.note(f"{error}: comparing the {TOP} likeliest tokens instead")
        return on_front([_bounded(model, against, over, options, progress) for model in models])


def on_front(found: Sequence[ModelComparison]) -> list[ModelComparison]:
    """Return ``found`` with the models on the Pareto front of size and divergence marked."""

    def beaten(one: ModelComparison) -> bool:
        return any(
            other.size <= one.size
            and other.total.kl_mean <= one.total.kl_mean
            and (other.size, other.total.kl_mean) != (one.size, one.total.kl_mean)
            for other in found
        )

    return [replace(one, best=not beaten(one)) for one in found]


def _check_headers(models: Sequence[Path], against: Path) -> None:
    """Raise ``BadInput`` before the work if a file is missing, truncated, or of another vocabulary."""
    reference = _vocabulary(against)
    for model in models:
        own = _vocabulary(model)
        if own is not None and reference is not None and own != reference:
            check_vocabularies(len(own.value), len(reference.value), model, against)


def _vocabulary(model: Path) -> MetaValue | None:
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(file) for file in open_shards(model_file(model))]
        return files[0].metadata.get("tokenizer.ggml.tokens")


def size_of(model: Path) -> tuple[int, float]:
    """Return the bytes of a PACK's or GGUF's weight files and the bits per weight of its tensors."""
    files = open_shards(model_file(model))
    with contextlib.ExitStack() as stack:
        for file in files:
            stack.enter_context(file)
        tensors = [tensor for file in files for tensor in file.tensors]
        weights = sum(tensor.elements for tensor in tensors)
        return sum(file.file_size for file in files), 8 * sum(tensor.nbytes for tensor in tensors) / max(weights, 1)


Scored = tuple[Text, Scores, LogitsHeader]


def _judged(model: Path, against: Path, scored: Sequence[Scored]) -> ModelComparison:
    parts = tuple(summarize(scores, model, against, text, header) for text, scores, header in scored)
    total = parts[0]
    if len(parts) > 1:
        scores = joined([scores for _, scores, _ in scored])
        whole = Text(ALL_TEXTS, "".join(text.content for text, _, _ in scored))
        windows = tuple(window for _, _, header in scored for window in header.windows)
        total = summarize(scores, model, against, whole, replace(scored[0][2], windows=windows))
    return ModelComparison(str(model), *size_of(model), total, parts)


def _side_by_side(
    model: Path, against: Path, over: Sequence[Text], options: CompareOptions, progress: Progress
) -> ModelComparison:
    settings: dict[str, Any] = {"context": options.context, "limit": options.limit, "threads": options.threads}
    settings["kernels"] = options.kernels
    with _of(model):
        scored = [(text, *score_side_by_side(model, against, text, **settings, progress=progress)) for text in over]
    return _judged(model, against, scored)


def write_reference(
    against: Path, over: Sequence[Text], options: CompareOptions, progress: Progress | None = None
) -> list[Path]:
    """Compute the logits of ``against`` over the texts into ``options.keep_logits`` and return the files.

    Later comparisons with the same options read them from there. Raises as ``compare_many``, and ``LogitsUnavailable``
    if full logits are not available.
    """
    with _folder(options.keep_logits) as folder:
        settings, progress = _settings(options), progress or Silent()
        return [_kept(folder, against, text, options, settings, progress).path for text in over]


def _settings(options: CompareOptions) -> dict[str, Any]:
    settings: dict[str, Any] = {"context": max(options.context, MIN_CONTEXT), "limit": options.limit}
    return {**settings, "threads": options.threads, "kernels": options.kernels}


def _against_kept(
    models: Sequence[Path], against: Path, over: Sequence[Text], options: CompareOptions, progress: Progress
) -> list[ModelComparison]:
    settings = _settings(options)
    scored: dict[Path, list[Scored]] = {model: [] for model in models}
    with _folder(options.keep_logits) as folder:
        for text in over:
            kept = _kept(folder, against, text, options, settings, progress)
            for model in models:
                with open_logits(model_file(model), text.content, **settings, **_reading(text)) as ours:
                    check_same_text(ours.header, kept.header, model, against)
                    label = f"{model.name}, {text.name}"
                    with _of(model):
                        scores = score_blocks(ours.blocks(), kept.blocks(), ours.header, progress, label)
                    scored[model].append((text, scores, ours.header))
    return [_judged(model, against, parts) for model, parts in scored.items()]


@contextlib.contextmanager
def _of(model: Path) -> Iterator[None]:
    """Say of a failed check which model it is about."""
    try:
        yield
    except CheckFailed as error:
        raise CheckFailed(error.problem, where=model, remedy=error.remedy) from error


def _reading(text: Text) -> dict[str, Any]:
    return {"parse_special": text.parse_special, "text_name": text.name}


@contextlib.contextmanager
def _folder(named: Path | None) -> Iterator[Path]:
    if named is None:
        with tempfile.TemporaryDirectory(prefix="strata-logits-") as folder:
            yield Path(folder)
    else:
        if named.exists() and not named.is_dir():
            raise WrongUse("is not a folder", where=named)
        pack = enclosing_pack(named / "x.logits")
        if pack is not None:
            raise WrongUse(f"lies in the pack {pack}, whose manifest lists no logits", where=named, remedy=_ELSEWHERE)
        named.mkdir(parents=True, exist_ok=True)
        yield named


def _kept(
    folder: Path, against: Path, text: Text, options: CompareOptions, settings: dict[str, Any], progress: Progress
) -> LogitsFile:
    """Return the reference's logits over ``text``; computes them if they are not in ``folder``."""
    path = model_file(against)
    files = [(one.name, one.stat().st_size, one.stat().st_mtime_ns) for one in shard_paths(path)]
    # Sums in another order change a divergence by some thousandths: both models need the same kernels.
    made_by = [LAYOUT_OF, VERSION, product_kernels(options.kernels)]
    key = sha256_text(json.dumps([files, text.sha256, text.parse_special, options.context, options.limit, *made_by]))
    place = folder / f"{path.stem}-{key[:16]}.logits"
    kept = LogitsFile.open(place, key)
    if kept is None:
        with open_logits(path, text.content, **settings, **_reading(text)) as stream:
            write_logits(place, stream, key, progress, f"{path.name}, {text.name}")
        kept = LogitsFile.open(place, key)
    if kept is None:
        raise EnvironmentFailure("vanished while it was used", where=place)
    return kept


def _bounded(
    model: Path, against: Path, over: Sequence[Text], options: CompareOptions, progress: Progress
) -> ModelComparison:
    runtime = None if options.server is None else find_binary(options.server)
    settings: dict[str, Any] = {"context": options.context, "limit": options.limit, "threads": options.threads}
    parts = tuple(compare_top(model, against, text, **settings, runtime=runtime, progress=progress) for text in over)
    return ModelComparison(str(model), *size_of(model), pooled_bounds(parts), parts)


def pooled_bounds(parts: Sequence[Comparison]) -> Comparison:
    """Return the figures over all texts from the figures of each, weighted by tokens.

    Medians and percentiles of the whole do not follow from those of the parts: the largest is given, which is a bound.
    """
    if len(parts) == 1:
        return parts[0]
    tokens = sum(part.tokens for part in parts)

    def mean(name: str) -> float:
        return sum(float(getattr(part, name)) * part.tokens for part in parts) / tokens

    def pooled(name: Literal["perplexity", "reference_perplexity"]) -> Perplexity:
        each: list[Perplexity] = [getattr(part, name) for part in parts]
        shares = [part.tokens / tokens for part in parts]
        value = math.exp(sum(share * math.log(one.value) for share, one in zip(shares, each, strict=True)))
        relative = math.hypot(*(share * one.error / one.value for share, one in zip(shares, each, strict=True)))
        return Perplexity(value, value * relative)

    return replace(
        parts[0],
        text=ALL_TEXTS,
        perplexity=pooled("perplexity"),
        reference_perplexity=pooled("reference_perplexity"),
        text_sha256=sha256_text("".join(part.text_sha256 for part in parts)),
        windows=sum(part.windows for part in parts),
        tokens=tokens,
        kl_mean=mean("kl_mean"),
        kl_mean_error=math.hypot(*(part.kl_mean_error * part.tokens / tokens for part in parts)),
        kl_median=max(part.kl_median for part in parts),
        kl_p99=max(part.kl_p99 for part in parts),
        kl_max=max(part.kl_max for part in parts),
        top1_agreement=mean("top1_agreement"),
    )
