"""Maps a checkpoint's tensors to a GGUF's: names, order, stacking, permutations. Reads no weights.

Every output tensor is a ``View`` (see ``views``), which has the places of its rows and their transformation.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from strata_pack.errors import BadInput
from strata_pack.weights.convert.arch import Architecture
from strata_pack.weights.convert.config import Config
from strata_pack.weights.convert.qwen4exp import ZERO_CENTRED, Qwen4ExpViews
from strata_pack.weights.convert.safetensors import StoredTensor
from strata_pack.weights.convert.views import Numbers, Piece, View

_EXPERT = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(down_proj|gate_proj|up_proj)\.weight")
_EXPERT_PARTS = ("down_proj", "gate_proj", "up_proj")


@dataclass(frozen=True)
class Rules:
    """The mapping of a checkpoint's tensors according to its configuration."""

    architecture: Architecture
    config: Config
    where: Path

    def views(self, tensors: Iterable[tuple[str, StoredTensor]]) -> Iterator[View]:
        """Yield the output tensors in the order of the GGUF. ``BadInput`` for incomplete experts or tables."""
        experts: dict[int, dict[str, StoredTensor]] = {}
        hyper = Qwen4ExpViews(self.config, self.where) if self.architecture.hyper else None
        for name, tensor in tensors:
            match = _EXPERT.fullmatch(name) if self.architecture.moe else None
            if match is None:
                whole = View.whole(name, tensor)
                gathered = None if hyper is None else hyper.views(whole)
                yield from self._one(whole) if gathered is None else gathered
                continue
            layer = experts.setdefault(int(match[1]), {})
            layer[f"{match[2]}.{match[3]}"] = tensor
            if len(layer) == 3 * self._experts:
                yield from self._stack(int(match[1]), experts.pop(int(match[1])))
        for number, layer in sorted(experts.items()):
            self._stack(number, layer)
        if hyper is not None:
            hyper.finish()

    @property
    def _experts(self) -> int:
        return self.config.integer("num_local_experts", "num_experts")

    def _stack(self, layer: int, found: dict[str, StoredTensor]) -> list[View]:
        views = []
        for part in _EXPERT_PARTS:
            pieces: list[Piece] = []
            for expert in range(self._experts):
                tensor = found.get(f"{expert}.{part}")
                if tensor is None:
                    raise BadInput(
                        f"layer {layer} has no {part} of expert {expert} ({self._experts} experts by config.json)",
                        where=self.where,
                        remedy="the checkpoint is incomplete",
                    )
                if (tensor.shape, tensor.dtype) != (pieces[0].tensor.shape if pieces else tensor.shape, tensor.dtype):
                    raise BadInput(f"{tensor.name} differs in shape from the other experts", where=tensor.file)
                pieces.append(Piece(tensor, range(tensor.shape[0])))
            shape = (self._experts, *pieces[0].tensor.shape)
            views.append(View(f"model.layers.{layer}.mlp.experts.{part}.weight", shape, tuple(pieces)))
        return views

    def _one(self, view: View) -> list[View]:
        if self.architecture.rotate:
            view = self._rotated(view)
        if self.architecture.tiled and "linear_attn." in view.name:
            view = self._tiled(view)
        if self.architecture.linear:
            if "in_proj_qkvz.weight" in view.name:
                return self._unmixed(view)
            view = self._linear(view)
        if self.architecture.moe and re.search(r"mlp\.experts\.(gate_up_proj|down_proj)(\.weight)?$", view.name):
            return self._fused_experts(view)
        return [view]

    def _rotated(self, view: View) -> View:
        """Permute the rows of Q and K from halves to pairs, because ggml rotates pairs."""
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        part = view.name.split(".")[-2] if view.name.endswith((".weight", ".bias")) else ""
        if part not in heads:
            return view
        count = self.config.integer(heads[part])
        length = view.shape[0]
        if length % (2 * count):
            raise BadInput(f"{view.name} has {length} rows, which {count} heads cannot share", where=self.where)
        order = np.arange(length).reshape(count, 2, length // count // 2).swapaxes(1, 2).reshape(-1)
        return view.take(order) if len(view.shape) > 1 else replace(view, columns=order)

    def _tiled(self, view: View) -> View:
        """Permute value heads from groups (by key head) to tiles, because ggml broadcasts like that."""
        keys, values = self._heads()
        if keys == values:
            return view
        key_rows = keys * self.config.integer("linear_key_head_dim")
        size = self.config.integer("linear_value_head_dim")

        def tiles(head_size: int) -> Numbers:
            order: Numbers = np.arange(values * head_size).reshape(keys, values // keys, head_size)
            flat: Numbers = order.swapaxes(0, 1).reshape(-1)
            return flat

        if ".in_proj_qkv." in view.name or ".conv1d" in view.name:
            order = np.concatenate([np.arange(2 * key_rows), 2 * key_rows + tiles(size)])
        elif ".in_proj_z." in view.name:
            order = tiles(size)
        elif (
            ".in_proj_a." in view.name or ".in_proj_b." in view.name or ".A_log" in view.name or ".dt_bias" in view.name
        ):
            order = tiles(1)
        elif ".out_proj." in view.name:
            self._expect(view, -1, values * size)
            return replace(view, columns=tiles(size))
        else:
            return view
        self._expect(view, 0, len(order))
        return replace(view, columns=order) if len(view.shape) == 1 else view.take(order)

    def _heads(self) -> tuple[int, int]:
        keys = self.config.integer("linear_num_key_heads")
        values = self.config.integer("linear_num_value_heads")
        if values % keys:
            raise BadInput(f"{values} value heads cannot be shared by {keys} key heads", where=self.where)
        return keys, values

    def _expect(self, view: View, dimension: int, length: int) -> None:
        if view.shape[dimension] != length:
            raise BadInput(f"{view.name} has the shape {list(view.shape)}, not {length} heads' rows", where=self.where)

    def _linear(self, view: View) -> View:
        name = view.name
        if name.endswith(".A_log"):
            return replace(view, transform="minus_exp")
        if name.endswith(".dt_bias"):
            return replace(view, name=name.removesuffix(".dt_bias") + ".dt_proj.bias")
        if "conv1d" in name:
            return replace(view, shape=tuple(n for n in view.shape if n != 1))
        around_zero = name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight")
        if around_zero or (self.architecture.hyper and name.endswith(ZERO_CENTRED)):
            return replace(view, transform="plus_one")
        return view

    def _unmixed(self, view: View) -> list[View]:
        """Split rows with [q, k, v, z] of each key head into all of q, k, v, and all of z."""
        keys, values = self._heads()
        key = self.config.integer("linear_key_head_dim")
        value = values // keys * self.config.integer("linear_value_head_dim")
        sizes = (key, key, value, value)
        self._expect(view, 0, keys * sum(sizes))
        head = np.arange(keys)[:, None] * sum(sizes)
        starts = np.cumsum((0, *sizes))
        q, k, v, z = ((head + np.arange(a, b)).reshape(-1) for a, b in itertools.pairwise(starts))
        named = view.name.replace("in_proj_qkvz", "{}")
        return [
            replace(view.take(np.concatenate([q, k, v])), name=named.format("in_proj_qkv")),
            replace(view.take(z), name=named.format("in_proj_z")),
        ]

    def _fused_experts(self, view: View) -> list[View]:
        """Split fused experts into the gate and up halves of their rows.

        A transposed architecture stores [experts, input, output]; its halves are columns.
        """
        name = view.name.removesuffix(".weight")
        if len(view.shape) != 3 or view.shape[0] != self._experts:
            raise BadInput(
                f"{view.name} has the shape {list(view.shape)}, not that of {self._experts} experts", where=self.where
            )
        turned = self.architecture.transposed
        if name.endswith("down_proj"):
            return [self._turned(view, f"{name}.weight", 1, 0)] if turned else [replace(view, name=f"{name}.weight")]
        head = name.removesuffix("gate_up_proj")
        experts, rows, width = view.shape
        if (width if turned else rows) % 2:
            raise BadInput(
                f"{view.name} has the shape {list(view.shape)}, without gate and up halves", where=self.where
            )
        (piece,) = view.pieces
        views = []
        for half, part in enumerate(("gate_proj", "up_proj")):
            if turned:
                views.append(self._turned(view, f"{head}{part}.weight", 2, half))
                continue
            starts = (expert * rows + half * rows // 2 for expert in range(experts))
            pieces = tuple(Piece(piece.tensor, range(start, start + rows // 2)) for start in starts)
            views.append(View(f"{head}{part}.weight", (experts, rows // 2, width), pieces))
        return views

    def _turned(self, view: View, name: str, parts: int, part: int) -> View:
        """Return part ``part`` of ``parts`` equal parts of the columns of each expert's matrix, transposed."""
        experts, rows, width = view.shape
        (piece,) = view.pieces
        columns = range(width // parts * part, width // parts * (part + 1))
        pieces = tuple(Piece(piece.tensor, range(e * rows, (e + 1) * rows), columns) for e in range(experts))
        return View(name, (experts, len(columns), rows), pieces)


def rope_factors(config: Config) -> npt.NDArray[np.float32] | None:
    """Return the frequency factors of Llama 3's rotary scaling, None for another kind.

    Source: Llama 3.1's reference code: long wavelengths are stretched by ``factor``, short ones are unchanged, those in
    between are interpolated.
    """
    rope = config.rope
    if str(rope.get("rope_type", "")).lower() != "llama3":
        return None
    # In float32 step by step, like the reference; the powers are correctly rounded.
    one = np.float32(1)
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    base = np.float64(np.float32(rope.get("rope_theta", 10000.0)))
    wavelengths = (one / (one / np.power(base, exponents.astype(np.float64)).astype(np.float32))) * np.float32(
        2 * np.pi
    )
    factor = np.float32(rope.get("factor", 8.0))
    low, high = float(rope.get("low_freq_factor", 1.0)), float(rope.get("high_freq_factor", 4.0))
    context = float(rope.get("original_max_position_embeddings", 8192))
    smooth = ((one / wavelengths) * np.float32(context) - np.float32(low)) / np.float32(high - low)
    blended = one / ((one - smooth) / factor + smooth)
    factors = np.where(wavelengths > np.float32(context / low), factor, blended)
    chosen: npt.NDArray[np.float32] = np.where(wavelengths < np.float32(context / high), one, factors).astype(
        np.float32
    )
    return chosen
