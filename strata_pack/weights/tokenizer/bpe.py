"""Converts a byte-level BPE tokenizer.json to GGUF metadata: tokens, types, merges, name of the pre-tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import TokenType

from strata_pack.errors import BadInput
from strata_pack.weights.tokenizer.pre import pre_tokenizer
from strata_pack.weights.tokenizer.special import ROLES, token_text

TOKENIZER_LIMIT = 256 << 20


@dataclass(frozen=True)
class BpeVocabulary:
    """Tokens and types by id, ``merges`` in order ("left right"), ``pre`` is llama.cpp's name of the pre-tokenizer."""

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]
    pre: str


def is_byte_level_bpe(tokenizer: Mapping[str, Any]) -> bool:
    """Return whether a tokenizer.json is a byte-level BPE (GPT-2's kind)."""
    model, decoder = tokenizer.get("model"), tokenizer.get("decoder")
    return (
        isinstance(model, dict)
        and model.get("type") == "BPE"
        and not model.get("byte_fallback")
        and isinstance(decoder, dict)
        and decoder.get("type") == "ByteLevel"
    )


def read_bpe(
    tokenizer: Mapping[str, Any],
    tokenizer_config: Mapping[str, Any],
    vocabulary_size: int,
    where: Path,
    pre: str | None = None,
) -> BpeVocabulary:
    """Return the vocabulary of a byte-level BPE, padded to ``vocabulary_size`` (rows of the model) with unused tokens.

    ``BadInput`` if ids clash or are out of range, if a merge does not have two parts, or for an unknown pre-tokenizer.
    """
    normalizer = tokenizer.get("normalizer")
    if normalizer and (not isinstance(normalizer, dict) or normalizer.get("type") != "NFC"):
        kind = normalizer.get("type") if isinstance(normalizer, dict) else normalizer
        raise BadInput(f"the normalizer {kind!r} is not supported", where=where)
    try:
        base = dict(tokenizer["model"]["vocab"])
        added = {str(entry["content"]): entry for entry in tokenizer.get("added_tokens") or []}
        for text, entry in added.items():
            if base.get(text, entry["id"]) != entry["id"]:
                raise BadInput(f"the token {text!r} has the ids {base[text]} and {entry['id']}", where=where)
        by_id = _by_id({**base, **{text: entry["id"] for text, entry in added.items()}}, vocabulary_size, where)
        merges = tuple(_merge(merge, where) for merge in tokenizer["model"]["merges"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadInput(f"the tokenizer is malformed ({error!r})", where=where) from error
    roles, special = _named_special(tokenizer_config)
    remade = _remade(tokenizer_config, roles, special)
    for text in special:
        if text not in added and text not in base:
            raise BadInput(f"tokenizer_config.json names {text!r}, which is not a token", where=where)
    tokens, types = [], []
    for number in range(vocabulary_size):
        if number not in by_id:
            tokens.append(f"[PAD{number}]")
            types.append(TokenType.UNUSED)
            continue
        text = by_id[number]
        if text in added or text in special:
            named = text not in added or text in remade
            token, kind = _added_token(text, added.get(text), named=named)
            tokens.append(token)
            types.append(kind)
        else:
            tokens.append(text)
            types.append(TokenType.NORMAL)
    if len(set(tokens)) != len(tokens):
        raise BadInput("two ids have the same token", where=where)
    return BpeVocabulary(tuple(tokens), tuple(map(int, types)), merges, pre_tokenizer(tokenizer, where, pre))


def _by_id(ids: Mapping[str, Any], size: int, where: Path) -> dict[int, str]:
    by_id: dict[int, str] = {}
    for text, number in ids.items():
        if type(number) is not int or not 0 <= number < size:
            raise BadInput(f"the token {text!r} has the id {number!r}, and the model has {size} rows", where=where)
        if number in by_id:
            raise BadInput(f"the tokens {by_id[number]!r} and {text!r} have the same id {number}", where=where)
        by_id[number] = text
    return by_id


def _merge(merge: Any, where: Path) -> str:
    parts = merge.split(" ") if isinstance(merge, str) else list(merge)
    if len(parts) != 2 or not all(isinstance(part, str) and part for part in parts):
        raise BadInput(f"the merge {merge!r} does not have two parts", where=where)
    # A space within a part is written in the byte-level alphabet, because the line is split at a space.
    return " ".join(part.replace(" ", "Ġ") for part in parts)


def _named_special(tokenizer_config: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """Return the tokens to which tokenizer_config.json gives a role, and the union with its other special tokens."""
    roles = {text for role in ROLES if (text := token_text(tokenizer_config.get(f"{role}_token")))}
    special = set(roles)
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = tokenizer_config.get(key)
        special |= {text for entry in more if (text := token_text(entry))} if isinstance(more, list) else set()
    return roles, special


def _remade(tokenizer_config: Mapping[str, Any], roles: set[str], special: set[str]) -> set[str]:
    """Return the added tokens that transformers makes special although they are not in tokenizer.json.

    Qwen2's class does so for every named token, the others for tokens with a role that tokenizer_config.json adds
    again.
    """
    if str(tokenizer_config.get("tokenizer_class")).removesuffix("Fast") == "Qwen2Tokenizer":
        return special
    again = tokenizer_config.get("added_tokens_decoder")
    return roles & {str(token_text(entry)) for entry in again.values()} if isinstance(again, dict) else set()


def _added_token(text: str, entry: Mapping[str, Any] | None, *, named: bool) -> tuple[str, TokenType]:
    entry = entry or {}
    if not entry.get("normalized", False):
        text = _through_decoder(text)
    if named or entry.get("special") or looks_special(text):
        return text, TokenType.CONTROL
    return text.replace("\u2581", " "), TokenType.USER_DEFINED


def looks_special(text: str) -> bool:
    """Return whether a token without the special mark is treated as special (llama.cpp's list)."""
    return (
        text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
        or (text.startswith("<|") and text.endswith("|>"))
        or (text.startswith("<｜") and text.endswith("｜>"))
        or (text.startswith("<unused") and text.endswith(">"))
    )


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's characters for bytes: printable ones for themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + n): byte for n, byte in enumerate(rest)}


_BYTES = _byte_alphabet()


def _through_decoder(text: str) -> str:
    """Return an added token after the byte-level decoder, because the converter stores decoded tokens."""
    if not all(letter in _BYTES for letter in text):
        return text
    return bytes(_BYTES[letter] for letter in text).decode("utf-8", "replace")
