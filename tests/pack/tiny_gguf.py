"""A tiny Llama that llama.cpp loads: one layer, 32 wide, a vocabulary of bytes; as one file or as shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType

from strata_pack.llama.ggml import Ggml
from strata_pack.weights.gguf.file import MetaValue, TensorInfo, encode_header, shard_name

WIDTH, HEADS = 32, 2
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
TYPES = [2, 3, 3, *[6] * 256]

STOCK = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


def metadata(template: str | None, width: int = WIDTH) -> dict[str, MetaValue]:
    """Return the metadata, with keys before and behind the template's."""
    numbers = {
        "llama.context_length": 512,
        "llama.embedding_length": width,
        "llama.block_count": 1,
        "llama.feed_forward_length": 2 * width,
        "llama.attention.head_count": HEADS,
        "llama.rope.dimension_count": width // HEADS,
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


def tensors(seed: int = 0, width: int = WIDTH, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Return the weights by name, as numpy shapes (rows first)."""
    random = np.random.default_rng(seed)
    hidden = 2 * width
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(TOKENS), width),
        "blk.0.attn_norm.weight": (width,),
        "blk.0.attn_q.weight": (width, width),
        "blk.0.attn_k.weight": (width, width),
        "blk.0.attn_v.weight": (width, width),
        "blk.0.attn_output.weight": (width, width),
        "blk.0.ffn_norm.weight": (width,),
        "blk.0.ffn_gate.weight": (hidden, width),
        "blk.0.ffn_up.weight": (hidden, width),
        "blk.0.ffn_down.weight": (width, hidden),
        "output_norm.weight": (width,),
        "output.weight": (len(TOKENS), width),
    }
    return {name: (random.standard_normal(shape) * scale).astype(np.float32) for name, shape in shapes.items()}


def write_file(
    path: Path,
    values: dict[str, MetaValue],
    weights: dict[str, np.ndarray],
    type: GGMLQuantizationType = GGMLQuantizationType.F32,
) -> None:
    """Write one GGUF file, matrices in ``type``."""
    infos, parts, offset = [], [], 0
    for name, data in weights.items():
        kept = data.ndim == 1 or type is GGMLQuantizationType.F32
        raw = data.tobytes() if kept else Ggml.load().quantize(type, data)
        parts.append(raw.ljust(-(-len(raw) // 32) * 32, b"\0"))
        infos.append(TensorInfo.make(name, data.shape[::-1], GGMLQuantizationType.F32 if kept else type, offset))
        offset += len(parts[-1])
    path.write_bytes(encode_header(values, infos) + b"".join(parts))


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


def truncate(path: Path) -> None:
    """Cut the file off in the middle of its tensors."""
    path.write_bytes(path.read_bytes()[:20_000])
