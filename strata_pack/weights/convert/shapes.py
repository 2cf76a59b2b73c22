"""Checks the sizes in config.json against the tensors' shapes before they are used.

A wrong size could cost gigabytes of memory or give a file that no server loads. The shapes are in the headers of the
weights, a few kilobytes that can be read from the Hub before the weights are downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from strata_pack.errors import BadInput
from strata_pack.weights.convert.arch import Architecture
from strata_pack.weights.convert.config import Config
from strata_pack.weights.convert.scales import Named

TensorShape = tuple[int | None, ...]
"""In PyTorch's order; None is a size that config.json does not have."""

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"mlp\.experts\.\d+\.")


def check_shapes(named: Named, architecture: Architecture, config: Config, where: Path) -> None:
    """Raise ``BadInput`` for weights with another shape than in ``config``, and for more experts per token than
    there are."""
    top, layer = _top(architecture, config), _layer(architecture, config)
    for name, tensor in named:
        match = _LAYER.fullmatch(name)
        if match is None:
            expected = top.get(name)
        else:
            expected = layer.get(_EXPERT.sub("mlp.experts.one.", match[2]).removesuffix(".weight"))
        if expected is not None and not _equal(tensor.shape, expected):
            said = ", ".join("any" if size is None else str(size) for size in expected)
            raise BadInput(
                f"{tensor.name} is {list(tensor.shape)}, but config.json says [{said}]",
                where=where,
                remedy="config.json is of another model, or damaged",
            )
    if architecture.moe:
        experts, used = config.integer("num_local_experts", "num_experts"), config.integer("num_experts_per_tok")
        if used > experts:
            raise BadInput(f"num_experts_per_tok is {used}, but there are {experts} experts", where=config.where)


def check_complete(names: Iterable[str], needed: Iterable[str], where: Path) -> None:
    """Raise ``BadInput`` if one of the tensors ``needed`` (GGUF names) is missing."""
    there = set(names)
    for name in needed:
        if name not in there:
            raise BadInput(
                f"has no tensor that becomes {name}",
                where=where,
                remedy="the checkpoint is incomplete or config.json is of another model",
            )


def _equal(shape: tuple[int, ...], expected: TensorShape) -> bool:
    return len(shape) == len(expected) and all(
        want is None or size == want for size, want in zip(shape, expected, strict=True)
    )


def _top(architecture: Architecture, config: Config) -> Mapping[str, TensorShape]:
    rows: TensorShape = (config.integer("vocab_size"), config.integer("hidden_size"))
    top = {"model.embed_tokens.weight": rows, "lm_head.weight": rows, "model.norm.weight": rows[1:]}
    if architecture.hyper:
        streams, rank = rows[1] * config.integer("hc_count") if rows[1] else 0, config.integer("hc_lowrank")
        mixer = "model.hyper_connection_mixer."
        top[f"{mixer}hc_norm.weight"] = (streams,)
        top[f"{mixer}input_mix_weight_down.weight"] = (rank, streams)
        top[f"{mixer}input_mix_weight_up.weight"] = (streams, rank)
    return top


def _layer(architecture: Architecture, config: Config) -> Mapping[str, TensorShape]:
    """Return the shapes of a layer's tensors, without ``.weight``."""
    width = config.integer("hidden_size")
    found: dict[str, TensorShape] = _attention(architecture, config, width)
    inner = config.get("intermediate_size")
    if inner is not None:
        found |= _mlp("mlp.", config.integer("intermediate_size"), width)
    if architecture.moe:
        found |= _experts(architecture, config, width)
    if architecture.linear:
        found |= _linear_attention(config, width)
    if architecture.hyper:
        found |= _hyper(config, width)
    return found


def _attention(architecture: Architecture, config: Config, width: int) -> dict[str, TensorShape]:
    heads, shared, size = config.integer("num_attention_heads"), config.integer("num_key_value_heads"), config.head_dim
    # The Qwen3-Next family has an output gate in the rows of q_proj.
    gated = 2 if architecture.linear else 1
    found: dict[str, TensorShape] = {
        "self_attn.q_proj": (heads * size * gated, width),
        "self_attn.k_proj": (shared * size, width),
        "self_attn.v_proj": (shared * size, width),
        "self_attn.o_proj": (width, heads * size),
    }
    if architecture.head_norms:
        found |= {"self_attn.q_norm": (size,), "self_attn.k_norm": (size,)}
    return found


def _mlp(at: str, inner: int, width: int) -> dict[str, TensorShape]:
    return {f"{at}gate_proj": (inner, width), f"{at}up_proj": (inner, width), f"{at}down_proj": (width, inner)}


def _experts(architecture: Architecture, config: Config, width: int) -> dict[str, TensorShape]:
    count, inner = config.integer("num_local_experts", "num_experts"), config.integer("moe_intermediate_size")
    found = {"mlp.gate": (count, width), **_mlp("mlp.experts.one.", inner, width)}
    turned = architecture.transposed
    found["mlp.experts.gate_up_proj"] = (count, width, 2 * inner) if turned else (count, 2 * inner, width)
    found["mlp.experts.down_proj"] = (count, inner, width) if turned else (count, width, inner)
    if config.get("shared_expert_intermediate_size"):
        found |= _mlp("mlp.shared_expert.", config.integer("shared_expert_intermediate_size"), width)
        found["mlp.shared_expert_gate"] = (1, width)
    return found


def _linear_attention(config: Config, width: int) -> dict[str, TensorShape]:
    keys, values = config.integer("linear_num_key_heads"), config.integer("linear_num_value_heads")
    key_rows = keys * config.integer("linear_key_head_dim")
    size = config.integer("linear_value_head_dim")
    mixed, at = 2 * key_rows + values * size, "linear_attn."
    return {
        f"{at}in_proj_qkv": (mixed, width),
        f"{at}in_proj_z": (values * size, width),
        f"{at}in_proj_a": (values, width),
        f"{at}in_proj_b": (values, width),
        f"{at}in_proj_qkvz": (mixed + values * size, width),
        f"{at}in_proj_ba": (2 * values, width),
        f"{at}conv1d": (mixed, 1, config.integer("linear_conv_kernel_dim")),
        f"{at}dt_bias": (values,),
        f"{at}A_log": (values,),
        f"{at}norm": (size,),
        f"{at}out_proj": (width, values * size),
    }


def _hyper(config: Config, width: int) -> dict[str, TensorShape]:
    count, rank = config.integer("hc_count"), config.integer("hc_lowrank")
    streams, size = count * width, config.integer("indexer_head_dim")
    found: dict[str, TensorShape] = {
        "self_attn.indexer.index_qk_proj": (
            (config.integer("indexer_n_heads") + (config.get("indexer_kv_heads") or 1)) * size,
            width,
        ),
        "self_attn.indexer.q_layernorm": (size,),
        "self_attn.indexer.k_layernorm": (size,),
        "ple.key_proj": (streams, None),
        "ple.value_proj": (width, None),
        "ple.norm_key": (streams,),
        "ple.norm_query": (streams,),
        "ple.norm_conv": (streams,),
        "ple.conv1d": (streams, 1, config.get("ple_conv_kernel_size")),
        "nextn_fc_embedding": (width, width),
    }
    for at in ("attn_hyper_connection.", "mlp_hyper_connection.", "nextn_hc_head."):
        found[f"{at}hc_norm"] = (streams,)
        found[f"{at}input_mix_weight_down"] = (rank, streams)
        found[f"{at}input_mix_weight_up"] = (streams, rank)
        found[f"{at}block_inject_weight"] = (count, streams)
    return found
