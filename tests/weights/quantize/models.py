"""Tiny models for quantizer tests, made from a seed: real headers, real tensor names, random weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Q
from gguf import GGUFValueType as V

from strata_pack.weights.gguf.file import MetaValue, TensorInfo, align, encode_header, shard_name


@dataclass(frozen=True)
class Shape:
    """The figures of a tiny model."""

    arch: str = "qwen3"
    layers: int = 4
    hidden: int = 256
    ffn: int = 512
    heads: int = 8
    kv_heads: int = 2
    experts: int = 0
    vocab: int = 320
    tied: bool = False
    type: Q = Q.F16


DENSE = Shape(layers=9, kv_heads=4)
MOE = Shape("qwen3moe", layers=8, experts=4, ffn=256)
EIGHT = Shape("qwen3moe", layers=8, experts=8, ffn=256, type=Q.BF16)
ODD = Shape("llama", layers=4, hidden=288, ffn=416, heads=9, kv_heads=3, tied=True, type=Q.F32)


def metadata(shape: Shape) -> dict[str, MetaValue]:
    """Return a header llama.cpp accepts, with keys in the middle that the quantizer must move to the end."""
    arch, head = shape.arch, shape.hidden // shape.heads
    numbers = {
        "block_count": shape.layers,
        "context_length": 128,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.ffn,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": head,
        "attention.value_length": head,
        "rope.dimension_count": head,
    }
    if shape.experts:
        numbers |= {"expert_count": shape.experts, "expert_used_count": 2, "expert_feed_forward_length": shape.ffn}
    tokens = [f"t{i}é" for i in range(shape.vocab)]
    return {
        "general.architecture": MetaValue.string(arch),
        "general.type": MetaValue.string("model"),
        "general.file_type": MetaValue.uint32(1),
        **{f"{arch}.{key}": MetaValue.uint32(number) for key, number in numbers.items()},
        f"{arch}.attention.layer_norm_rms_epsilon": MetaValue(V.FLOAT32, 1e-6),
        f"{arch}.rope.freq_base": MetaValue(V.FLOAT32, 10000.0),
        "general.quantization_version": MetaValue.uint32(2),
        "tokenizer.ggml.model": MetaValue.string("gpt2"),
        "tokenizer.ggml.pre": MetaValue.string("qwen2"),
        "tokenizer.ggml.tokens": MetaValue.array(V.STRING, tokens),
        "tokenizer.ggml.token_type": MetaValue.array(V.INT32, [1] * shape.vocab),
        "tokenizer.ggml.merges": MetaValue.array(V.STRING, ["t 0", "t 1"]),
        "tokenizer.chat_template": MetaValue.string("{{ messages[0].content }}"),
    }


def sizes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Return tensor names with shapes (ggml order), in the order a converter writes them: not the quantizer's."""
    hidden, head = shape.hidden, shape.hidden // shape.heads
    result: dict[str, tuple[int, ...]] = {"token_embd.weight": (hidden, shape.vocab)}
    for i in range(shape.layers):
        block: dict[str, tuple[int, ...]] = {
            "attn_norm": (hidden,),
            "attn_q": (hidden, hidden),
            "attn_k": (hidden, head * shape.kv_heads),
            "attn_v": (hidden, head * shape.kv_heads),
            "attn_output": (hidden, hidden),
            "ffn_norm": (hidden,),
        }
        if shape.arch.startswith("qwen3"):
            block |= {"attn_k_norm": (head,), "attn_q_norm": (head,)}
        stack = (shape.experts,) if shape.experts else ()
        suffix = "_exps" if shape.experts else ""
        if shape.experts:
            block["ffn_gate_inp"] = (hidden, shape.experts)
        block |= {
            f"ffn_gate{suffix}": (hidden, shape.ffn, *stack),
            f"ffn_up{suffix}": (hidden, shape.ffn, *stack),
            f"ffn_down{suffix}": (shape.ffn, hidden, *stack),
        }
        result |= {f"blk.{i}.{name}.weight": size for name, size in block.items()}
    result["output_norm.weight"] = (hidden,)
    if not shape.tied:
        result["output.weight"] = (hidden, shape.vocab)
    return result


