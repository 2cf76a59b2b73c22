"""Weights on this disk, whatever their format: found in a folder, opened as tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strata_pack.weights.convert import SafetensorsSource
from strata_pack.weights.hub_select import Weights, choose_weights
from strata_pack.weights.tensor_source import GgufSource, TensorSource


def file_names(folder: Path) -> list[str]:
    """Return every file below ``folder``, relative and with ``/``, sorted."""
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]


def find_weights(folder: Path) -> Weights:
    """Return the one model in ``folder``; ``BadInput`` if there is none, or more than one."""
    return choose_weights(file_names(folder), None, str(folder))


@contextmanager
def open_weights(root: Path, weights: Weights) -> Iterator[TensorSource]:
    """Open ``weights``, whose file names are relative to ``root``; a checkpoint is converted on the fly."""
    first = root / weights.files[0]
    if weights.format == "gguf":
        with GgufSource(first) as source:
            yield source
    else:
        with SafetensorsSource.open(first.parent) as checkpoint:
            yield checkpoint
