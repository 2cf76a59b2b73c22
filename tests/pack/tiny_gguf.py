"""A tiny Llama that llama.cpp loads: one layer, 32 wide, a vocabulary of bytes; as one file or as shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType

from strata_pack.weights.gguf_file import MetaValue, TensorInfo, encode_header, shard_name

WIDTH, HIDDEN, HEADS = 32, 64, 2
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
TYPES = [2, 3, 3, *[6] * 256]

STOCK = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


def metadata(template: str | None) -> dict[str, MetaValue]:
    """Return the metadata, with keys before and behind the template's."""
    numbers = {
        "llama.context_length": 512,
        "llama.embedding_length": WIDTH,
        "llama.block_count": 1,
        "llama.feed_forward_length": HIDDEN,
        "llama.attention.head_count": HEADS,
        "llama.rope.dimension_count": WIDTH // HEADS,
    }
    values = {"general.architecture": MetaValue.string("llama"), "general.name": MetaValue.string("tiny")}
    values |= {key: MetaValue.uint32(number) for key, number in numbers.items()}
    values["llama.attention.layer_norm_rms_epsilon"] = MetaValue(GGUFValueType.FLOAT32, 1e-5)
    values["tokenizer.ggml.model"] = MetaValue.string("llama")
    values["tokenizer.ggml.tokens"] = MetaValue.array(GGUFValueType.STRING, TOKENS)
    values["tokenizer.ggml.scores"] = MetaValue.array(GGUFValueType.FLOAT32, [0.0] * len(TOKENS))
    values["tokenizer.ggml.token_type"] = MetaValue.array(GGUFValueType.INT32, TYPES)
    if template is not None:
        values["tokenizer.chat_template"] = MetaValue.string(template)
    values["tokenizer.ggml.bos_token_id"] = MetaValue.uint32(1)
    values["tokenizer.ggml.eos_token_id"] = MetaValue.uint32(2)
    return values


def tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """Return the weights by name, as numpy shapes (rows first)."""
    random = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(TOKENS), WIDTH),
        "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.attn_q.weight": (WIDTH, WIDTH),
        "blk.0.attn_k.weight": (WIDTH, WIDTH),
        "blk.0.attn_v.weight": (WIDTH, WIDTH),
        "blk.0.attn_output.weight": (WIDTH, WIDTH),
        "blk.0.ffn_norm.weight": (WIDTH,),
        "blk.0.ffn_gate.weight": (HIDDEN, WIDTH),
        "blk.0.ffn_up.weight": (HIDDEN, WIDTH),
        "blk.0.ffn_down.weight": (WIDTH, HIDDEN),
        "output_norm.weight": (WIDTH,),
        "output.weight": (len(TOKENS), WIDTH),
    }
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_file(path: Path, values: dict[str, MetaValue], weights: dict[str, np.ndarray]) -> None:
    """Write one GGUF file."""
    infos, offset = [], 0
    for name, data in weights.items():
        info = TensorInfo.make(name, data.shape[::-1], GGMLQuantizationType.F32, offset)
        infos.append(info)
        offset += -(-info.nbytes // 32) * 32
    with path.open("wb") as file:
        file.write(encode_header(values, infos))
        for data in weights.values():
            file.write(data.tobytes().ljust(-(-data.nbytes // 32) * 32, b"\0"))


def write_tiny(path: Path, template: str | None = STOCK, extra: dict[str, MetaValue] | None = None) -> Path:
    """Write the model as one file; ``extra`` metadata goes to the end."""
    write_file(path, {**metadata(template), **(extra or {})}, tensors())
    return path


def write_shards(folder: Path, counts: Sequence[int], template: str | None = STOCK) -> list[Path]:
    """Write the model as shards of ``counts`` tensors each (a 0 makes a header-only shard)."""
    weights = list(tensors().items())
    paths, at = [], 0
    for no, count in enumerate(counts):
        split = {
            "split.no": MetaValue(GGUFValueType.UINT16, no),
            "split.count": MetaValue(GGUFValueType.UINT16, len(counts)),
            "split.tensors.count": MetaValue(GGUFValueType.INT32, len(weights)),
        }
        values = {**metadata(template), **split} if no == 0 else split
        path = folder / shard_name("tiny", no, len(counts))
        write_file(path, values, dict(weights[at : at + count]))
        paths.append(path)
        at += count
    return paths
