"""Headers, texts and tensor entries of GGUF files as bytes, good ones and others."""

from __future__ import annotations

import struct

from gguf import GGMLQuantizationType as Q
from gguf import GGUFValueType as V

from strata_pack.weights.gguf.file import (
    MetaValue,
    TensorInfo,
    encode_header,
)

SCALAR_VALUES = {
    V.UINT8: 255,
    V.INT8: -128,
    V.UINT16: 65535,
    V.INT16: -3,
    V.UINT32: 1 << 31,
    V.INT32: -7,
    V.FLOAT32: 0.5,
    V.BOOL: True,
    V.UINT64: 1 << 63,
    V.INT64: -(1 << 62),
    V.FLOAT64: 1e-300,
    V.STRING: "Übung 🙂",
}


def sample_metadata() -> dict[str, MetaValue]:
    metadata = {"general.architecture": MetaValue.string("qwen3")}
    for type, value in SCALAR_VALUES.items():
        metadata[f"test.{type.name.lower()}"] = MetaValue(type, value)
        metadata[f"test.{type.name.lower()}s"] = MetaValue.array(type, [value, value])
    return metadata


def sample_tensors() -> list[TensorInfo]:
    return [
        TensorInfo.make("token_embd.weight", (256, 3), Q.Q4_K),
        TensorInfo.make("blk.0.attn_norm.weight", (8,), Q.F32, 448),
    ]


def sample_bytes() -> bytes:
    return encode_header(sample_metadata(), sample_tensors()) + bytes(range(240)) * 2


def header(*, magic: bytes = b"GGUF", version: int = 3, tensors: int = 0, entries: int = 0, rest: bytes = b"") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, entries) + rest


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def tensor(name: str, shape: tuple[int, ...], type: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type, offset)
