"""Finds weights of any format in a folder and opens them as tensors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strata_pack.files import read_bytes
from strata_pack.outputs import looks_like_pack
from strata_pack.weights.checkpoint_index import INDEX_LIMIT
from strata_pack.weights.convert.convert import SafetensorsSource
from strata_pack.weights.hub.select import Weights, choose_weights
from strata_pack.weights.tensor_source import GgufSource, TensorSource


def file_names(folder: Path) -> list[str]:
    """Return every file below ``folder``, relative and with ``/``, sorted.

    Packs in it, complete or not, are ignored, because this tool has created them.
    """
    names = []
    for here, folders, files in os.walk(folder):
        place = Path(here)
        folders[:] = [name for name in folders if not name.endswith(".partial") and not looks_like_pack(place / name)]
        names += [(place / name).relative_to(folder).as_posix() for name in files if (place / name).is_file()]
    return sorted(names)


def find_weights(folder: Path) -> Weights:
    """Return the one model in ``folder``; ``BadInput`` if there is none, or more than one."""
    return choose_weights(file_names(folder), None, str(folder), lambda name: read_bytes(folder / name, INDEX_LIMIT))


@contextmanager
def open_weights(root: Path, weights: Weights, *, mtp: bool = True) -> Iterator[TensorSource]:
    """Open ``weights``, whose file names are relative to ``root``; a checkpoint is converted on the fly.

    ``mtp`` False leaves out a checkpoint's layers for multi-token prediction; a GGUF stays as it is.
    """
    if weights.format == "gguf":
        with GgufSource(root / weights.files[0]) as source:
            yield source
    else:
        # A file that an index names may lie in a subfolder; the index itself never does.
        folder = (root / (weights.index or weights.files[0])).parent
        with SafetensorsSource.open(folder, part="model" if mtp else "trunk") as checkpoint:
            yield checkpoint
