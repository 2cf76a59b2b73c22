"""A llama model with one layer: a few hundred kilobytes that a real llama.cpp server serves.

Its one layer is random and faint; its output is fitted to which byte follows which in plain text, so that it reads
better than by guessing, as every model must.

What a server does to a conversation (template, messages, parsing) does not depend on the weights, so a second server
that is needed beside a large model serves this one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

WIDTH = 64
CONTEXT = 32_768
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
TEXT = Path(__file__).parents[2] / "strata_pack/compare/compare_text.txt"
Floats = npt.NDArray[Any]
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
    eos: str | None = None,
    add_bos: bool = False,
    eot: str | None = None,
    pre: str | None = "qwen2",
    rope_base: float = 10_000.0,
    filler: int = 0,
    change: Callable[[str, Floats], Floats] | None = None,
) -> Path:
    """Write the model to ``path`` and return it.

    ``eos`` and ``eot`` are the texts of other end tokens, ``pre`` the pre-tokenizer, ``filler`` how many tokens there
    are that no text uses, ``change`` what is done to each tensor (by name) before it is written.

    ``tags`` become user-defined tokens, ``special`` control tokens; the vocabulary otherwise has the 256 bytes and the
    doublings of ``RUNS``.
    """
    letters = _byte_letters()
    tokens = [*letters, *RUNS, *special, *tags, *(f"filler{number}" for number in range(filler))]
    kinds = [gguf.TokenType.NORMAL] * (len(letters) + len(RUNS))
    kinds += [gguf.TokenType.CONTROL] * len(special) + [gguf.TokenType.USER_DEFINED] * len(tags)
    kinds += [gguf.TokenType.NORMAL] * filler
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
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    end = special[-1] if special else letters[0]
    writer.add_bos_token_id(tokens.index(special[0]) if special else 0)
    writer.add_eos_token_id(tokens.index(eos or end))
    if eot is not None:
        writer.add_eot_token_id(tokens.index(eot))
    writer.add_add_bos_token(add_bos)
    writer.add_rope_freq_base(rope_base)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    for name, values in _weights(len(tokens), seed).items():
        writer.add_tensor(name, values.astype(np.float32) if change is None else change(name, values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _weights(vocabulary: int, seed: int) -> dict[str, Floats]:
    """Every tensor: norms of ones, a random layer that adds little, and an output that follows the last byte.

    The embeddings have length ``sqrt(WIDTH)``, so that the norm passes them on as they are; the output solves, for the
    commonest bytes of the text exactly, output times embedding = logarithm of how often each byte follows.
    """
    random = np.random.default_rng(seed)
    weights = {}
    for name, shape in _shapes(vocabulary).items():
        scale = 0.01 if name.startswith("blk") else 1.0
        weights[name] = (
            np.ones(shape) if len(shape) == 1 else scale * random.standard_normal(shape) / np.sqrt(shape[-1])
        )
    embedding = random.standard_normal((vocabulary, WIDTH))
    embedding *= np.sqrt(WIDTH) / np.linalg.norm(embedding, axis=1, keepdims=True)
    text = TEXT.read_bytes()
    counts = np.full((vocabulary, vocabulary), 0.01)
    np.add.at(counts, (list(text[:-1]), list(text[1:])), 1.0)
    common = np.argsort(-np.bincount(np.frombuffer(text, np.uint8), minlength=vocabulary))[: WIDTH - 8]
    wanted = np.log(counts[common] / counts[common].sum(axis=1, keepdims=True))
    weights["token_embd.weight"] = embedding
    weights["output.weight"] = (np.linalg.pinv(embedding[common]) @ wanted).T
    return weights


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
