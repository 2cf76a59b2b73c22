"""A llama model with one layer and random weights: a few hundred kilobytes that a real llama.cpp server serves.

What a server does to a conversation (template, messages, parsing) does not depend on the weights, so a second server
that is needed beside a large model serves this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

WIDTH = 64
CONTEXT = 32_768
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
RUNS = tuple(char * size for char in "-=" for size in (2, 4, 8, 16, 32, 64))


def _byte_letters() -> list[str]:
    """The letters by which byte-level BPE writes the 256 bytes (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in printable}
    table.update({byte: chr(256 + place) for place, byte in enumerate(sorted(set(range(256)) - set(printable)))})
    return [table[byte] for byte in range(256)]


def write_tiny_model(
    path: Path,
    *,
    chat_template: str | None,
    tags: Sequence[str] = TAGS,
    special: Sequence[str] = SPECIAL,
    seed: int = 0,
) -> Path:
    """Write the model to ``path`` and return it.

    ``tags`` become user-defined tokens, ``special`` control tokens; the vocabulary otherwise has the 256 bytes and the
    doublings of ``RUNS``.
    """
    letters = _byte_letters()
    tokens = [*letters, *RUNS, *special, *tags]
    kinds = [gguf.TokenType.NORMAL] * (len(letters) + len(RUNS))
    kinds += [gguf.TokenType.CONTROL] * len(special) + [gguf.TokenType.USER_DEFINED] * len(tags)
    merges = [f"{run[: len(run) // 2]} {run[len(run) // 2 :]}" for run in RUNS]

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // 2)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    end = special[-1] if special else letters[0]
    writer.add_bos_token_id(tokens.index(special[0]) if special else 0)
    writer.add_eos_token_id(tokens.index(end))
    writer.add_add_bos_token(False)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    random = np.random.default_rng(seed)
    for name, shape in _shapes(len(tokens)).items():
        plain = len(shape) == 1
        values = np.ones(shape) if plain else random.standard_normal(shape) / np.sqrt(shape[-1])
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Tensor shapes, rows first."""
    half = WIDTH // 2
    return {
        "token_embd.weight": (vocabulary, WIDTH),
        "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.attn_q.weight": (WIDTH, WIDTH),
        "blk.0.attn_k.weight": (half, WIDTH),
        "blk.0.attn_v.weight": (half, WIDTH),
        "blk.0.attn_output.weight": (WIDTH, WIDTH),
        "blk.0.ffn_norm.weight": (WIDTH,),
        "blk.0.ffn_gate.weight": (WIDTH, WIDTH),
        "blk.0.ffn_up.weight": (WIDTH, WIDTH),
        "blk.0.ffn_down.weight": (WIDTH, WIDTH),
        "output_norm.weight": (WIDTH,),
        "output.weight": (vocabulary, WIDTH),
    }
