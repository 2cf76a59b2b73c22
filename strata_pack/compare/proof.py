"""Compares a pack with its source for ``prove``: every tensor, and the predictions on a short text.

The tensors show any damage of single weights, the predictions what tensors do not show: another pre-tokenizer, other
hyperparameters.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from types import FrameType

from strata_pack.compare.against_source import compare_tensors
from strata_pack.compare.full import Comparison, ComparisonDict, TokensDiffer, compare_full, model_file
from strata_pack.compare.limits import divergence_limit
from strata_pack.compare.texts import PROSE, Text
from strata_pack.errors import CheckFailed, StrataError, WrongUse
from strata_pack.pack.layout import Pack
from strata_pack.pack.paths import is_pack
from strata_pack.progress import Progress
from strata_pack.report import Check, Status
from strata_pack.weights.gguf.file import open_shards
from strata_pack.weights.quantize.edits import edits_from_options

LIMIT_SECONDS = 30.0
"""The time for the predictions; the tensors take as long as reading them."""
WINDOWS = 4
CONTEXT = 256
ERRORS = 3.0
"""Standard errors by which a divergence must be above its limit."""

PRE = "tokenizer.ggml.pre"
TENSORS = "every tensor is its source's, rounded to its type"
PREDICTIONS = "the pack predicts a text about as well as its source"

SPLITS = (
    "In 2024, 3.14159 and 000123 made 98%; I'LL won't WE'RE HTTPServer2 snake_case naïve Привет देवनागरी 漢字かな "
    '한국어 e\u0301  two   spaces\n\n\n\ttab\r\n ...!!! --- ==== {"k": [1,22,333]}\n   end\n\n'
)
"""A text that pre-tokenizers split differently. It comes first: the first tokens of a text are not scored."""


class PredictionsDict(ComparisonDict):
    """A ``Comparison`` as JSON, with the limit of the mean divergence in nats (``None`` if there is none) and the type
    whose limit it is."""

    limit: float | None
    limit_of: str


class TimeUpError(Exception):
    """The comparison took longer than its time limit."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise ``TimeUpError`` inside the block after ``seconds``; works in the main thread only (SIGALRM)."""

    def ring(_signum: int, _frame: FrameType | None) -> None:
        raise TimeUpError

    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def comparer(progress: Progress, limit_seconds: float = LIMIT_SECONDS) -> Callable[[Path, Path], tuple[Check, ...]]:
    """Return a function that compares a pack with its source and returns the results as checks."""

    def compare(path: Path, source: Path) -> tuple[Check, ...]:
        pack = Pack.open(path)
        return tensors_check(pack, source, progress), predictions_check(pack, source, progress, limit_seconds)

    return compare


def tensors_check(pack: Pack, source: Path, progress: Progress) -> Check:
    """Compare every tensor with its source's."""
    started = monotonic()
    try:
        found = compare_tensors(pack, source, progress)
    except StrataError as error:
        # A folder may have only a config.json, or a checkpoint that is converted elsewhere.
        unread = isinstance(error, WrongUse) and source.is_dir() and not is_pack(source)
        return Check("tensors", TENSORS, "skipped" if unread else "error", str(error), monotonic() - started)
    if found is None:
        return Check("tensors", TENSORS, "skipped", "llama.cpp's own converter converted the source")
    if not found.compared:
        return Check("tensors", TENSORS, "skipped", "the source has no tensor of the same name, shape and kind")
    status: Status = "failed" if found.faults else "passed"
    return Check("tensors", TENSORS, status, found.sentence, monotonic() - started, data=found.to_dict())


def predictions_check(pack: Pack, source: Path, progress: Progress, limit_seconds: float = LIMIT_SECONDS) -> Check:
    """Compare the predictions on a short text by their KL divergence."""

    def check(status: Status, detail: str, data: PredictionsDict | None = None) -> Check:
        return Check("compare", PREDICTIONS, status, detail, monotonic() - started, data=data or {})

    started = monotonic()
    if not (source.is_file() or is_pack(source)):
        return check("skipped", "the source is no GGUF and no pack, so llama.cpp cannot evaluate it")
    changed = _changed(pack)
    if changed is not None:
        return check("skipped", f"the build changed the model ({changed}), so its predictions are others")
    prose = Text.read(PROSE)
    text = Text("splits and prose", SPLITS + prose.content)
    try:
        with _time_limit(limit_seconds):
            found = compare_full(pack.path, source, text, context=CONTEXT, limit=WINDOWS, progress=progress)
    except TimeUpError:
        return check("skipped", f"not done within {limit_seconds:g} s; use `strata-pack compare`")
    except TokensDiffer as error:
        return check("failed", f"{error}{_other_pre(pack, source)}")
    except CheckFailed as error:
        return check("failed", str(error))
    except StrataError as error:
        return check("error", str(error))
    limit, type = divergence_limit(_types(pack.model_files[0]) | _types(model_file(source)))
    data: PredictionsDict = {**found.to_dict(), "limit": limit, "limit_of": type}
    within = limit is None or found.kl_mean - ERRORS * found.kl_mean_error <= limit
    return check("passed" if within else "failed", _sentence(found, limit, type), data)


def _sentence(found: Comparison, limit: float | None, type: str) -> str:
    bound = f"{type} has no limit" if limit is None else f"{limit:g} is the limit of {type}"
    return (
        f"mean KL divergence {found.kl_mean:.4f} ± {found.kl_mean_error:.4f} nats ({bound}), "
        f"perplexity {found.perplexity.value:.2f}, the source's {found.reference_perplexity.value:.2f}; the same "
        f"likeliest token in {found.top1_agreement:.0%} of {found.tokens} places"
    )


def _changed(pack: Pack) -> str | None:
    """Return the option of the build after which the model computes something else than its source, if any."""
    edits = edits_from_options(pack.manifest["recipe"]["options"])
    parts = ("tokenizer.", f"{pack.manifest['model']['architecture']}.")
    if edits.pruned:
        return "--prune-layers"
    return next((f"--override-kv {key}" for key, _ in edits.overrides if key.startswith(parts)), None)


def _types(model: Path) -> set[str]:
    """Return the names of the types of a model's matrices."""
    names = set()
    for file in open_shards(model):
        with file:
            names |= {tensor.type.name for tensor in file.tensors if len(tensor.shape) > 1}
    return names


def _other_pre(pack: Pack, source: Path) -> str:
    """Return the pre-tokenizers of both as the end of a sentence, if they differ."""
    names = []
    for model in (pack.model_files[0], model_file(source)):
        files = open_shards(model)
        found = files[0].metadata.get(PRE)
        names.append(None if found is None else found.value)
        for file in files:
            file.close()
    return "" if names[0] == names[1] else f": {PRE} is {names[0]}, the source's {names[1]}"
