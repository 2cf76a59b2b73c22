"""Converts a vision tower of the Qwen3-VL kind to the projector file that llama.cpp loads with a model.

Qwen3-VL (dense and mixture of experts), Qwen3.5, 3.6, 3.8 and Qwen3.8-Flash-Next have this tower. The projector's
header has ``clip.*`` keys and no tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from strata_pack.errors import BadInput
from strata_pack.files import read_json_object
from strata_pack.weights.convert.config import Config
from strata_pack.weights.convert.defaults import VISION
from strata_pack.weights.convert.metadata import CheckpointFacts, Collector, add_general, collected
from strata_pack.weights.convert.names import FINAL
from strata_pack.weights.convert.safetensors import FLOATS, StoredTensor
from strata_pack.weights.convert.scales import EIGHT_BITS, Encoding, Named, with_scales
from strata_pack.weights.convert.views import Piece, View
from strata_pack.weights.gguf.file import MetaValue

CLASSES = (
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "Qwen4ExpForConditionalGeneration",
)
"""The classes with this tower."""

PATCHES = "v.patch_embd.weight"
_MERGER = {"linear_fc1": "mm.0", "linear_fc2": "mm.2", "norm": "v.post_ln"}
_DEEPSTACK = re.compile(r"visual\.deepstack_merger_list\.(\d+)\.(norm|linear_fc1|linear_fc2)\.(weight|bias)")
_DEEP = {"norm": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2"}
_BLOCK = re.compile(r"visual\.blocks\.(\d+)\.")
_TEMPORAL = 2
"""Frames per patch: the convolution over them becomes one convolution for each frame."""


@dataclass(frozen=True)
class Tower:
    """The vision configuration, ``width`` of the text model, ``epsilon`` of its norms, and deepstack ``layers``."""

    config: Config
    width: int
    epsilon: float
    layers: tuple[int, ...]

    @property
    def depth(self) -> int:
        return self.config.integer("depth")


def has_tower(raw: Mapping[str, Any]) -> bool:
    """Return whether a config.json is of a class with the supported tower."""
    return isinstance(raw.get("vision_config"), dict) and _class(raw) in CLASSES


def _class(raw: Mapping[str, Any]) -> str | None:
    vision = raw.get("vision_config")
    for names in (vision.get("architectures") if isinstance(vision, dict) else None, raw.get("architectures")):
        if isinstance(names, list) and names:
            return str(names[0])
    return None


def read_tower(raw: Mapping[str, Any], where: Path) -> Tower:
    """Return the tower that a config.json describes; ``BadInput``, with the name, for an unsupported one."""
    vision = raw.get("vision_config")
    if not isinstance(vision, dict):
        raise BadInput("has no vision_config", where=where, remedy="the model has no projector: leave out --mmproj")
    if _class(raw) not in CLASSES:
        raise BadInput(
            f"the tower of {_class(raw)} is not supported",
            where=where,
            remedy=f"use a GGUF version of its projector, or one of {', '.join(CLASSES)}",
        )
    text = raw.get("text_config")
    merged = {**raw, **(text if isinstance(text, dict) else {})}
    width = merged.get("hidden_size")
    if type(width) is not int or width <= 0:
        raise BadInput(f"hidden_size is {width!r}, not a positive integer", where=where)
    values = {**VISION, **{key: value for key, value in vision.items() if value is not None}}
    config = Config(values, {}, where)
    deep = values.get("deepstack_visual_indexes") or []
    if not isinstance(deep, list) or any(type(n) is not int or not 0 <= n < config.integer("depth") for n in deep):
        raise BadInput(f"deepstack_visual_indexes is {deep!r}, not layers of the tower", where=where)
    epsilon = text.get("rms_norm_eps", 1e-6) if isinstance(text, dict) else 1e-6
    return Tower(config, width, epsilon, tuple(deep))


def tower_tensors(tensors: Iterable[StoredTensor], tower: Tower, encoding: Encoding | None, where: Path) -> Named:
    """Return the tower's tensors as ``visual.*``, after a check of their shapes; ``BadInput`` as for a text model."""
    named: Named = []
    for tensor in tensors:
        name = tensor.name.removeprefix("model.") if tensor.name.startswith("model.visual.") else tensor.name
        if name.startswith("visual.") and "language_model." not in name:
            named.append((name, tensor))
    if not named:
        raise BadInput("has no tensors of a vision tower", where=where, remedy="leave out --mmproj")
    named = with_scales(named, encoding, where)
    shapes = _shapes(tower)
    depth = 0
    for name, tensor in named:
        if (tensor.dtype not in FLOATS and tensor.dtype not in EIGHT_BITS) or not tensor.elements:
            raise BadInput(f"{tensor.name} is {tensor.dtype} {list(tensor.shape)}", where=where)
        block = _BLOCK.match(name)
        depth = max(depth, int(block[1]) + 1) if block else depth
        expected = shapes.get(_BLOCK.sub("", name) if block else name)
        if expected is not None and tensor.shape != expected:
            raise BadInput(
                f"{tensor.name} is {list(tensor.shape)}, but config.json says {list(expected)}",
                where=where,
                remedy="config.json is of another model, or damaged",
            )
    if depth != tower.depth:
        raise BadInput(f"config.json says {tower.depth} layers of the tower and the weights have {depth}", where=where)
    return named


