"""Derives a tensor's role, its block, and whether it is quantized, from its name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum


class Role(Enum):
    """The role of a tensor in the model, as distinguished by presets."""

    OUTPUT = "output"
    EMBEDDING = "embedding"
    ATTN_V = "attn_v"
    ATTN_K = "attn_k"
    ATTN_Q = "attn_q"
    ATTN_OUTPUT = "attn_output"
    FFN_UP = "ffn_up"
    FFN_GATE = "ffn_gate"
    FFN_DOWN = "ffn_down"
    OTHER = "other"


PER_LAYER_EMBEDDING = "per_layer_token_embd.weight"
_EMBEDDINGS = frozenset({"token_embd.weight", PER_LAYER_EMBEDDING})
_ROLE_BY_PART: tuple[tuple[str, Role], ...] = (
    ("attn_qkv.weight", Role.ATTN_V),
    ("attn_kv_b.weight", Role.ATTN_V),
    ("attn_v.weight", Role.ATTN_V),
    ("attn_k.weight", Role.ATTN_K),
    ("attn_q.weight", Role.ATTN_Q),
    ("attn_output.weight", Role.ATTN_OUTPUT),
    ("ffn_up", Role.FFN_UP),
    ("ffn_gate", Role.FFN_GATE),
    ("ffn_down", Role.FFN_DOWN),
)
"""The first part found in the name determines the role. Fused and compressed attention counts as attention values."""

_KEPT_PARTS = (
    *("_norm.weight", "ffn_gate_inp.weight", "altup", "laurel", "per_layer_model_proj"),
    *("ssm_conv1d", "shortconv.conv.weight", "attn_rel_b.weight", "indexer.k_proj.weight", "indexer.q_proj.weight"),
    *("time_mix_first.weight", "time_mix_w0.weight", "time_mix_w1.weight", "time_mix_w2.weight"),
    *("time_mix_v0.weight", "time_mix_v1.weight", "time_mix_v2.weight"),
    *("time_mix_a0.weight", "time_mix_a1.weight", "time_mix_a2.weight"),
    *("time_mix_g1.weight", "time_mix_g2.weight", "time_mix_decay_w1.weight", "time_mix_decay_w2.weight"),
    *("time_mix_lerp_fused.weight", ".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_"),
    *(".rel_pos", ".patch_embd", ".patch_merger"),
)
"""Norms, routers, indexers, small convolutions and similar tensors keep their type: they are small and sensitive."""
_KEPT_NAMES = frozenset({"position_embd.weight", "token_types.weight"})

_BLOCK_NUMBER = re.compile(r"blk\.(-?\d+)")


def role_of(name: str) -> Role:
    """Return the role of the tensor ``name``."""
    if name == "output.weight":
        return Role.OUTPUT
    if name in _EMBEDDINGS:
        return Role.EMBEDDING
    return next((role for part, role in _ROLE_BY_PART if part in name), Role.OTHER)


def is_quantizable(name: str, shape: Sequence[int]) -> bool:
    """Return whether presets quantize the tensor: matrices, except small and sensitive ones."""
    return (
        any(n > 1 for n in shape[1:])
        and name.endswith("weight")
        and name not in _KEPT_NAMES
        and not any(part in name for part in _KEPT_PARTS)
    )


def sort_key(name: str) -> tuple[int, bytes]:
    """Return the key of llama.cpp's writing order: tensors outside blocks first, then by block number, then by name."""
    number = block_number(name)
    return (-1 if number is None else number, name.encode())


def block_number(name: str) -> int | None:
    """Return the block number of the tensor ``name``, ``None`` outside blocks."""
    match = _BLOCK_NUMBER.match(name)
    return int(match[1]) if match else None
