"""Pairs 8-bit weights with their scales.

A weight is the stored value times its scale, a float32 product, as in llama.cpp's converter; after that it is
transformed and rounded to the output type. Other encodings are refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from strata_pack.errors import BadInput
from strata_pack.files import read_json_object
from strata_pack.weights.convert.nvfp4 import BLOCK, read_nvfp4, second_factor, whole_weight
from strata_pack.weights.convert.packed import read_packed
from strata_pack.weights.convert.safetensors import (
    FLOATS,
    Checkpoint,
    Nvfp4,
    Packed,
    Scale,
    StoredTensor,
    as_float32,
)

Named = list[tuple[str, StoredTensor]]

_NAMES = {"awq": "AWQ", "gptq": "GPTQ", "mxfp4": "MXFP4", "bitnet": "BitNet"}
_REMEDY = "convert the original BF16 checkpoint, or try llama.cpp's converter with --converter reference"
_PACKED_FORMAT = "pack-quantized"
_PACKED_BITS = (2, 4, 8)
_PLAIN_FORMATS = ("float-quantized", "int-quantized", "naive-quantized")
_MAX_BLOCK = 1 << 16
_PACKED_PARTS = (".weight_packed", ".weight_scale", ".weight_shape", ".weight_zero_point")
_NGRAM_SCALES = (".ngram_embedding.weight_scale", ".ngram_embedding.weight_scale_inv")
"""The common scale of all shards of the n-gram table in FP8 releases of Qwen3.8-Flash-Next."""


@dataclass(frozen=True)
class Encoding:
    """A checkpoint's encoding of weights: names of scales end in ``scale``, those of their weights in ``weight``.

    ``block`` is the (rows, columns) of one scale, None for a scale per row or for the whole weight. Tensors whose names
    end in ``unused`` are only for other engines. ``bits``: the number of bits of each packed value.
    """

    name: str
    scale: str
    weight: str
    block: tuple[int, int] | None
    unused: tuple[str, ...] = ()
    bits: int | None = None
    second: str | None = None
    inverse: bool = False


_OTHERS_SCALES = (".input_scale", ".k_scale", ".v_scale")
_MODELOPT_FOURS = Encoding("NVFP4", ".weight_scale", ".weight", (1, BLOCK), _OTHERS_SCALES, second=".weight_scale_2")
_COMPRESSED_FOURS = Encoding(
    *("compressed-tensors NVFP4", ".weight_scale", ".weight_packed", (1, BLOCK)),
    (".input_global_scale", *_OTHERS_SCALES),
    second=".weight_global_scale",
    inverse=True,
)
_FOURS_FORMAT = "nvfp4-pack-quantized"


def read_encoding(raw: Mapping[str, Any], where: Path) -> Encoding | None:
    """Return the encoding that a config.json names, None for plain weights; ``BadInput``, with the name, for others.

    Older exports of ModelOpt name it in hf_quant_config.json next to ``where``.
    """
    text = raw.get("text_config")
    nested = text.get("quantization_config") if isinstance(text, dict) else None
    found = nested or raw.get("quantization_config") or raw.get("compression_config")
    if not found:
        beside = where.parent / "hf_quant_config.json"
        if beside.is_file():
            exported = read_json_object(beside).get("quantization")
            if isinstance(exported, dict) and exported.get("quant_algo") == "NVFP4":
                return _MODELOPT_FOURS
            raise BadInput("the weights are quantized already (ModelOpt)", where=beside, remedy=_REMEDY)
        return None
    settings = found if isinstance(found, dict) else {}
    method = settings.get("quant_method")
    if method == "fp8":
        unused = (".activation_scale", "_activation_scale")
        return Encoding("FP8", "_scale_inv", "", _block(settings.get("weight_block_size"), where), unused)
    if method == "compressed-tensors":
        return _compressed(settings, where)
    if method == "modelopt" and settings.get("quant_algo") == "FP8":
        return Encoding("ModelOpt FP8", ".weight_scale", ".weight", None, _OTHERS_SCALES)
    if method == "modelopt" and settings.get("quant_algo") == "NVFP4":
        return _MODELOPT_FOURS
    name = _NAMES.get(str(method), str(method or "an unnamed method"))
    if "NVFP4" in str(settings.get("quant_algo")):
        name = "NVFP4"
    raise _refused(name, where)


def _refused(name: str, where: Path) -> BadInput:
    return BadInput(f"the weights are quantized already ({name})", where=where, remedy=_REMEDY)


def _compressed(settings: Mapping[str, Any], where: Path) -> Encoding:
    """Return a compressed-tensors encoding of whole values, packed integers or NVFP4; MXFP4 is refused by name."""
    kind, groups = settings.get("format"), settings.get("config_groups")
    if kind == _FOURS_FORMAT:
        return _COMPRESSED_FOURS
    if kind not in (*_PLAIN_FORMATS, _PACKED_FORMAT) or not isinstance(groups, dict):
        raise _refused(f"compressed-tensors, {kind}", where)
    if len(groups) != 1:
        raise _refused(f"compressed-tensors with {len(groups)} groups", where)
    (group,) = groups.values()
    weights = group.get("weights") if isinstance(group, dict) else None
    strategy = weights.get("strategy") if isinstance(weights, dict) else None
    if kind == _PACKED_FORMAT and isinstance(weights, dict):
        return _packed(weights, where)
    if not isinstance(weights, dict) or strategy not in ("channel", "block") or weights.get("group_size") is not None:
        raise _refused(f"compressed-tensors, {kind} by {strategy}", where)
    return Encoding("compressed-tensors", ".weight_scale", ".weight", _block(weights.get("block_structure"), where))


def _packed(weights: Mapping[str, Any], where: Path) -> Encoding:
    bits, group, kind = weights.get("num_bits"), weights.get("group_size"), weights.get("type", "int")
    if weights.get("strategy") != "group" or kind != "int" or bits not in _PACKED_BITS:
        raise _refused(f"compressed-tensors, {bits} bits of {kind} by {weights.get('strategy')}", where)
    if type(group) is not int or not 0 < group <= _MAX_BLOCK:
        raise BadInput(f"the group of a scale is {group!r}, not a size", where=where)
    return Encoding(f"compressed-tensors INT{bits}", ".weight_scale", ".weight", (1, group), bits=bits)


def _block(value: Any, where: Path) -> tuple[int, int] | None:
    if value is None:
        return None
    sizes = value if isinstance(value, list) else []
    if len(sizes) != 2 or any(type(n) is not int or not 0 < n <= _MAX_BLOCK for n in sizes):
        raise BadInput(f"the block of a scale is {value!r}, not two sizes", where=where)
    return sizes[0], sizes[1]


def with_scales(named: Named, encoding: Encoding | None, where: Path) -> Named:
    """Return the tensors without the scales; each weight has its scale attached.

    ``BadInput`` for a scale without a weight, one that does not fit it, and for an 8-bit weight without a scale.
    """
    if encoding is not None and encoding.bits is not None:
        named = _unpacked(named, encoding.bits, encoding.block, where)
        encoding = None
    elif encoding is not None and encoding.second is not None:
        named = _from_fours(named, encoding, encoding.second, where)
        encoding = None
    if encoding is None:
        kept, scales, shared, block = named, dict[str, StoredTensor](), dict[str, StoredTensor](), None
    else:
        kept, scales, shared = _sorted_out(named, encoding)
        block = encoding.block
    scaled: Named = []
    for name, tensor in kept:
        scale = scales.pop(name, None)
        whole = next((found for prefix, found in shared.items() if name.startswith(prefix)), None)
        if tensor.scale is not None:
            scaled.append((name, tensor))
            continue
        if scale is not None:
            tensor = replace(tensor, scale=_fitting(Scale(scale, block), tensor))
        elif whole is not None:
            tensor = replace(tensor, scale=_fitting(Scale(whole, None), tensor))
        elif tensor.dtype in EIGHT_BITS:
            problem = f"{tensor.name} is stored in 8 bits ({tensor.dtype}) and no scale belongs to it"
            raise BadInput(problem, where=where, remedy=_REMEDY)
        scaled.append((name, tensor))
    for name, scale in scales.items():
        raise BadInput(f"{scale.name} is the scale of {name}, which is missing", where=where, remedy="fetch it again")
    return scaled


def _sorted_out(named: Named, encoding: Encoding) -> tuple[Named, dict[str, StoredTensor], dict[str, StoredTensor]]:
    """Return the weights, the scales by their weight's name, and the scales by a prefix of weights' names."""
    kept: Named = []
    scales: dict[str, StoredTensor] = {}
    shared: dict[str, StoredTensor] = {}
    for name, tensor in named:
        if name.endswith(_NGRAM_SCALES):
            shared[name.rpartition("weight_scale")[0]] = tensor
        elif name.endswith(encoding.scale):
            scales[name.removesuffix(encoding.scale) + encoding.weight] = tensor
        elif not name.endswith(encoding.unused):
            kept.append((name, tensor))
    return kept, scales, shared


def _unpacked(named: Named, bits: int, block: tuple[int, int] | None, where: Path) -> Named:
    """Return the tensors with each packed weight as one tensor, after all others, as the reference orders them."""
    assert block is not None
    parts = {name: tensor for name, tensor in named if name.endswith(_PACKED_PARTS)}
    kept = [(name, tensor) for name, tensor in named if name not in parts]
    for name in [name for name in parts if name.endswith("_packed")]:
        base = name.removesuffix("_packed")
        words, scale = parts.pop(name), parts.pop(f"{base}_scale", None)
        if scale is None:
            raise BadInput(f"{words.name} has no scale", where=where, remedy="fetch it again")
        packed = Packed(bits, words, parts.pop(f"{base}_zero_point", None), parts.pop(f"{base}_shape", None))
        kept.append((base, _whole(base, packed, scale, block[1])))
    for tensor in parts.values():
        raise BadInput(f"{tensor.name} belongs to no packed weight", where=where, remedy="fetch it again")
    return kept


def _from_fours(named: Named, encoding: Encoding, second: str, where: Path) -> Named:
    """Return the tensors with each weight of four bits as one, without its scales."""
    tensors = dict(named)
    kept: Named = []
    scales = {name for name in tensors if name.endswith((encoding.scale, second))}
    unused = set(scales)
    for name, tensor in named:
        base = name.removesuffix(encoding.weight)
        scale = tensors.get(base + encoding.scale)
        if name in scales or name.endswith(encoding.unused):
            continue
        if not name.endswith(encoding.weight) or tensor.dtype != "U8" or scale is None:
            kept.append((name, tensor))
            continue
        unused -= {base + encoding.scale, base + second}
        whole = tensors.get(base + second)
        kept.append((f"{base}.weight", whole_weight(f"{base}.weight", tensor, scale, whole, inverse=encoding.inverse)))
    for name in sorted(unused):
        raise BadInput(f"{name} scales a weight that is not there", where=where, remedy="fetch it again")
    return kept


def _whole(name: str, packed: Packed, scale: StoredTensor, group: int) -> StoredTensor:
    """Return a packed weight as the unpacked tensor."""
    words, zeros = packed.words, packed.zeros
    if len(words.shape) != 2 or len(scale.shape) != 2 or words.dtype != "I32" or scale.dtype not in FLOATS:
        problem = f"is {words.dtype} {list(words.shape)} with {scale.dtype} {list(scale.shape)} as its scale"
        raise BadInput(f"{words.name} {problem}, so it is not a packed weight", where=words.file)
    rows, columns = words.shape[0], scale.shape[1] * group
    wanted: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "its scale": (scale.shape, (rows, scale.shape[1])),
        "its words": (words.shape, (rows, math.ceil(columns / packed.in_a_word))),
    }
    if zeros is not None:
        wanted["its zero points"] = (zeros.shape, (math.ceil(rows / packed.in_a_word), scale.shape[1]))
    for what, (stored, shape) in wanted.items():
        if stored != shape:
            raise BadInput(f"{words.name}: {what} have the shape {list(stored)}, not {list(shape)}", where=words.file)
    if zeros is not None and zeros.dtype != "I32":
        raise BadInput(f"{zeros.name} has the type {zeros.dtype}, not I32", where=zeros.file)
    # The logical weight: its values have at most one byte, and only ``read_scaled`` reads them.
    return StoredTensor(name, "I8", (rows, columns), words.file, words.start, Scale(scale, (1, group), packed))


def _fitting(scale: Scale, weight: StoredTensor) -> Scale:
    stored = scale.tensor
    if stored.dtype not in FLOATS or weight.dtype not in (*EIGHT_BITS, *FLOATS):
        raise BadInput(f"{stored.name} has the type {stored.dtype} for {weight.dtype} weights", where=stored.file)
    if not _fits(stored.shape, weight.shape, scale.block):
        shapes = f"the shape {list(stored.shape)} and its weight {list(weight.shape)}"
        raise BadInput(f"{stored.name} has {shapes}", where=stored.file)
    return scale


def _fits(scale: tuple[int, ...], weight: tuple[int, ...], block: tuple[int, int] | None) -> bool:
    if block is not None:
        blocks = [math.ceil(size / step) for size, step in zip(weight[-2:], block, strict=False)]
        return len(weight) >= 2 and scale == (*weight[:-2], *blocks)
    leading = list(scale)
    while leading and leading[-1] == 1:
        leading.pop()
    return len(leading) < len(weight) and tuple(leading) == weight[: len(leading)]


def _table(exponent_bits: int, mantissa_bits: int, bias: int) -> npt.NDArray[np.float32]:
    """Return the values of all 256 codes of an 8-bit float (OCP 8-bit floating point specification)."""
    code = np.arange(256)
    sign = np.where(code & 0x80, -1.0, 1.0)
    exponent = (code & 0x7F) >> mantissa_bits
    mantissa = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    values = np.where(exponent, (1 + mantissa) * 2.0 ** (exponent - bias), mantissa * 2.0 ** (1 - bias))
    top = (1 << exponent_bits) - 1
    if exponent_bits == 4:
        values = np.where(code & 0x7F == 0x7F, np.nan, values)
    else:
        values = np.where(exponent == top, np.where(mantissa == 0, np.inf, np.nan), values)
    return (sign * values).astype(np.float32)


EIGHT_BITS: Mapping[str, npt.NDArray[np.float32]] = {
    "F8_E4M3": _table(4, 3, 7),
    "F8_E5M2": _table(5, 2, 15),
    "I8": np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float32),
}
"""The one-byte types with scales, and the values of their 256 codes."""


def read_scaled(checkpoint: Checkpoint, tensor: StoredTensor, first: int, count: int) -> npt.NDArray[np.float32]:
    """Return rows of a scaled weight, float32 of shape (``count``, row length)."""
    assert tensor.scale is not None
    length = tensor.row_length
    table = EIGHT_BITS.get(tensor.dtype)
    packed = tensor.scale.packed
    if isinstance(packed, Nvfp4):
        values = read_nvfp4(checkpoint, packed, first, count)
    elif packed is not None:
        values = read_packed(checkpoint, tensor, packed, first, count)
    else:
        raw = np.empty((count, length), dtype=np.uint8 if table is not None else FLOATS[tensor.dtype])
        checkpoint.read_into(tensor, first * length * tensor.itemsize, raw)
        values = np.take(table, raw) if table is not None else as_float32(raw, tensor.dtype)
    scales = _scale_rows(checkpoint, tensor, tensor.scale, first, count)
    block = tensor.scale.block
    if block is None:
        return np.multiply(values, scales, out=values)
    columns = block[1]
    whole = length // columns * columns
    parts = values[:, :whole].reshape(count, -1, columns)
    values[:, :whole] = (parts * scales[:, : whole // columns, None]).reshape(count, whole)
    if whole < length:
        values[:, whole:] *= scales[:, -1:]
    if isinstance(packed, Nvfp4):
        values *= second_factor(checkpoint, packed)
    return values


def _scale_rows(
    checkpoint: Checkpoint, tensor: StoredTensor, scale: Scale, first: int, count: int
) -> npt.NDArray[np.float32]:
    """Return the scales of rows, float32 of shape (``count``, scales per row); (1, 1) for a common scale."""
    stored = scale.tensor
    table = EIGHT_BITS.get(stored.dtype)
    raw = np.empty(stored.elements, dtype=np.uint8 if table is not None else FLOATS[stored.dtype])
    checkpoint.read_into(stored, 0, raw)
    values = as_float32(raw, stored.dtype) if table is None else np.abs(np.take(table, raw))
    if stored.elements == 1 and scale.block is None:
        return values.reshape(1, 1)
    rows = np.arange(first, first + count)
    if scale.block is None:
        per_row = tensor.elements // tensor.row_length // values.size
        found: npt.NDArray[np.float32] = values[rows // per_row][:, None]
        return found
    height = tensor.shape[-2]
    scale_height = stored.shape[-2]
    index = rows // height * scale_height + rows % height // scale.block[0]
    blocks: npt.NDArray[np.float32] = np.take(values.reshape(-1, stored.shape[-1]), index, axis=0)
    return blocks
