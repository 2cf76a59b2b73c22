"""The GGUF header of a converted model: who made it, what it is, how it is tokenized, in llama.cpp's order.

Keys and their types come from ``gguf.GGUFWriter``, which only collects them here; nothing is written through it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGUFValueType, GGUFWriter, LlamaFileType, RopeScalingType
from yaml import YAMLError  # type: ignore[import-untyped]

from strata_pack.errors import BadInput
from strata_pack.files import read_bytes
from strata_pack.weights.convert.arch import CARD_LIMIT, Architecture
from strata_pack.weights.convert.config import Config, read_json_object
from strata_pack.weights.gguf.file import MetaValue
from strata_pack.weights.tokenizer.special import SpecialTokens

_MROPE_DEFAULT = [11, 11, 10, 0]
_GRANITE_VOCABULARY = 49152


class _Writer(GGUFWriter):
    """A collector of keys: never opened, never written."""

    def __init__(self, architecture: Architecture) -> None:
        logging.getLogger("gguf.gguf_writer").setLevel(logging.ERROR)
        super().__init__(path=None, arch=gguf.MODEL_ARCH_NAMES[architecture.gguf])


def build_metadata(
    folder: Path,
    architecture: Architecture,
    config: Config,
    tensors: Sequence[tuple[str, tuple[int, ...]]],
    file_type: LlamaFileType,
    blocks: int,
    tokenizer: Mapping[str, Any],
    special: SpecialTokens,
    name: str | None = None,
) -> dict[str, MetaValue]:
    """Return the whole header: ``tensors`` are GGUF name and shape as PyTorch counts it, ``blocks`` layers with MTP.

    ``tokenizer`` holds ``model``, ``pre``, ``tokens``, ``types`` and ``merges`` or ``scores``. ``name`` overrides the
    model's name. ``BadInput`` when a value does not fit its key.
    """
    writer = _Writer(architecture)
    for tensor, shape in tensors:
        writer.add_tensor_info(tensor, shape, _FLOAT32, 0, gguf.GGMLQuantizationType.F32)
    counts = writer.get_total_parameter_count()
    metadata = _general(folder, counts[0], name)
    if metadata.size_label is None and counts[0] > 0:
        metadata.size_label = gguf.size_label(*counts)
    writer.add_type(gguf.GGUFType.MODEL)
    metadata.set_gguf_meta_model(writer)
    _parameters(writer, config, blocks)
    writer.add_file_type(file_type)
    _family(writer, architecture, config, blocks)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _tokenizer(writer, tokenizer, special)
    if architecture.name == "llama" and config.get("vocab_size") == _GRANITE_VOCABULARY:
        writer.add_add_bos_token(False)
    return _values(writer, config.where)


_FLOAT32 = np.dtype("float32")


def _general(folder: Path, parameters: int, name: str | None) -> gguf.Metadata:
    card = folder / "README.md"
    if card.exists():
        read_bytes(card, CARD_LIMIT)
    generation = folder / "generation_config.json"
    settings = read_json_object(generation) if generation.exists() else {}
    try:
        metadata = gguf.Metadata.load(None, folder, name, parameters)
    except (YAMLError, ValueError, TypeError, AttributeError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise BadInput(f"the head of the model card is malformed ({reason})", where=card, remedy="repair it") from error
    # A later version of the converter than gguf 0.19 has reads this name too.
    if "repetition_penalty" in settings and "penalty_repeat" not in settings:
        metadata.sampling_penalty_repeat = settings["repetition_penalty"]
    if metadata.name is None:
        metadata.name = folder.name
    return metadata


def _parameters(writer: GGUFWriter, config: Config, blocks: int) -> None:
    writer.add_block_count(blocks)
    _add_all(
        config,
        (("max_position_embeddings",), writer.add_context_length),
        (("hidden_size",), writer.add_embedding_length),
        (("intermediate_size",), writer.add_feed_forward_length),
        (("num_attention_heads",), writer.add_head_count),
        (("num_key_value_heads",), writer.add_head_count_kv),
    )
    _rope(writer, config)
    _add_all(
        config,
        (("rms_norm_eps",), writer.add_layer_norm_rms_eps),
        (("num_local_experts", "num_experts"), writer.add_expert_count),
        (("num_experts_per_tok",), writer.add_expert_used_count),
        (("head_dim",), writer.add_key_length),
        (("head_dim",), writer.add_value_length),
    )


def _add_all(config: Config, *table: tuple[tuple[str, ...], Callable[[Any], None]]) -> None:
    """Add what the configuration has: each row of ``table`` is the keys to look under and the way to add the value."""
    for keys, add in table:
        value = config.get(*keys)
        if value is not None:
            add(value)


def _rope(writer: GGUFWriter, config: Config) -> None:
    rope = config.rope
    kind, factor = rope.get("rope_type"), rope.get("factor")
    if kind == "linear" and factor is not None:
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(factor)
    elif kind == "yarn" and factor is not None:
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(factor)
        if "original_max_position_embeddings" not in rope:
            raise BadInput("yarn scaling has no original_max_position_embeddings", where=config.where)
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for key, add in (
            ("extrapolation_factor", writer.add_rope_scaling_yarn_ext_factor),
            ("attention_factor", writer.add_rope_scaling_yarn_attn_factor),
            ("beta_fast", writer.add_rope_scaling_yarn_beta_fast),
            ("beta_slow", writer.add_rope_scaling_yarn_beta_slow),
        ):
            value = rope.get(key, rope.get("attn_factor") if key == "attention_factor" else None)
            if value is not None:
                add(value)
    elif kind in ("su", "longrope"):
        writer.add_rope_scaling_type(RopeScalingType.LONGROPE)
    elif kind not in ("default", "llama3"):
        raise BadInput(f"the rotary scaling {kind!r} is not supported", where=config.where)
    if sections := rope.get("mrope_section"):
        writer.add_rope_dimension_sections([*sections, 0, 0, 0, 0][:4])
    if rope.get("rope_theta") is not None:
        writer.add_rope_freq_base(rope["rope_theta"])


def _family(writer: GGUFWriter, architecture: Architecture, config: Config, blocks: int) -> None:
    if architecture.name == "llama":
        writer.add_vocab_size(config.integer("vocab_size"))
        writer.add_rope_dimension_count(config.head_dim)
    if architecture.moe or architecture.linear:
        _add_all(
            config,
            (("moe_intermediate_size",), writer.add_expert_feed_forward_length),
            (("shared_expert_intermediate_size",), writer.add_expert_shared_feed_forward_length),
        )
    if architecture.linear:
        _linear(writer, config, blocks)
    if architecture.tiled and "mrope_section" not in config.rope:
        writer.add_rope_dimension_sections(_MROPE_DEFAULT)


def _linear(writer: GGUFWriter, config: Config, blocks: int) -> None:
    layers = config.layers
    if blocks > layers:
        writer.add_nextn_predict_layers(blocks - layers)
    writer.add_ssm_conv_kernel(config.integer("linear_conv_kernel_dim"))
    writer.add_ssm_state_size(config.integer("linear_key_head_dim"))
    writer.add_ssm_group_count(config.integer("linear_num_key_heads"))
    writer.add_ssm_time_step_rank(config.integer("linear_num_value_heads"))
    writer.add_ssm_inner_size(config.integer("linear_value_head_dim") * config.integer("linear_num_value_heads"))
    interval = config.get("full_attention_interval") or 4
    kinds = config.get("layer_types")
    if kinds is None:
        kinds = ["full_attention" if (n + 1) % interval == 0 else "linear_attention" for n in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise BadInput(f"layer_types is no list of {layers} layers", where=config.where)
    recurrent = [kind == "linear_attention" for kind in kinds] + [False] * (blocks - layers)
    writer.add_array(f"{writer.arch}.attention.recurrent_layers", recurrent)
    writer.add_full_attention_interval(interval)
    writer.add_rope_dimension_count(int(config.head_dim * config.rope.get("partial_rotary_factor", 0.25)))


def _tokenizer(writer: GGUFWriter, tokenizer: Mapping[str, Any], special: SpecialTokens) -> None:
    writer.add_tokenizer_model(tokenizer["model"])
    writer.add_tokenizer_pre(tokenizer["pre"])
    writer.add_token_list(tokenizer["tokens"])
    if "scores" in tokenizer:
        writer.add_token_scores(tokenizer["scores"])
    writer.add_token_types(tokenizer["types"])
    if tokenizer.get("merges"):
        writer.add_token_merges(tokenizer["merges"])
    for role, number in special.ids.items():
        add = getattr(writer, f"add_{role}_token_id", None)
        if add is not None:
            add(number)
    for role, flag in special.added.items():
        add = getattr(writer, f"add_add_{role}_token", None)
        if add is not None:
            add(flag)
    if special.templates:
        writer.add_chat_template([{"name": name, "template": text} for name, text in special.templates.items()])


def _values(writer: GGUFWriter, where: Path) -> dict[str, MetaValue]:
    found: dict[str, MetaValue] = {}
    for key, entry in writer.kv_data[0].items():
        value, item_type = entry.value, None
        if entry.type is GGUFValueType.ARRAY:
            value = list(value)
            item_type = GGUFValueType(entry.sub_type or GGUFValueType.get_type(value[0]))
        try:
            found[key] = MetaValue(entry.type, value, item_type)
        except ValueError as error:
            raise BadInput(f"{key} cannot be {str(entry.value)[:80]!r} ({error})", where=where) from error
    return found
