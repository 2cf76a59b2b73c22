"""Selects the tensors of the text model, and finds its draft head.

MTP layers (multi-token prediction) are put after the normal ones, whether they are stored as ``mtp.*`` or, in merges,
as ``model.layers.N.*``. Scales of 8-bit weights are attached to their weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from strata_pack.errors import BadInput
from strata_pack.weights.convert.arch import Architecture
from strata_pack.weights.convert.config import Config
from strata_pack.weights.convert.safetensors import FLOATS, StoredTensor
from strata_pack.weights.convert.scales import EIGHT_BITS, Encoding, Named, with_scales

ModelPart = Literal["model", "trunk", "mtp"]
"""The part of a text model to convert: all of it, all but the MTP layers, or only the MTP layers as a separate file."""

# Tensors that llama.cpp's converter leaves out of text models: vision and audio parts, and constants.
OTHER_SENSES = re.compile(
    r"^(mlp|vit\.|vpm\.|siglip2\.|conformer\.|merger\.|resampler\.|sound_encoder\.|sound_projection\.|speech_embeddings\.)"
    r"|visual\.|vision\.|audio\.|talker\.|vision_|audio_|token2wav\.|code2wav\.|projector\.|pre_mm_projector_norm"
    r"|image_newline|view_seperator|patch_embed|patch_merger\.|patch_merge_mlp\.|model\.connector\."
)
_CONSTANTS = (".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq")
HASH_CONSTANTS = (
    ".ple_embedding.layer_multipliers",
    ".ple_embedding.ngram_heads_offsets",
    ".ple_embedding.ngram_heads_vocab_sizes",
)
"""The integers of an n-gram embedding: they become header keys, because floats cannot represent them."""

_MTP_NAMES = {
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head.norm",
    "fc_embedding": "nextn_fc_embedding",
    "fc_hidden": "nextn_fc_hidden",
    "hyper_connection_mixer": "nextn_hc_head",
}
_MTP_ONLY = re.compile(r"\.(eh_proj|enorm|hnorm|shared_head\.\w+|nextn_\w+)\.")
_WITH_MTP = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
_BARE = ("layers.", "embed_tokens.", "norm.")
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_QUANTIZED = (".qweight", ".qzeros", ".scales", ".weight_scale", ".weight_scale_inv", ".weight_packed", ".g_idx")


@dataclass(frozen=True)
class TextTensors:
    """``named`` in the order of the checkpoint; ``constants`` by their ending; ``mtp_layers`` are among ``named``."""

    named: Named
    constants: Mapping[str, StoredTensor]
    mtp_layers: int
    other_senses: int
    """The number of tensors of a vision or audio tower."""


def text_tensors(
    tensors: Iterable[StoredTensor],
    architecture: Architecture,
    config: Config,
    encoding: Encoding | None,
    part: ModelPart,
    where: Path,
) -> TextTensors:
    """Return the text model's tensors under their usual names.

    ``BadInput`` for weights that are not floats, and if config.json has another number of layers.
    """
    layers = config.layers
    named: Named = []
    constants: dict[str, StoredTensor] = {}
    others = 0
    for tensor in tensors:
        if OTHER_SENSES.search(tensor.name):
            others += 1
            continue
        name = tensor.name.replace("language_model.", "")
        if name.endswith(_CONSTANTS):
            continue
        constant = next((ending for ending in HASH_CONSTANTS if name.endswith(ending)), None)
        if constant is not None and architecture.hyper:
            constants[constant] = tensor
            continue
        name = name.removeprefix("model.") if name.startswith("model.mtp.") else name
        # Retrieval models are often stored without the class around the text model.
        name = f"model.{name}" if name.startswith(_BARE) else name
        named.append((_mtp_name(name, layers) if name.startswith("mtp.") else name, tensor))
    if others and not named:
        raise BadInput("has only a vision or audio tower", where=where, remedy="convert it with --mmproj")
    named = with_scales(named, encoding, where)
    for _, tensor in named:
        _check_type(tensor, where)
    found = _count_layers(named)
    mtp = _mtp_layers(found, named, architecture, config, part, where)
    kept = [(name, tensor) for name, tensor in named if _wanted(name, layers, part)]
    return TextTensors(kept, constants, 0 if part == "trunk" else mtp, others)


def _wanted(name: str, layers: int, part: ModelPart) -> bool:
    match = _LAYER.match(name)
    if match is not None and int(match[1]) >= layers:
        return part != "trunk"
    return part != "mtp" or name in _WITH_MTP


def _mtp_name(name: str, layers: int) -> str:
    parts = name.split(".", 3)
    if len(parts) == 4 and parts[1] == "layers" and parts[2].isdecimal():
        return f"model.layers.{layers + int(parts[2])}.{parts[3]}"
    rest = name.split(".", 2)
    if len(rest) == 3 and rest[1] in _MTP_NAMES:
        return f"model.layers.{layers}.{_MTP_NAMES[rest[1]]}.{rest[2]}"
    return name


def _count_layers(named: Named) -> int:
    numbers = {int(match[1]) for name, _ in named if (match := _LAYER.match(name))}
    return max(numbers) + 1 if numbers else 0


def _mtp_layers(
    found: int, named: Named, architecture: Architecture, config: Config, part: ModelPart, where: Path
) -> int:
    """Return the number of MTP layers; ``BadInput`` if it contradicts config.json or the caller's request."""
    layers, mtp = config.layers, max(0, found - config.layers)
    head = {int(match[1]) for name, _ in named if _MTP_ONLY.search(name) and (match := _LAYER.match(name))}
    if found < layers or (mtp and not head) or any(number < layers for number in head):
        real = min(head) if head else found
        problem = f"config.json says {layers} layers, but the weights have {real}"
        raise BadInput(problem, where=where, remedy="the checkpoint is incomplete or config.json is of another model")
    if not architecture.linear:
        if mtp or part == "mtp":
            raise BadInput(
                f"has layers for multi-token prediction, which {architecture.name} does not support", where=where
            )
        return 0
    promised = config.get("mtp_num_hidden_layers") or 0
    if type(promised) is not int:
        raise BadInput(f"mtp_num_hidden_layers is {promised!r}, not a count", where=config.where)
    if part == "mtp" and not mtp:
        raise BadInput("has no layers for multi-token prediction", where=where, remedy="convert it without --mtp")
    if part != "trunk" and promised and promised != mtp:
        raise BadInput(
            f"config.json says {promised} MTP layers, but the weights have {mtp}",
            where=where,
            remedy="leave them out with --no-mtp",
        )
    return mtp


def _check_type(tensor: StoredTensor, where: Path) -> None:
    if tensor.name.endswith(_QUANTIZED):
        kind = "8 bits" if "scale" in tensor.name else "INT4, AWQ or GPTQ"
        raise BadInput(
            f"{tensor.name} is quantized already ({kind})", where=where, remedy="convert the original BF16 checkpoint"
        )
    if tensor.dtype not in FLOATS and tensor.dtype not in EIGHT_BITS:
        raise BadInput(f"{tensor.name} has the type {tensor.dtype}, not one of {', '.join(FLOATS)}", where=where)
    if not tensor.elements:
        raise BadInput(f"{tensor.name} has the shape {list(tensor.shape)} and no elements", where=where)
