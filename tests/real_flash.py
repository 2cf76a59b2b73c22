"""Qwen3.8-Flash-Next in its true size: the released configuration, and weights that are files full of holes.

Run alone (``python -m tests.real_flash FOLDER``) it writes one: 359 GB on paper, a few hundred kilobytes on the disk.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.tiny_models import tokenizer_json, write_json
from tests.tiny_shapes import tensor_shapes
from tests.tiny_variants import MODELS

LAYERS = 48
TEXT: Mapping[str, Any] = {
    "hidden_size": 2560,
    "num_hidden_layers": LAYERS,
    "layer_types": ["full_attention" if (n + 1) % 4 == 0 else "linear_attention" for n in range(LAYERS)],
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 640,
    "shared_expert_intermediate_size": 640,
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "hc_count": 4,
    "hc_lowrank": 320,
    "indexer_n_heads": 4,
    "indexer_head_dim": 128,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 4,
    "ple_embed_dim": 2560,
    "heads_per_ngram": 8,
    "ngram_vocab_size_base": 20_000_000,
    "split_ngram_parts": 128,
}
VISION: Mapping[str, Any] = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "patch_size": 16,
    "num_position_embeddings": 2304,
    "out_hidden_size": 2560,
}
FILES = 8


def write_real(folder: Path) -> Path:
    """Write the checkpoint into ``folder`` (made at need) and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny = MODELS["flash"]
    config = {
        **tiny.config,
        "text_config": {**tiny.config["text_config"], **TEXT},
        "vision_config": {**tiny.config["vision_config"], **VISION},
    }
    real = replace(tiny, config=config, fused_experts=True)
    write_json(folder / "config.json", config)
    write_json(folder / "tokenizer_config.json", tiny.tokenizer_config)
    (folder / "tokenizer.json").write_text(tokenizer_json(tiny), encoding="utf-8")
    for name, text in tiny.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    shapes = list(tensor_shapes(real))
    weight_map = {}
    for number in range(FILES):
        part = shapes[len(shapes) * number // FILES : len(shapes) * (number + 1) // FILES]
        file = f"model-{number + 1:05d}-of-{FILES:05d}.safetensors"
        _write_holes(folder / file, part)
        weight_map |= {name: file for name, _ in part}
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    return folder


def _write_holes(path: Path, shapes: list[tuple[str, tuple[int, ...]]]) -> None:
    header, at = {}, 0
    for name, shape in shapes:
        constant = "ple_embedding." in name and "ngram_embedding" not in name
        size = 8 if constant else 2
        for length in shape:
            size *= length
        header[name] = {
            "dtype": "I64" if constant else "BF16",
            "shape": list(shape),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)


if __name__ == "__main__":
    write_real(Path(sys.argv[1]))
