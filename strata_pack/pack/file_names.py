"""Names files: the stem of a model's file, and the tokenizer files of a pack. Imports nothing heavy."""

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
"""The tokenizer files that are copied unchanged to a pack's ``tokenizer/``. ``vocab.json`` and ``merges.txt`` are
generated from the GGUF."""

CONFIG = "tokenizer_config.json"

SHARD_SUFFIX = re.compile(r"-\d{5}-of-\d{5}$")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def file_stem(text: str) -> str:
    """Return ``text`` as a GGUF's file stem that does not look like the name of a shard."""
    return _UNSAFE.sub("-", SHARD_SUFFIX.sub("", text.removesuffix(".gguf"))).strip("-.") or "model"
