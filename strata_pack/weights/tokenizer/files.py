"""Writes the three tokenizer files that the Strata engine reads, from GGUF metadata.

``vocab.json`` maps token to id, ``merges.txt`` lists the merges in order, ``token_type.json`` holds the ggml token type
of every id (1 normal, 3 control, 4 user-defined, 5 unused, 6 byte). Only byte-level BPE ("gpt2") has such files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from strata_pack.errors import BadInput
from strata_pack.llama.ggml_types import GGUFValueType
from strata_pack.weights.gguf.file import MetaValue

_NORMAL = 1
_MODEL = "tokenizer.ggml.model"
_TOKENS = "tokenizer.ggml.tokens"
_TYPES = "tokenizer.ggml.token_type"
_MERGES = "tokenizer.ggml.merges"


def tokenizer_files(metadata: Mapping[str, MetaValue]) -> dict[str, bytes]:
    """Return a dict from file name to bytes, empty if the tokenizer is not byte-level BPE.

    ``BadInput`` for a vocabulary that such files cannot represent: a repeated token, a merge whose parts or result are
    not in the vocabulary, or different numbers of types and tokens.
    """
    model = metadata.get(_MODEL)
    if model is None or model.value != "gpt2":
        return {}
    tokens = _items(metadata, _TOKENS, GGUFValueType.STRING)
    merges = _items(metadata, _MERGES, GGUFValueType.STRING)
    types = _items(metadata, _TYPES, GGUFValueType.INT32) if _TYPES in metadata else [_NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise BadInput(f"has {len(types)} entries for {len(tokens)} tokens", where=_TYPES)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        twice = next(token for index, token in enumerate(tokens) if vocabulary[token] != index)
        raise BadInput(f"has the token {twice!r} twice", where=_TOKENS)
    for merge in merges:
        _check_merge(merge, vocabulary)
    return {
        "vocab.json": _json(vocabulary),
        "merges.txt": "".join(f"{merge}\n" for merge in merges).encode("utf-8"),
        "token_type.json": _json(types),
    }


def _items(metadata: Mapping[str, MetaValue], key: str, item_type: GGUFValueType) -> Sequence[Any]:
    found = metadata.get(key)
    if found is None or found.item_type is not item_type:
        raise BadInput(f"is missing or not an array of {item_type.name}", where=key)
    items: Sequence[Any] = found.value
    return items


def _check_merge(merge: str, vocabulary: Mapping[str, int]) -> None:
    # The first character is never the separator (as in llama.cpp).
    cut = merge.find(" ", 1)
    left, right = merge[:cut], merge[cut + 1 :]
    if cut < 0 or not right or "\n" in merge or "\r" in merge:
        raise BadInput(f"has {merge!r}, which is not a pair of tokens", where=_MERGES)
    for part in (left, right, left + right):
        if part not in vocabulary:
            raise BadInput(f"has {merge!r}, but {part!r} is no token", where=_MERGES)


def _json(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n").encode("utf-8")
