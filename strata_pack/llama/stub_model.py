"""Writes a 70 KB stub model that llama.cpp loads, for servers that only render templates.

It has the Llama architecture with one block of zeros and a vocabulary of the 256 bytes.
"""

from __future__ import annotations

from pathlib import Path

WIDTH = 32
"""Width of every layer: one block of 32 weights, the minimum for ggml."""

CONTROL, UNKNOWN, BYTE = 3, 2, 6
"""llama.cpp's token types."""


def write_stub_model(path: Path) -> Path:
    """Write the stub to ``path`` (GGUF) and return ``path``."""
    import gguf
    import numpy as np

    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(WIDTH)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_tensor("token_embd.weight", np.zeros((len(tokens), WIDTH), dtype=np.float32))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.zeros(WIDTH, dtype=np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros((WIDTH, WIDTH), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
