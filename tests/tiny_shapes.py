"""Names and shapes of the tensors of a tiny checkpoint, as the released models of its class have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.tiny_variants import Tiny

Shaped = Iterator[tuple[str, tuple[int, ...]]]


def tensor_shapes(tiny: Tiny) -> Shaped:
    """Yield name and shape of every tensor."""
    config = {**tiny.config, **tiny.config.get("text_config", {})}
    width, vocabulary = config["hidden_size"], config["vocab_size"]
    root = tiny.prefix
    yield f"{root}embed_tokens.weight", (vocabulary, width)
    if "hc_count" in config:
        yield from _mixer(f"{root}hyper_connection_mixer.", config)
    else:
        yield f"{root}norm.weight", (width,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (vocabulary, width)
    kinds = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
    for layer, kind in enumerate(kinds[: config["num_hidden_layers"]]):
        yield from _layer(f"{root}layers.{layer}.", config, kind, tiny.fused_experts)
        if layer + 1 in config.get("ple_layer_ids", ()):
            yield from _ngrams(f"{root}layers.{layer}.ple.", config)
    if tiny.mtp:
        yield from _mtp(config, tiny)
    if tiny.tower:
        yield from _tower(config["vision_config"], config["hidden_size"])


def _mtp(config: Mapping[str, Any], tiny: Tiny) -> Shaped:
    width = config["hidden_size"]
    at = f"{tiny.prefix}layers.{config['num_hidden_layers']}." if tiny.merged_mtp else "mtp."
    if hyper := config.get("hc_count"):
        yield f"{at}fc_embedding.weight", (width, width)
        yield f"{at}fc_hidden.weight", (width, width)
        yield f"{at}pre_fc_norm_embedding.weight", (width,)
        yield f"{at}pre_fc_norm_hidden.weight", (hyper * width,)
        yield from _mixer(f"{at}hyper_connection_mixer.", config)
    else:
        names = ("eh_proj", "enorm", "hnorm", "shared_head.norm")
        if not tiny.merged_mtp:
            names = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        projection, *norms = names
        yield f"{at}{projection}.weight", (width, 2 * width)
        for norm in norms:
            yield f"{at}{norm}.weight", (width,)
    yield from _layer(at if tiny.merged_mtp else f"{at}layers.0.", config, "full_attention", tiny.fused_experts)


def _mixer(at: str, config: Mapping[str, Any], inject: bool = False) -> Shaped:
    streams, rank = config["hc_count"] * config["hidden_size"], config["hc_lowrank"]
    yield f"{at}hc_norm.weight", (streams,)
    yield f"{at}input_mix_weight_down.weight", (rank, streams)
    yield f"{at}input_mix_weight_up.weight", (streams, rank)
    if inject:
        yield f"{at}block_inject_weight.weight", (config["hc_count"], streams)


def _tower(vision: Mapping[str, Any], text_width: int) -> Shaped:
    width, inner, patch = vision["hidden_size"], vision["intermediate_size"], vision["patch_size"]
    merged = width * vision["spatial_merge_size"] ** 2
    at = "model.visual."
    yield f"{at}patch_embed.proj.weight", (width, 3, 2, patch, patch)
    yield f"{at}patch_embed.proj.bias", (width,)
    yield f"{at}pos_embed.weight", (vision["num_position_embeddings"], width)
    for layer in range(vision["depth"]):
        block = f"{at}blocks.{layer}."
        sizes = (("attn.qkv", 3 * width, width), ("attn.proj", width, width))
        for name, out, into in (*sizes, ("mlp.linear_fc1", inner, width), ("mlp.linear_fc2", width, inner)):
            yield f"{block}{name}.weight", (out, into)
            yield f"{block}{name}.bias", (out,)
        for norm in ("norm1", "norm2"):
            yield f"{block}{norm}.weight", (width,)
            yield f"{block}{norm}.bias", (width,)
    mergers = [("merger", width)] + [
        (f"deepstack_merger_list.{n}", merged) for n, _ in enumerate(vision["deepstack_visual_indexes"])
    ]
    for merger, normed in mergers:
        for name, out in (("linear_fc1", merged), ("linear_fc2", text_width)):
            yield f"{at}{merger}.{name}.weight", (out, merged)
            yield f"{at}{merger}.{name}.bias", (out,)
        yield f"{at}{merger}.norm.weight", (normed,)
        yield f"{at}{merger}.norm.bias", (normed,)


def ngram_heads(config: Mapping[str, Any]) -> tuple[list[int], int]:
    """Return the size of each n-gram head's part of the table (primes in order), and the rows of the table."""
    sizes: list[int] = []
    number = config["ngram_vocab_size_base"]
    while len(sizes) < (config["ngram_size"] - 1) * config["heads_per_ngram"]:
        if all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            sizes.append(number)
        number += 1
    step = config["make_ngram_vocab_size_divisible_by"]
    return sizes, -(-sum(sizes) // step) * step


def _ngrams(at: str, config: Mapping[str, Any]) -> Shaped:
    """Yield an n-gram embedding; the shards of its table come last first."""
    streams, width = config["hc_count"] * config["hidden_size"], config["ple_embed_dim"]
    sizes, rows = ngram_heads(config)
    parts = config["split_ngram_parts"]
    yield f"{at}key_proj.weight", (streams, width)
    yield f"{at}value_proj.weight", (config["hidden_size"], width)
    for norm in ("norm_key", "norm_query", "norm_conv"):
        yield f"{at}{norm}.weight", (streams,)
    yield f"{at}conv1d.weight", (streams, 1, config["ple_conv_kernel_size"])
    yield f"{at}ple_embedding.layer_multipliers", (config["ngram_size"],)
    yield f"{at}ple_embedding.ngram_heads_offsets", (len(sizes),)
    yield f"{at}ple_embedding.ngram_heads_vocab_sizes", (len(sizes),)
    for part in reversed(range(parts)):
        here = rows * (part + 1) // parts - rows * part // parts
        yield f"{at}ple_embedding.ngram_embedding.shard_{part}.weight", (here, width // len(sizes))


def _layer(at: str, config: Mapping[str, Any], kind: str, fused: bool) -> Shaped:
    width = config["hidden_size"]
    if "hc_count" in config:
        yield from _mixer(f"{at}attn_hyper_connection.", config, inject=True)
        yield from _mixer(f"{at}mlp_hyper_connection.", config, inject=True)
    else:
        yield f"{at}input_layernorm.weight", (width,)
        yield f"{at}post_attention_layernorm.weight", (width,)
    yield from _linear(at, config) if kind == "linear_attention" else _attention(at, config)
    if "num_experts" not in config:
        yield from _mlp(f"{at}mlp.", width, config["intermediate_size"])
        return
    experts, inner = config["num_experts"], config["moe_intermediate_size"]
    yield f"{at}mlp.gate.weight", (experts, width)
    if fused:
        turned = "vl_moe" in config["model_type"]
        yield f"{at}mlp.experts.gate_up_proj", (experts, width, 2 * inner) if turned else (experts, 2 * inner, width)
        yield f"{at}mlp.experts.down_proj", (experts, inner, width) if turned else (experts, width, inner)
    else:
        for expert in range(experts):
            yield from _mlp(f"{at}mlp.experts.{expert}.", width, inner)
    if shared := config.get("shared_expert_intermediate_size"):
        yield from _mlp(f"{at}mlp.shared_expert.", width, shared)
        yield f"{at}mlp.shared_expert_gate.weight", (1, width)


def _mlp(at: str, width: int, inner: int) -> Shaped:
    yield f"{at}gate_proj.weight", (inner, width)
    yield f"{at}up_proj.weight", (inner, width)
    yield f"{at}down_proj.weight", (width, inner)


def _attention(at: str, config: Mapping[str, Any]) -> Shaped:
    width, heads, kv_heads = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or width // heads
    # The Qwen3-Next family keeps an output gate in the rows of q_proj.
    doubled = 2 if "linear_num_key_heads" in config else 1
    yield f"{at}self_attn.q_proj.weight", (heads * size * doubled, width)
    yield f"{at}self_attn.k_proj.weight", (kv_heads * size, width)
    yield f"{at}self_attn.v_proj.weight", (kv_heads * size, width)
    yield f"{at}self_attn.o_proj.weight", (width, heads * size)
    if config["model_type"].startswith("qwen2"):
        for part, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            yield f"{at}self_attn.{part}_proj.bias", (rows * size,)
    elif config["model_type"] not in ("llama", "smollm3", "mistral"):
        yield f"{at}self_attn.q_norm.weight", (size,)
        yield f"{at}self_attn.k_norm.weight", (size,)
    if heads := config.get("indexer_n_heads"):
        wide, indexer = config["indexer_head_dim"], f"{at}self_attn.indexer."
        yield f"{indexer}index_qk_proj.weight", ((heads + config["indexer_kv_heads"]) * wide, width)
        yield f"{indexer}q_layernorm.weight", (wide,)
        yield f"{indexer}k_layernorm.weight", (wide,)


def _linear(at: str, config: Mapping[str, Any]) -> Shaped:
    width = config["hidden_size"]
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key_rows, value_rows = keys * config["linear_key_head_dim"], values * config["linear_value_head_dim"]
    if config["model_type"] == "qwen3_next":
        yield f"{at}linear_attn.in_proj_qkvz.weight", (2 * key_rows + 2 * value_rows, width)
        yield f"{at}linear_attn.in_proj_ba.weight", (2 * values, width)
    else:
        yield f"{at}linear_attn.in_proj_qkv.weight", (2 * key_rows + value_rows, width)
        yield f"{at}linear_attn.in_proj_z.weight", (value_rows, width)
        yield f"{at}linear_attn.in_proj_b.weight", (values, width)
        yield f"{at}linear_attn.in_proj_a.weight", (values, width)
    yield f"{at}linear_attn.conv1d.weight", (2 * key_rows + value_rows, 1, config["linear_conv_kernel_dim"])
    yield f"{at}linear_attn.dt_bias", (values,)
    yield f"{at}linear_attn.A_log", (values,)
    yield f"{at}linear_attn.norm.weight", (config["linear_value_head_dim"],)
    yield f"{at}linear_attn.out_proj.weight", (width, value_rows)
