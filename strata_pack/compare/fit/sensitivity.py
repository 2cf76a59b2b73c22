"""Measures the cost of an error: the divergence of predictions if one group of tensors is stored less exactly.

A copy of the model in F16 is evaluated over a short text. Then, for each group, the tensors are rounded to a block
type, written back as F16 into that copy, evaluated and restored. The divergence divided by the group's errors is the
cost of one unit of relative error; to second order the divergences of groups add up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from strata_pack.compare.fit.errors import Errors, round_trip
from strata_pack.compare.logits_file import LogitsFile, write_logits
from strata_pack.compare.scores import score_blocks
from strata_pack.compare.texts import Text
from strata_pack.llama.ggml import Floats
from strata_pack.llama.ggml_types import GGMLQuantizationType as Q
from strata_pack.llama.logits import LogitStream, open_logits
from strata_pack.llama.quantizer import Quantizer
from strata_pack.progress import Progress, Silent
from strata_pack.weights.gguf.file import GgufFile, TensorInfo
from strata_pack.weights.quantize.imatrix import Imatrix
from strata_pack.weights.tensor_source import SourceTensor

CONTEXT = 256
"""Tokens of the evaluated window of each text."""
STEPS = (0.15, 0.85)
"""The borders of the first and last layers, as fractions of the depth: their sensitivities differ."""
LEAST = 1e-9
"""Minimum divergence of a group: with a cost of 0, its tensors would get any type."""
_LAYER = re.compile(r"blk\.(\d+)\.(.+)\.weight")
ROWS = 4096
"""Number of rows rounded at a time."""


@dataclass(frozen=True)
class Sensitivity:
    """The sensitivity of a group: ``cost`` in nats of mean divergence per unit of relative error of one of its
    tensors."""

    group: str
    cost: float
    measured: float
    """The measured divergence, in nats."""


def group_of(name: str, layers: int) -> str:
    """Return the group of a tensor: its role, and whether its layer is first, in the middle or last."""
    match = _LAYER.fullmatch(name)
    if match is None:
        return name
    depth = (int(match[1]) + 0.5) / max(layers, 1)
    return f"{match[2]} {'first' if depth < STEPS[0] else 'last' if depth > STEPS[1] else 'middle'}"


def probe_type(errors: Mapping[Q, float]) -> Q:
    """Return the type whose error is nearest to 1 %: far above noise, but not destructive."""
    block = {type: error for type, error in errors.items() if error > 0}
    return min(block or errors, key=lambda type: abs(np.log(max(errors[type], 1e-12) / 0.01)))


def measure(
    base: Path,
    groups: Mapping[str, Sequence[SourceTensor]],
    errors: Errors,
    imatrix: Imatrix | None,
    over: Sequence[Text],
    folder: Path,
    *,
    threads: int,
    progress: Progress,
) -> Iterator[Sensitivity]:
    """Yield the sensitivity of each group. ``base`` is the model's copy in F16, which is changed and restored.

    ``folder`` is for the kept logits. Raises as ``open_logits``.
    """
    kept = keep_logits(base, over, folder, threads)
    task = progress.task("cost of errors", len(groups), "groups")
    with GgufFile.open(base) as header, base.open("r+b", buffering=0) as file:
        for group, tensors in groups.items():
            spent = 0.0
            saved: list[tuple[int, bytes]] = []
            try:
                for tensor in tensors:
                    type = probe_type(errors[tensor.name])
                    spent += errors[tensor.name].get(type, 0.0)
                    saved.append(_round_in_place(file, header, header.tensor(tensor.name), type, tensor, imatrix))
                seen = max(divergence(base, kept, threads), LEAST)
            finally:
                for start, data in saved:
                    file.seek(start)
                    file.write(data)
            task.advance(1)
            yield Sensitivity(group, seen / spent if spent > 0 else LEAST, seen)
    task.done()


def keep_logits(
    base: Path, over: Sequence[Text], folder: Path, threads: int, context: int = CONTEXT
) -> list[tuple[Text, LogitsFile]]:
    """Evaluate ``base`` over a window of each text; return the texts with their logits, kept in ``folder``."""
    kept = []
    for number, text in enumerate(over):
        place = folder / f"{number}.logits"
        with _open(base, text, threads, context) as stream:
            write_logits(place, stream, "fit", Silent(), text.name)
        logits = LogitsFile.open(place, "fit")
        assert logits is not None
        kept.append((text, logits))
    return kept


def divergence(model: Path, kept: Sequence[tuple[Text, LogitsFile]], threads: int, context: int = CONTEXT) -> float:
    """Return the mean divergence, in nats, of ``model`` from the kept logits; each text counts alike."""
    seen = []
    for text, logits in kept:
        with _open(model, text, threads, context) as stream:
            scores = score_blocks(stream.blocks(), logits.blocks(), stream.header, Silent())
            seen.append(float(scores.kl.mean()))
    return sum(seen) / len(seen)


def _open(base: Path, text: Text, threads: int, context: int) -> AbstractContextManager[LogitStream]:
    reading: dict[str, Any] = {"parse_special": text.parse_special, "text_name": text.name}
    return open_logits(base, text.content, context=context, limit=1, threads=threads, **reading)


def _round_in_place(
    file: BinaryIO, header: GgufFile, info: TensorInfo, type: Q, tensor: SourceTensor, imatrix: Imatrix | None
) -> tuple[int, bytes]:
    """Round a tensor of the F16 copy to ``type``; return the offset and the former bytes."""
    quantizer = Quantizer.load()
    start = header.data_offset + info.offset
    file.seek(start)
    saved = file.read(info.nbytes)
    importances = None if imatrix is None else imatrix.importances(tensor)
    row = info.shape[0]
    per_matrix = max(tensor.rows // tensor.matrices, 1)
    halves = np.frombuffer(saved, np.float16).reshape(-1, row)
    file.seek(start)
    for first in range(0, len(halves), ROWS):
        rows: Floats = halves[first : first + ROWS].astype(np.float32)
        places = np.arange(first, first + len(rows)) // per_matrix
        weights = None if importances is None else np.ascontiguousarray(importances[places])
        file.write(round_trip(quantizer, type, rows, weights).astype(np.float16).tobytes())
    return start, saved