def _shapes(tower: Tower) -> Mapping[str, tuple[int, ...]]:
    config = tower.config
    width, inner, patch = (config.integer(key) for key in ("hidden_size", "intermediate_size", "patch_size"))
    merged = width * config.integer("spatial_merge_size") ** 2
    frames = config.get("temporal_patch_size") or _TEMPORAL
    if frames != _TEMPORAL:
        raise BadInput(f"temporal_patch_size is {frames!r}, and only {_TEMPORAL} is supported", where=config.where)
    return {
        "attn.qkv.weight": (3 * width, width),
        "attn.proj.weight": (width, width),
        "mlp.linear_fc1.weight": (inner, width),
        "mlp.linear_fc2.weight": (width, inner),
        "visual.pos_embed.weight": (config.integer("num_position_embeddings"), width),
        "visual.patch_embed.proj.weight": (width, config.get("in_channels") or 3, _TEMPORAL, patch, patch),
        "visual.merger.linear_fc1.weight": (merged, merged),
        "visual.merger.linear_fc2.weight": (tower.width, merged),
    }


def tower_views(named: Named, tower: Tower, where: Path) -> list[View]:
    """Return the output tensors in the order of the checkpoint, with GGUF names."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, tower.depth)
    views: list[View] = []
    for name, tensor in named:
        if name == "visual.patch_embed.proj.weight":
            views += _patches(tensor)
            continue
        found = _fixed(name, tower) or names.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise BadInput(f"the tensor {tensor.name} does not belong to the tower", where=where)
        views.append(View.whole(FINAL + found, tensor))
    return views


def _fixed(name: str, tower: Tower) -> str | None:
    if name == "visual.patch_embed.proj.bias":
        return "v.patch_embd.bias"
    if name.startswith("visual.merger."):
        part, _, tail = name.removeprefix("visual.merger.").partition(".")
        return f"{_MERGER[part]}.{tail}" if part in _MERGER else None
    match = _DEEPSTACK.fullmatch(name)
    if match is None or int(match[1]) >= len(tower.layers):
        return None
    return f"v.deepstack.{tower.layers[int(match[1])]}.{_DEEP[match[2]]}.{match[3]}"


def _patches(tensor: StoredTensor) -> list[View]:
    """Split the convolution over two frames, shape [out, colours, frame, height, width], into one for each frame."""
    out, colours, frames, height, width = tensor.shape
    rows = np.arange(out * colours * frames * height).reshape(out * colours, frames, height)
    suffixes = ("", ".1")
    return [
        View(FINAL + PATCHES + suffix, (out, colours, height, width), (Piece(tensor, rows[:, frame].reshape(-1)),))
        for frame, suffix in enumerate(suffixes)
    ]


def tower_metadata(facts: CheckpointFacts, tower: Tower) -> dict[str, MetaValue]:
    """Return the header of a projector; ``BadInput`` without the mean and standard deviation for scaling images."""
    writer = Collector("clip")
    add_general(writer, facts, gguf.GGUFType.MMPROJ)
    config, mean, deviation = tower.config, *_scaling(facts.folder)
    writer.add_file_type(facts.file_type)
    writer.add_clip_has_vision_encoder(True)
    writer.add_vision_projection_dim(tower.width)
    patch = config.integer("patch_size")
    size = config.get("image_size")
    if size is None:
        size = int(config.integer("num_position_embeddings") ** 0.5 * patch)
    writer.add_vision_image_size(size)
    writer.add_vision_patch_size(patch)
    writer.add_vision_embedding_length(config.integer("hidden_size"))
    writer.add_vision_feed_forward_length(config.integer("intermediate_size"))
    writer.add_vision_block_count(tower.depth)
    writer.add_vision_head_count(config.integer("num_heads"))
    writer.add_vision_image_mean(mean)
    writer.add_vision_image_std(deviation)
    writer.add_clip_projector_type(gguf.VisionProjectorType.QWEN3VL)
    writer.add_vision_use_gelu(True)
    writer.add_vision_spatial_merge_size(config.integer("spatial_merge_size"))
    writer.add_vision_attention_layernorm_eps(tower.epsilon)
    writer.add_vision_is_deepstack_layers([layer in tower.layers for layer in range(tower.depth)])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    return collected(writer, config.where)


def _scaling(folder: Path) -> tuple[list[float], list[float]]:
    settings: dict[str, Any] = {}
    for name, inner in (("preprocessor_config.json", "media_proc_cfg"), ("processor_config.json", "image_processor")):
        path = folder / name
        if path.is_file():
            found = read_json_object(path)
            nested = found.get(inner)
            settings |= {**found, **(nested if isinstance(nested, dict) else {})}
    values = settings.get("image_mean"), settings.get("image_std")
    for value in values:
        if not isinstance(value, list) or len(value) != 3 or not all(isinstance(n, (int, float)) for n in value):
            raise BadInput(
                f"image_mean and image_std are {values[0]!r} and {values[1]!r}, not three numbers each",
                where=folder / "preprocessor_config.json",
                remedy="fetch it from the model's repository",
            )
    return [*map(float, values[0] or ())], [*map(float, values[1] or ())]
