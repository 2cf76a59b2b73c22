"""Converts the parts that Qwen3.8-Flash-Next (qwen4exp) adds to Qwen3.5: indexer, n-gram table, draft head.

The n-gram table is stored as many tensors in any order; it becomes one tensor, whose rows are read where they are
stored, and which is written at the position of the last of them, as by llama.cpp's converter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from strata_pack.errors import BadInput
from strata_pack.weights.convert.config import Config
from strata_pack.weights.convert.names import FINAL
from strata_pack.weights.convert.safetensors import Checkpoint, StoredTensor
from strata_pack.weights.convert.text_tensors import HASH_CONSTANTS
from strata_pack.weights.convert.views import Piece, View

TABLE = "per_layer_token_embd.weight"
ZERO_CENTRED = (".ple.norm_key.weight", ".ple.norm_query.weight", ".ple.norm_conv.weight")
"""Norms stored around 0 whose names have other endings than usual norms."""

_SHARD = re.compile(r"\.ngram_embedding\.shard_(\d+)\.")
_HALF = re.compile(r"(model\.layers\.\d+)\.(nextn_fc_embedding|nextn_fc_hidden)\.weight")
_INDEXER = ".indexer.index_qk_proj.weight"
_PLE_LAYER = re.compile(r"model\.layers\.(\d+)\.ple\.")
_INTEGERS = {"I64": "<i8", "I32": "<i4"}


@dataclass(frozen=True)
class NgramKeys:
    """The header's values for the n-gram embedding; ``layer`` counts from 0, ``row_length`` is that of the table."""

    layer: int
    row_length: int
    multipliers: Sequence[int]
    head_offsets: Sequence[int]
    head_vocab_sizes: Sequence[int]


class Qwen4ExpViews:
    """Collects tensors that are stored in parts, in the order of the checkpoint."""

    def __init__(self, config: Config, where: Path) -> None:
        self._config = config
        self._where = where
        self._shards: dict[int, StoredTensor] = {}
        self._halves: dict[str, dict[str, StoredTensor]] = {}
        self.table: View | None = None

    def views(self, view: View) -> list[View] | None:
        """Return the output tensors that ``view`` completes, None if it is not one of these parts."""
        if _INDEXER in view.name:
            return self._indexer(view)
        shard = _SHARD.search(view.name)
        if shard is not None:
            return self._shard(int(shard[1]), view.pieces[0].tensor)
        half = _HALF.fullmatch(view.name)
        if half is not None:
            return self._half(half[1], half[2], view.pieces[0].tensor)
        return None

    def finish(self) -> None:
        """Raise ``BadInput`` if a part is incomplete."""
        if self._shards and self.table is None:
            parts = self._config.get("split_ngram_parts")
            raise BadInput(
                f"the n-gram table has {len(self._shards)} shards, but config.json has {parts}",
                where=self._where,
                remedy="the checkpoint is incomplete or config.json is of another model",
            )
        for layer, halves in self._halves.items():
            if len(halves) == 1:
                raise BadInput(
                    f"{layer} has {next(iter(halves))}, but not the other half of its projection", where=self._where
                )

    def _indexer(self, view: View) -> list[View]:
        queries = self._config.integer("indexer_n_heads") * self._config.integer("indexer_head_dim")
        if not queries < view.shape[0]:
            problem = f"{view.name} has {view.shape[0]} rows and {queries} are for queries"
            raise BadInput(problem, where=self._where)
        (piece,) = view.pieces
        head = view.name.replace("index_qk_proj", "{}")
        cut = ((head.format("q_proj"), range(queries)), (head.format("k_proj"), range(queries, view.shape[0])))
        return [View(name, (len(rows), *view.shape[1:]), (Piece(piece.tensor, rows),)) for name, rows in cut]

    def _shard(self, number: int, tensor: StoredTensor) -> list[View]:
        self._shards[number] = tensor
        width = next(iter(self._shards.values())).row_length
        if len(tensor.shape) != 2 or tensor.row_length != width:
            raise BadInput(f"{tensor.name} has the shape {list(tensor.shape)}, not rows of {width}", where=tensor.file)
        if len(self._shards) != self._config.integer("split_ngram_parts"):
            if self.table is not None:
                self.table = None
                self.finish()
            return []
        pieces = tuple(Piece(shard, range(shard.shape[0])) for _, shard in sorted(self._shards.items()))
        self.table = View(FINAL + TABLE, (sum(map(len, pieces)), width), pieces)
        return [self.table]

    def _half(self, layer: str, part: str, tensor: StoredTensor) -> list[View]:
        halves = self._halves.setdefault(layer, {})
        halves[part] = tensor
        if len(halves) < 2:
            return []
        embedding, hidden = halves["nextn_fc_embedding"], halves["nextn_fc_hidden"]
        if len(embedding.shape) != 2 or embedding.shape[:1] != hidden.shape[:1]:
            raise BadInput(f"{embedding.name} and {hidden.name} differ in rows", where=self._where)
        left, right = (Piece(half, range(half.shape[0])) for half in (embedding, hidden))
        shape = (embedding.shape[0], embedding.row_length + hidden.row_length)
        return [View(f"{layer}.eh_proj.weight", shape, (left,), appended=(right,))]