def encode(values: npt.NDArray[np.float32], type: Q) -> bytes:
    """Return floats in one of the float types."""
    if type is Q.BF16:
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return values.astype({Q.F32: np.float32, Q.F16: np.float16}[type]).tobytes()


def write_model(
    path: Path,
    shape: Shape,
    *,
    seed: int = 1,
    shards: int = 1,
    spoil: Mapping[str, float] | None = None,
    extra: Mapping[str, MetaValue] | None = None,
) -> Path:
    """Write a model (in ``shards`` files) and return the path of its first file.

    ``spoil`` puts a value, such as a NaN, into the middle of the named tensors; ``extra`` adds header keys.
    """
    random = np.random.default_rng(seed)
    tensors: list[tuple[TensorInfo, bytes]] = []
    for name, size in sizes(shape).items():
        values = random.standard_normal(size[::-1], np.float32) * np.float32(0.05)
        if name in (spoil or {}):
            values.reshape(-1)[values.size // 2] = (spoil or {})[name]
        type = Q.F32 if len(size) == 1 or "gate_inp" in name else shape.type
        tensors.append((TensorInfo.make(name, size, type), encode(values, type)))
    header = metadata(shape) | dict(extra or {})
    per_shard = -(-len(tensors) // shards)
    paths = [path] if shards == 1 else [path.with_name(shard_name(path.stem, i, shards)) for i in range(shards)]
    for index, target in enumerate(paths):
        keys = dict(header) if index == 0 else {}
        if shards > 1:
            keys["split.no"] = MetaValue(V.UINT16, index)
            keys["split.count"] = MetaValue(V.UINT16, shards)
            keys["split.tensors.count"] = MetaValue(V.INT32, len(tensors))
        _write_file(target, keys, tensors[index * per_shard : (index + 1) * per_shard])
    return paths[0]


def _write_file(path: Path, keys: Mapping[str, MetaValue], tensors: list[tuple[TensorInfo, bytes]]) -> None:
    alignment = keys["general.alignment"].value if "general.alignment" in keys else 32
    directory, offset = [], 0
    for info, _ in tensors:
        directory.append(TensorInfo(info.name, info.shape, info.type, offset, info.nbytes))
        offset += align(info.nbytes, alignment)
    with path.open("wb") as file:
        file.write(encode_header(keys, directory, alignment))
        for info, data in tensors:
            file.write(data.ljust(align(info.nbytes, alignment), b"\0"))


def write_imatrix(path: Path, shape: Shape, *, seed: int = 2, idle_expert: bool = False) -> Path:
    """Write importances (GGUF form) for all matrices of a model; ``idle_expert`` leaves the first expert unseen."""
    random = np.random.default_rng(seed)
    tensors: list[tuple[TensorInfo, bytes]] = []
    for name, size in sizes(shape).items():
        if len(size) < 2 or "embd" in name or "gate_inp" in name or name == "output.weight":
            continue
        matrices = size[2] if len(size) > 2 else 1
        counts = np.full((matrices, 1), 37, np.float32)
        if idle_expert and matrices > 1:
            counts[0] = 0
        sums = random.random((matrices, size[0]), np.float32) ** 2 * counts
        tensors.append((TensorInfo.make(f"{name}.in_sum2", (size[0], matrices), Q.F32), sums.tobytes()))
        tensors.append((TensorInfo.make(f"{name}.counts", (1, matrices), Q.F32), counts.tobytes()))
    keys = {
        "general.type": MetaValue.string("imatrix"),
        "imatrix.datasets": MetaValue.array(V.STRING, ["calibration.txt"]),
        "imatrix.chunk_count": MetaValue.uint32(37),
        "imatrix.chunk_size": MetaValue.uint32(512),
    }
    _write_file(path, keys, tensors)
    return path
