"""Adds the header keys that describe the network: sizes, heads, positions, and those of each family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gguf import GGUFValueType, GGUFWriter, RopeScalingType

from strata_pack.errors import BadInput
from strata_pack.weights.convert.arch import Architecture
from strata_pack.weights.convert.config import Config, linear_layers
from strata_pack.weights.convert.qwen4exp import NgramKeys

_MROPE_DEFAULT = [11, 11, 10, 0]
_SILENT_ROPE = ("default", "dynamic", "llama3", "mrope")
"""Kinds of rotary scaling without header keys: none, frequencies stored as a tensor, and dynamic scaling, which
llama.cpp's converter writes only for the one family that has it."""


def add_parameters(writer: GGUFWriter, config: Config, blocks: int) -> None:
    """Add the keys of all families: sizes, heads, rotary positions, experts."""
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
    """Add the present values: each row of ``table`` has the configuration's keys to try and the method that adds the
    value."""
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
    elif kind not in _SILENT_ROPE:
        raise BadInput(f"the rotary scaling {kind!r} is not supported", where=config.where)
    if sections := rope.get("mrope_section"):
        writer.add_rope_dimension_sections([*sections, 0, 0, 0, 0][:4])
    if rope.get("rope_theta") is not None:
        writer.add_rope_freq_base(rope["rope_theta"])


def add_family(
    writer: GGUFWriter, architecture: Architecture, config: Config, blocks: int, ngrams: NgramKeys | None
) -> None:
    """Add the keys of one family, after the common ones."""
    if architecture.rotate:
        writer.add_vocab_size(config.integer("vocab_size"))
        writer.add_rope_dimension_count(config.head_dim)
    if architecture.moe or architecture.linear:
        _add_all(
            config,
            (("moe_intermediate_size",), writer.add_expert_feed_forward_length),
            (("shared_expert_intermediate_size",), writer.add_expert_shared_feed_forward_length),
        )
    if architecture.seeing:
        vision = config.get("vision_config")
        deep = vision.get("deepstack_visual_indexes") if isinstance(vision, dict) else None
        writer.add_num_deepstack_layers(len(deep or ()))
    if architecture.linear:
        _linear(writer, config, blocks)
    if architecture.tiled and "mrope_section" not in config.rope:
        writer.add_rope_dimension_sections(_MROPE_DEFAULT)
    if architecture.hyper:
        _hyper(writer, config, blocks)
    if ngrams is not None:
        _ngrams(writer, config, ngrams)


def _linear(writer: GGUFWriter, config: Config, blocks: int) -> None:
    layers = config.layers
    if blocks > layers:
        writer.add_nextn_predict_layers(blocks - layers)
    writer.add_ssm_conv_kernel(config.integer("linear_conv_kernel_dim"))
    writer.add_ssm_state_size(config.integer("linear_key_head_dim"))
    writer.add_ssm_group_count(config.integer("linear_num_key_heads"))
    writer.add_ssm_time_step_rank(config.integer("linear_num_value_heads"))
    writer.add_ssm_inner_size(config.integer("linear_value_head_dim") * config.integer("linear_num_value_heads"))
    linear = linear_layers(config) + [False] * (blocks - layers)
    writer.add_array(f"{writer.arch}.attention.recurrent_layers", linear)
    writer.add_full_attention_interval(config.get("full_attention_interval") or 4)
    writer.add_rope_dimension_count(int(config.head_dim * config.rope.get("partial_rotary_factor", 0.25)))


def _hyper(writer: GGUFWriter, config: Config, blocks: int) -> None:
    """Add hyper-connections and the indexer.

    Every layer that is not linear has an indexer, for any spelling of its attention in config.json; llama.cpp's
    converter recognises one of the three spellings and switches the others to dense attention.
    """
    writer.add_uint32(f"{writer.arch}.hyper_connection.count", config.integer("hc_count"))
    writer.add_uint32(f"{writer.arch}.hyper_connection.low_rank", config.integer("hc_lowrank"))
    writer.add_indexer_head_count(config.integer("indexer_n_heads"))
    writer.add_indexer_key_length(config.integer("indexer_head_dim"))
    writer.add_indexer_top_k(config.integer("indexer_budget"))
    ratio = config.integer("indexer_compress_ratio")
    ratios = [0 if linear else ratio for linear in linear_layers(config)]
    ratios += [ratio] * (blocks - config.layers)
    writer.add_array(f"{writer.arch}.attention.compress_ratios", ratios)


def _ngrams(writer: GGUFWriter, config: Config, ngrams: NgramKeys) -> None:
    end = config.get("eos_token_id")
    if isinstance(end, list) and end:
        end = end[-1]
    if type(end) is not int:
        raise BadInput(f"eos_token_id is {end!r}, but n-grams restart at it", where=config.where)
    ple = f"{writer.arch}.ple."
    writer.add_array(f"{ple}layers", [ngrams.layer])
    writer.add_uint32(f"{ple}ngram_size", config.integer("ngram_size"))
    writer.add_uint32(f"{ple}heads_per_ngram", config.integer("heads_per_ngram"))
    writer.add_uint32(f"{ple}conv_kernel", config.integer("ple_conv_kernel_size"))
    writer.add_uint32(f"{ple}eos_token_id", end)
    image = config.get("image_token_id")
    if image is not None:
        writer.add_uint32(f"{ple}image_token_id", image)
    writer.add_embedding_length_per_layer_input(ngrams.row_length)
    for key, values in (
        ("layer_multipliers", ngrams.multipliers),
        ("head_offsets", ngrams.head_offsets),
        ("head_vocab_sizes", ngrams.head_vocab_sizes),
    ):
        # 45 bits, which the package would write as 32-bit integers.
        writer.add_key_value(f"{ple}{key}", list(values), GGUFValueType.ARRAY, GGUFValueType.UINT64)