def ngram_keys(
    checkpoint: Checkpoint,
    constants: Mapping[str, StoredTensor],
    names: Sequence[str],
    table: View | None,
    config: Config,
) -> NgramKeys | None:
    """Return the header's values of the n-gram embedding, None for a model without one.

    ``BadInput`` if ``ple_layer_ids`` (counted from 1; derived from the tensors if missing) contradicts them.
    """
    where = config.where
    stored = sorted({int(match[1]) + 1 for name in names if (match := _PLE_LAYER.match(name))})
    said = config.get("ple_layer_ids")
    if said is None:
        said = stored
    if not isinstance(said, list) or any(type(n) is not int or not 1 <= n <= config.layers for n in said):
        raise BadInput(f"ple_layer_ids is {said!r}, not layers from 1 to {config.layers}", where=where)
    said = sorted(set(said))
    if len(said) > 1:
        raise BadInput(f"ple_layer_ids names {len(said)} layers, and llama.cpp can load one", where=where)
    if said != stored or bool(said) != (table is not None):
        held = f"n-gram embeddings in layers {stored}" if stored else "no n-gram embeddings"
        held += "" if table is not None or not stored else " without their table"
        raise BadInput(f"ple_layer_ids is {said} and the weights have {held}", where=where)
    if table is None:
        return None
    values = []
    for ending in HASH_CONSTANTS:
        tensor = constants.get(ending)
        if tensor is None:
            raise BadInput(f"has no {ending.rpartition('.')[2]} for its n-grams", where=where.parent)
        values.append(_integers(checkpoint, tensor))
    multipliers, offsets, sizes = values
    orders, heads = config.integer("ngram_size"), config.integer("heads_per_ngram")
    if len(multipliers) != orders or len(sizes) != (orders - 1) * heads or len(offsets) != len(sizes):
        raise BadInput(
            f"config.json says n-grams up to {orders} with {heads} heads, "
            f"and the weights have {len(multipliers)} multipliers and {len(sizes)} heads",
            where=where,
        )
    return NgramKeys(said[0] - 1, table.shape[1], multipliers, offsets, sizes)


def _integers(checkpoint: Checkpoint, tensor: StoredTensor) -> list[int]:
    kind = _INTEGERS.get(tensor.dtype)
    if kind is None or tensor.elements > 1 << 16:
        raise BadInput(
            f"{tensor.name} is {tensor.dtype} {list(tensor.shape)}, not a list of integers", where=tensor.file
        )
    values = np.empty(tensor.elements, dtype=kind)
    checkpoint.read_into(tensor, 0, values)
    if values.size and values.min() < 0:
        raise BadInput(f"{tensor.name} has a negative number", where=tensor.file)
    return [int(value) for value in values]
