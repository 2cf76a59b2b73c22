"""A tiny model that sees: random weights, a random tower, and a vocabulary with the family's vision tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from strata_pack.chat.library import load_shipped
from strata_pack.weights.convert.convert import SafetensorsSource, convert_checkpoint
from tests.tiny_configs import QWEN_ADDED
from tests.tiny_models import MODELS, write_tiny

VISION_TOKENS = tuple((f"<|{name}|>", True) for name in ("vision_start", "vision_end", "image_pad", "video_pad"))


def write_seeing(folder: Path, name: str = "qwen35-vision") -> Path:
    """Write the checkpoint of a variant with a tower, with vision tokens and the shipped template, and return it."""
    folder.mkdir(parents=True)
    settings = {**MODELS[name].tokenizer_config, "chat_template": load_shipped("qwen3.8-flash-next").source}
    write_tiny(replace(MODELS[name], added=(*QWEN_ADDED, *VISION_TOKENS), tokenizer_config=settings), folder)
    return folder


def seeing_files(folder: Path, name: str = "qwen35-vision") -> tuple[Path, Path]:
    """Return the model and its projector as F32 files."""
    source = write_seeing(folder / "source", name)
    parts: tuple[tuple[Any, str], ...] = (("full", "model.gguf"), ("projector", "mmproj-model.gguf"))
    for part, file in parts:
        with SafetensorsSource.open(source, "f32", part=part) as opened:
            convert_checkpoint(opened, folder / file)
    return folder / "model.gguf", folder / "mmproj-model.gguf"
