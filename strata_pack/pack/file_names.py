"""Names files: the stem of a model's file, and what a pack takes over of a tokenizer. Imports nothing heavy."""

from __future__ import annotations

import re

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "generation_config.json",
)
"""What a pack's ``tokenizer/`` takes over as it is. ``vocab.json`` and ``merges.txt`` are made anew from the GGUF."""

CONFIG = "tokenizer_config.json"

SHARD_SUFFIX = re.compile(r"-\d{5}-of-\d{5}$")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def file_stem(text: str) -> str:
    """Return ``text`` as the stem of a GGUF that is no shard of another."""
    return _UNSAFE.sub("-", SHARD_SUFFIX.sub("", text.removesuffix(".gguf"))).strip("-.") or "model"
