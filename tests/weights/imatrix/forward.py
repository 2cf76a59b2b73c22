"""Tiny Qwen3 models, dense and mixture of experts, and their forward pass in float64, written from the papers.

The pass returns what llama.cpp's graph multiplies each weight with, so that collected sums can be compared with sums
of squares made here. Llama.cpp keeps keys and values as F16: that, and its F32 arithmetic, is the whole difference.
Vocabulary: one token for each byte, so a text's tokens are its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

WIDTH, HEADS, KV_HEADS, HEAD, HIDDEN, LAYERS, VOCABULARY = 64, 4, 2, 16, 96, 2, 256
EPSILON, ROPE_BASE = 1e-6, 10_000.0


@dataclass(frozen=True)
class Experts:
    count: int = 0
    used: int = 0


def write_model(path: Path, experts: Experts = Experts(), seed: int = 0) -> dict[str, npt.NDArray[np.float32]]:
    """Write a random model and return its weights by name, rows first."""
    moe = experts.count > 0
    arch = "qwen3moe" if moe else "qwen3"
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(2048)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(ROPE_BASE)
    if moe:
        writer.add_expert_count(experts.count)
        writer.add_expert_used_count(experts.used)
        writer.add_expert_feed_forward_length(HIDDEN)
    letters = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in letters}
    table.update({byte: chr(256 + n) for n, byte in enumerate(sorted(set(range(256)) - set(letters)))})
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([table[byte] for byte in range(256)])
    writer.add_token_types([gguf.TokenType.NORMAL] * 256)
    writer.add_token_merges([f"{table[0]} {table[1]}"])
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    random = np.random.default_rng(seed)
    weights: dict[str, npt.NDArray[np.float32]] = {}

    def add(name: str, *shape: int) -> None:
        norm = name.endswith("norm.weight")
        values = 1 + 0.1 * random.standard_normal(shape) if norm else random.standard_normal(shape) / shape[-1] ** 0.5
        weights[name] = values.astype(np.float32)
        writer.add_tensor(name, weights[name])

    add("token_embd.weight", VOCABULARY, WIDTH)
    for layer in range(LAYERS):
        prefix = f"blk.{layer}."
        add(prefix + "attn_norm.weight", WIDTH)
        add(prefix + "attn_q.weight", HEADS * HEAD, WIDTH)
        add(prefix + "attn_k.weight", KV_HEADS * HEAD, WIDTH)
        add(prefix + "attn_v.weight", KV_HEADS * HEAD, WIDTH)
        add(prefix + "attn_q_norm.weight", HEAD)
        add(prefix + "attn_k_norm.weight", HEAD)
        add(prefix + "attn_output.weight", WIDTH, HEADS * HEAD)
        add(prefix + "ffn_norm.weight", WIDTH)
        if moe:
            add(prefix + "ffn_gate_inp.weight", experts.count, WIDTH)
            add(prefix + "ffn_gate_exps.weight", experts.count, HIDDEN, WIDTH)
            add(prefix + "ffn_up_exps.weight", experts.count, HIDDEN, WIDTH)
            add(prefix + "ffn_down_exps.weight", experts.count, WIDTH, HIDDEN)
        else:
            add(prefix + "ffn_gate.weight", HIDDEN, WIDTH)
            add(prefix + "ffn_up.weight", HIDDEN, WIDTH)
            add(prefix + "ffn_down.weight", WIDTH, HIDDEN)
    add("output_norm.weight", WIDTH)
    add("output.weight", VOCABULARY, WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def inputs(
    weights: dict[str, npt.NDArray[np.float32]], tokens: npt.NDArray[np.int64], experts: Experts = Experts()
) -> tuple[dict[str, Doubles], dict[str, npt.NDArray[np.int64]]]:
    """Return the mean square of every column of each weight's input (matrices, columns), and the rows counted."""
    squares: dict[str, Doubles] = {}
    counts: dict[str, npt.NDArray[np.int64]] = {}
    double = {name: values.astype(np.float64) for name, values in weights.items()}

    def see(name: str, rows: Doubles) -> Doubles:
        squares[name] = (rows**2).sum(axis=0, keepdims=True) / len(rows)
        counts[name] = np.array([len(rows)])
        return rows @ double[name].T

    def norm(values: Doubles, name: str) -> Doubles:
        return values / np.sqrt((values**2).mean(axis=-1, keepdims=True) + EPSILON) * double[name]

    state = double["token_embd.weight"][tokens]
    for layer in range(LAYERS):
        prefix = f"blk.{layer}."
        given = norm(state, prefix + "attn_norm.weight")
        query = see(prefix + "attn_q.weight", given).reshape(-1, HEADS, HEAD)
        key = see(prefix + "attn_k.weight", given).reshape(-1, KV_HEADS, HEAD)
        value = see(prefix + "attn_v.weight", given).reshape(-1, KV_HEADS, HEAD)
        query = _rotated(norm(query, prefix + "attn_q_norm.weight"))
        key = _rotated(norm(key, prefix + "attn_k_norm.weight"))
        state = state + see(prefix + "attn_output.weight", _attention(query, key, value))
        given = norm(state, prefix + "ffn_norm.weight")
        if not experts.count:
            gate, up = see(prefix + "ffn_gate.weight", given), see(prefix + "ffn_up.weight", given)
            state = state + see(prefix + "ffn_down.weight", gate / (1 + np.exp(-gate)) * up)
            continue
        scores = see(prefix + "ffn_gate_inp.weight", given)
        chosen = np.argsort(-scores, axis=1)[:, : experts.used]
        share = np.exp(np.take_along_axis(scores, chosen, 1) - scores.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        added = np.zeros_like(state)
        for kind in ("gate", "up", "down"):
            width = HIDDEN if kind == "down" else WIDTH
            squares[f"{prefix}ffn_{kind}_exps.weight"] = np.zeros((experts.count, width))
            counts[f"{prefix}ffn_{kind}_exps.weight"] = np.zeros(experts.count, np.int64)
        for expert in range(experts.count):
            rows, slots = np.nonzero(chosen == expert)
            if not len(rows):
                continue
            one = {kind: double[f"{prefix}ffn_{kind}_exps.weight"][expert] for kind in ("gate", "up", "down")}
            gate, up = given[rows] @ one["gate"].T, given[rows] @ one["up"].T
            inner = gate / (1 + np.exp(-gate)) * up
            added[rows] += share[rows, slots, None] * (inner @ one["down"].T)
            for kind, seen in (("gate", given[rows]), ("up", given[rows]), ("down", inner)):
                squares[f"{prefix}ffn_{kind}_exps.weight"][expert] = (seen**2).mean(axis=0)
                counts[f"{prefix}ffn_{kind}_exps.weight"][expert] = len(rows)
        state = state + added
    see("output.weight", norm(state, "output_norm.weight"))
    return squares, counts


def _rotated(values: Doubles) -> Doubles:
    """Rotary positions as NeoX has them: the halves of a head are turned against each other."""
    half = HEAD // 2
    angles = np.arange(len(values))[:, None] * ROPE_BASE ** (-np.arange(half) * 2 / HEAD)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = values[..., :half], values[..., half:]
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


def _attention(query: Doubles, key: Doubles, value: Doubles) -> Doubles:
    length = len(query)
    mask = np.triu(np.full((length, length), -np.inf), 1)
    heads = []
    for head in range(HEADS):
        shared = head // (HEADS // KV_HEADS)
        scores = query[:, head] @ key[:, shared].T / np.sqrt(HEAD) + mask
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        heads.append(scores / scores.sum(axis=1, keepdims=True) @ value[:, shared])
    return np.concatenate(heads, axis=1)
