"""The tokenizer of a checkpoint, whichever kind it is, in the form the GGUF header wants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_pack.errors import BadInput
from strata_pack.weights.convert_config import Config, read_json_object
from strata_pack.weights.tokenizer_bpe import TOKENIZER_LIMIT, is_byte_level_bpe, read_bpe
from strata_pack.weights.tokenizer_special import SpecialTokens, special_tokens


@dataclass(frozen=True)
class Vocabulary:
    """``tokenizer``: model, pre, tokens, types and merges or scores, as ``build_metadata`` takes them."""

    tokenizer: Mapping[str, Any]
    special: SpecialTokens


def read_vocabulary(folder: Path, config: Config, raw: Mapping[str, Any], pre: str | None) -> Vocabulary:
    """Return the vocabulary of the checkpoint; ``BadInput`` by name for a kind that is not supported."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise BadInput("has no tokenizer.json", where=folder, remedy="fetch it")
    tokenizer = read_json_object(path, TOKENIZER_LIMIT)
    if not is_byte_level_bpe(tokenizer):
        model = tokenizer.get("model")
        kind = model.get("type") if isinstance(model, dict) else None
        raise BadInput(f"the tokenizer ({kind}) is no byte-level BPE, which is not supported", where=path)
    settings = folder / "tokenizer_config.json"
    named = read_json_object(settings) if settings.is_file() else {}
    found = read_bpe(tokenizer, named, config.integer("vocab_size"), path, pre)
    special = special_tokens(folder, tokenizer, named, raw)
    values = {
        "model": "gpt2",
        "pre": found.pre,
        "tokens": found.tokens,
        "types": found.types,
        "merges": found.merges,
    }
    return Vocabulary(values, special)
