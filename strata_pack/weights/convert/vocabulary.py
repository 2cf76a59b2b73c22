"""Reads a checkpoint's tokenizer, of any supported kind, as GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_pack.errors import BadInput
from strata_pack.files import read_bytes, read_json_object
from strata_pack.weights.convert.config import Config
from strata_pack.weights.tokenizer.bpe import TOKENIZER_LIMIT, is_byte_level_bpe, read_bpe
from strata_pack.weights.tokenizer.special import SpecialTokens, special_tokens
from strata_pack.weights.tokenizer.spm import MODEL_LIMIT, read_spm


@dataclass(frozen=True)
class Vocabulary:
    """``tokenizer``: model, pre, tokens, types and merges or scores, as ``build_metadata`` takes them."""

    tokenizer: Mapping[str, Any]
    special: SpecialTokens


def read_vocabulary(folder: Path, config: Config, raw: Mapping[str, Any], pre: str | None) -> Vocabulary:
    """Return the vocabulary of the checkpoint; ``BadInput``, with the name, for an unsupported kind."""
    settings = folder / "tokenizer_config.json"
    named = read_json_object(settings) if settings.is_file() else {}
    path = folder / "tokenizer.json"
    tokenizer = read_json_object(path, TOKENIZER_LIMIT) if path.is_file() else None
    size = config.integer("vocab_size")
    pieces = folder / "tokenizer.model"
    if pieces.is_file():
        return _sentence_piece(folder, pieces, tokenizer, named, raw, size)
    if tokenizer is None:
        raise BadInput("has neither tokenizer.json nor tokenizer.model", where=folder, remedy="fetch one")
    if not is_byte_level_bpe(tokenizer):
        model = tokenizer.get("model")
        kind = model.get("type") if isinstance(model, dict) else None
        raise BadInput(
            f"the tokenizer ({kind}, not byte-level) is not supported without a tokenizer.model",
            where=path,
            remedy="put the model's tokenizer.model next to it, if it has one",
        )
    found = read_bpe(tokenizer, named, size, path, pre)
    values = {
        "model": "gpt2",
        "pre": found.pre,
        "tokens": found.tokens,
        "types": found.types,
        "merges": found.merges,
    }
    return Vocabulary(values, special_tokens(folder, tokenizer, named, raw))


def _sentence_piece(
    folder: Path,
    pieces: Path,
    tokenizer: Mapping[str, Any] | None,
    named: Mapping[str, Any],
    raw: Mapping[str, Any],
    size: int,
) -> Vocabulary:
    extra = folder / "added_tokens.json"
    added = read_json_object(extra) if extra.is_file() else {}
    found = read_spm(read_bytes(pieces, MODEL_LIMIT), added, named, size, pieces)
    values = {
        "model": "llama",
        "pre": "default",
        "tokens": [token.decode() for token in found.tokens],
        "scores": found.scores,
        "types": found.types,
    }
    return Vocabulary(values, special_tokens(folder, tokenizer, named, raw, limit=size))
