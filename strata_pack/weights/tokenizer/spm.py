"""Converts a SentencePiece ``tokenizer.model`` to GGUF metadata, without the SentencePiece library.

The file is a protocol buffer; only three fields of one message are needed: text, score and type of every piece.
Source: sentencepiece_model.proto, https://github.com/google/sentencepiece (ModelProto.pieces = 1).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_pack.errors import BadInput
from strata_pack.weights.tokenizer.bpe import looks_special

MODEL_LIMIT = 64 << 20

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_KNOWN_TYPES = frozenset((NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE))
_ADDED_SCORE = -1000.0
_UNUSED_SCORE = -10000.0
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class SpmVocabulary:
    """Tokens (UTF-8), scores and types by id."""

    tokens: tuple[bytes, ...]
    scores: tuple[float, ...]
    types: tuple[int, ...]


def read_spm(
    data: bytes,
    added: Mapping[str, Any],
    tokenizer_config: Mapping[str, Any],
    vocabulary_size: int,
    where: Path,
) -> SpmVocabulary:
    """Return the pieces of a tokenizer.model, overridden by added_tokens.json (``added``) and tokenizer_config.json.

    Ids below ``vocabulary_size`` without a piece are unused; larger ids are left out, because the model has no row for
    them. ``BadInput`` if ``data`` is not a SentencePiece model.
    """
    try:
        pieces = list(_pieces(data))
    except (ValueError, IndexError, struct.error) as error:
        raise BadInput(f"is not a SentencePiece model ({error})", where=where, remedy="fetch it again") from None
    if not pieces:
        raise BadInput("is a SentencePiece model without pieces", where=where)
    tokens = [f"[PAD{number}]".encode() for number in range(vocabulary_size)]
    scores = [_UNUSED_SCORE] * vocabulary_size
    types = [UNUSED] * vocabulary_size
    for number, (piece, score, kind) in enumerate(pieces[:vocabulary_size]):
        # User-defined pieces are read as normal ones, as by llama.cpp's converter.
        tokens[number], scores[number], types[number] = piece, score, NORMAL if kind == USER_DEFINED else kind
    for text, number in added.items():
        if _in_range(number, vocabulary_size, text, where):
            tokens[number], scores[number], types[number] = text.encode(), _ADDED_SCORE, USER_DEFINED
    for key, entry in (tokenizer_config.get("added_tokens_decoder") or {}).items():
        content = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(content, str) or not key.isdecimal():
            raise BadInput(f"tokenizer_config.json has the malformed added token {key!r}", where=where)
        number = int(key)
        if number >= vocabulary_size:
            continue
        special = bool(entry.get("special")) or looks_special(content)
        types[number] = CONTROL if special else USER_DEFINED
        tokens[number] = (content if special else content.replace("\u2581", " ")).encode()
        scores[number] = _ADDED_SCORE
    return SpmVocabulary(tuple(tokens), tuple(scores), tuple(types))


def _in_range(number: Any, size: int, text: str, where: Path) -> bool:
    if type(number) is not int or number < 0:
        raise BadInput(f"added_tokens.json gives {text!r} the id {number!r}", where=where)
    return number < size


def _pieces(data: bytes) -> Iterator[tuple[bytes, float, int]]:
    for field, value in _fields(data):
        if field == 1:
            if not isinstance(value, bytes):
                raise ValueError("a piece is not a message")
            yield _piece(value)


def _piece(data: bytes) -> tuple[bytes, float, int]:
    text, score, kind = b"", 0.0, NORMAL
    for field, value in _fields(data):
        if field == 1 and isinstance(value, bytes):
            text = value
            text.decode("utf-8")
        elif field == 2 and isinstance(value, bytes) and len(value) == 4:
            (score,) = struct.unpack("<f", value)
        elif field == 3 and isinstance(value, int):
            kind = value
    if kind not in _KNOWN_TYPES:
        raise ValueError(f"a piece has the unknown type {kind}")
    return text, score, kind


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield number and value of every field of a message; fixed-size values as bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        field, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield field, value
            continue
        if wire == _BYTES:
            size, at = _varint(data, at)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if field == 0 or size > len(data) - at:
            raise ValueError(f"a field at byte {at} runs past the end")
        yield field, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(f"a number at byte {at} has no end")
