"""Measures each tensor's squared error at each type, weighted by importances.

Rows are sampled evenly over a tensor, quantized by the library that will quantize the file, and dequantized. The error
is relative: the sum of importance times squared difference, divided by the same sum for the weights themselves. For a
layer with uncorrelated inputs, that is the relative error of its output.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from strata_pack.files import dump_json, read_state, write_atomic
from strata_pack.llama.ggml import FLOAT_TYPES, Floats, Ggml, row_nbytes
from strata_pack.llama.ggml_types import GGML_QUANT_SIZES
from strata_pack.llama.ggml_types import GGMLQuantizationType as Q
from strata_pack.llama.quantizer import Quantizer, is_too_large
from strata_pack.progress import Progress
from strata_pack.weights.quantize.imatrix import Imatrix
from strata_pack.weights.tensor_source import SourceTensor, TensorSource

SAMPLE = 1 << 18
"""Number of sampled weights of a tensor, in whole rows; the sampling error is then a few per thousand."""
MIN_ROWS = 8
PEAK = 1000
"""Largest importance of a column, as a multiple of the median. One column of some tensors has nearly all
importance, from the first token of each window: without a limit the other columns would not count, and the tensor would
get the worst type."""

SAVE_EVERY = 10.0
"""Seconds after which new errors are saved, for a search that is interrupted."""

Errors = Mapping[str, Mapping[Q, float]]
"""The relative error by tensor and type; 0 for the tensor's own type."""


def fits_rows(type: Q, tensor: SourceTensor) -> bool:
    """Return whether a row of ``tensor`` is a whole number of blocks of ``type``."""
    return tensor.row_length % GGML_QUANT_SIZES[type][0] == 0


def error_table(
    source: TensorSource,
    tensors: Sequence[SourceTensor],
    types: Mapping[str, Sequence[Q]],
    imatrix: Imatrix | None,
    *,
    threads: int,
    cache: Path | None,
    progress: Progress,
) -> Errors:
    """Return the relative error of each of ``tensors`` at each of its ``types`` that fits its rows.

    ``cache``: a file with errors of earlier runs, by hash of the sampled bytes, importances, type and library; new
    errors are added to it. Types that need importances are skipped for tensors without them.
    """
    quantizer, ggml = Quantizer.load(), Ggml.load()
    known = _read(cache)
    task = progress.task("errors of types", sum(tensor.elements for tensor in tensors), "weights")
    table: dict[str, dict[Q, float]] = {}

    def work(tensor: SourceTensor) -> tuple[str, dict[Q, float], dict[str, float]]:
        rows, weights = _sample(source, tensor, imatrix)
        digest = hashlib.sha256(rows.tobytes())
        digest.update(b"" if weights is None else weights.tobytes())
        if weights is not None and (limited(weights) != weights).any():
            digest.update(b"limited to %d" % PEAK)
        errors, new = {}, {}
        for type in types[tensor.name]:
            if not fits_rows(type, tensor) or (weights is None and ggml.requires_imatrix(type)):
                continue
            if is_too_large(type, rows, weights):
                continue
            key = f"{digest.hexdigest()[:32]} {type.name} {ggml.version}"
            if key not in known:
                new[key] = 0.0 if type is tensor.type else _error(quantizer, type, rows, weights)
            errors[type] = known.get(key, new.get(key, 0.0))
        return tensor.name, errors, new

    found: dict[str, float] = {}
    saved, saved_at = 0, time.monotonic()
    try:
        with ThreadPoolExecutor(threads, thread_name_prefix="errors") as pool:
            for tensor, (name, errors, new) in zip(tensors, pool.map(work, tensors), strict=True):
                table[name] = errors
                found |= new
                task.advance(tensor.elements)
                if time.monotonic() - saved_at > SAVE_EVERY:
                    _write(cache, {**known, **found})
                    saved, saved_at = len(found), time.monotonic()
    finally:
        if len(found) > saved:
            _write(cache, {**known, **found})
    task.done()
    return table


def _read(cache: Path | None) -> dict[str, float]:
    try:
        return {} if cache is None else {key: float(error) for key, error in read_state(cache).items()}
    except (ValueError, TypeError):
        return {}


def _write(cache: Path | None, errors: Mapping[str, float]) -> None:
    if cache is not None:
        write_atomic(cache, dump_json(errors))


def _sample(source: TensorSource, tensor: SourceTensor, imatrix: Imatrix | None) -> tuple[Floats, Floats | None]:
    """Return rows spread evenly over the tensor, and the importances of each."""
    count = min(tensor.rows, max(MIN_ROWS, SAMPLE // tensor.row_length))
    places = np.unique(np.linspace(0, tensor.rows - 1, count).round().astype(np.int64))
    read = source.rows(tensor)
    raw = np.empty(row_nbytes(tensor.type, tensor.row_length), np.uint8)
    rows = np.empty((len(places), tensor.row_length), np.float32)
    ggml = Ggml.load()
    for row, place in zip(rows, places, strict=True):
        read(int(place), 1, raw)
        ggml.to_f32(tensor.type, raw, row)
    importances = None if imatrix is None else imatrix.importances(tensor)
    if importances is None:
        return rows, None
    per_matrix = max(tensor.rows // tensor.matrices, 1)
    return rows, np.ascontiguousarray(importances[places // per_matrix])


def limited(importances: Floats) -> Floats:
    """Return the importances of each row, none above ``PEAK`` times the row's median unless that is 0."""
    median = np.median(importances, axis=1, keepdims=True)
    return np.minimum(importances, np.where(median > 0, PEAK * median, np.inf)).astype(np.float32)


def _error(quantizer: Quantizer, type: Q, rows: Floats, weights: Floats | None) -> float:
    back = round_trip(quantizer, type, rows, weights)
    importance = np.ones((1, rows.shape[1])) if weights is None else limited(weights)
    whole = float((importance * rows.astype(np.float64) ** 2).sum())
    lost = float((importance * (rows.astype(np.float64) - back) ** 2).sum())
    return lost / whole if whole > 0 else 0.0


def round_trip(quantizer: Quantizer, type: Q, rows: Floats, weights: Floats | None) -> Floats:
    """Return ``rows`` after quantization to ``type`` and back; ``weights`` has the importances of each row."""
    back = np.empty_like(rows)
    if type in FLOAT_TYPES or weights is None:
        runs = [(0, len(rows))]
    else:
        changes = np.flatnonzero((weights[1:] != weights[:-1]).any(axis=1)) + 1
        edges = [0, *changes.tolist(), len(rows)]
        runs = list(itertools.pairwise(edges))
    for first, end in runs:
        importance = None if weights is None or type in FLOAT_TYPES else np.ascontiguousarray(weights[first])
        part = np.ascontiguousarray(rows[first:end])
        data = np.empty(len(part) * row_nbytes(type, rows.shape[1]), np.uint8)
        if quantizer.quantize_chunk(type, part, data, importance, first_row=first) is not None:
            quantizer.ggml.quantize_chunk(type, part, data, importance)
        quantizer.ggml.to_f32(type, data, back[first:end])
    return back
