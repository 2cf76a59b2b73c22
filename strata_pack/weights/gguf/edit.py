"""Replaces the metadata of a GGUF without moving its tensors.

A header may change freely as long as its aligned end, where the tensors begin, does not move. So an unused metadata
string (``PAD_KEY``, directly after the template) absorbs the difference in length of a new value. If the pad is too
small, a header with a new, larger pad is built, and the caller chooses between a header-only first shard
(``split_headers``) and a copy of the file (``copy``).
Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; shards as llama.cpp's
``tools/gguf-split`` writes them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from strata_pack.errors import BadInput
from strata_pack.llama.ggml_types import GGUFValueType
from strata_pack.weights.gguf.file import GgufFile, MetaValue, TensorInfo, encode_header
from strata_pack.weights.gguf.values import encode_entry

TEMPLATE_KEY = "tokenizer.chat_template"
PAD_KEY = "strata_pack.pad"
"""The metadata key whose string reserves room for a longer template. Readers ignore unknown keys."""
EDGE_KEY = "strata_pack.edge"
"""The metadata key directly before the template in a pack: a chunk of content-defined storage ends there (see
``CHUNK_END``)."""
CHUNK_END = "room for a longer chat template; chunks end here: cbrpposctpdhti"
"""Storage that splits files into chunks with Xet's rolling hash ends a chunk after these 64 bytes.

Such a boundary depends only on the last 64 bytes. The last 14 letters were found by search: with them a chunk of at
least 8 KiB ends here. So a template between two of these strings is a separate chunk, and after an update only this
chunk is uploaded. Source: Xet's chunking (gear hash, chunks of 8 to 128 KiB).
"""
_STEP = 1024
"""Bytes of pad from one chunk boundary to the next."""
RESERVE = 32 << 10
"""Bytes of pad in a build, a copy or a new first shard: the largest known chat templates have about 20 KB."""
BLOCK = 4096
"""Block size in bytes: file systems share extents in whole blocks, so a copy moves its tensors by whole blocks."""

SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS = "split.no", "split.count", "split.tensors.count"

_COUNTS_END = 24
"""Bytes of magic, version, tensor count and metadata count."""
_GAP = 4096
"""Changed ranges with fewer bytes between them are written as one."""


@dataclass(frozen=True)
class Header:
    """The header of one file. ``raw`` has all bytes before the tensors (``data_offset`` bytes)."""

    path: Path
    raw: bytes
    version: int
    metadata: Mapping[str, MetaValue]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    file_size: int

    @property
    def data_offset(self) -> int:
        return len(self.raw)


@dataclass(frozen=True)
class HeaderChange:
    """Replaces ``old`` at ``offset`` (bytes from the start of the file) by ``new`` of the same length."""

    offset: int
    old: bytes
    new: bytes


def read_header(path: Path) -> Header:
    """Return the header of ``path``.

    Raises ``BadInput`` for a damaged GGUF, and for one whose header cannot be reproduced byte for byte.
    """
    with GgufFile.open(path) as gguf:
        with path.open("rb") as file:
            raw = file.read(gguf.data_offset)
        if len(raw) < gguf.data_offset:
            # A file without tensors may end at its last key, without the specification's padding.
            raw = raw.ljust(gguf.data_offset, b"\0")
        header = Header(path, raw, gguf.version, gguf.metadata, gguf.tensors, gguf.alignment, gguf.file_size)
        if _encode(header, header.metadata)[: gguf.header_size] != raw[: gguf.header_size]:
            raise BadInput("has a header that this tool cannot reproduce", where=path, remedy="leave it as it is")
    return header


def pad_value(size: int) -> MetaValue:
    """Return a value for ``PAD_KEY`` with ``size`` bytes (in addition to key, type and length).

    It consists of spaces with ``CHUNK_END`` at the end of each KiB, counted from the pad's end, which does not move.
    """
    whole = (" " * (_STEP - len(CHUNK_END)) + CHUNK_END) * (size // _STEP + 1)
    return MetaValue.string(whole[len(whole) - size :])


def edited(metadata: Mapping[str, MetaValue], changes: Mapping[str, MetaValue | None]) -> dict[str, MetaValue]:
    """Return ``metadata`` without the pad and with ``changes``: a value replaces or adds, ``None`` removes."""
    merged: dict[str, MetaValue | None] = {**metadata, **changes, PAD_KEY: None}
    return {key: value for key, value in merged.items() if value is not None}


def fit(header: Header, metadata: Mapping[str, MetaValue]) -> bytes | None:
    """Return a header with ``metadata`` (without a pad) of exactly the same length as ``header``.

    ``None`` if there is no room, or if the rest is too small for a pad and too large for the alignment.
    """
    room = header.data_offset - _size(header, metadata)
    if room < 0:
        return None
    if room < header.alignment:
        return _encode(header, metadata)
    for pad in (_pad_string(room), MetaValue(GGUFValueType.UINT8, 0)):
        if pad is not None and 0 <= room - len(encode_entry(PAD_KEY, pad)) < header.alignment:
            return _encode(header, _with_pad(metadata, pad))
    return None


def outgrow(header: Header, metadata: Mapping[str, MetaValue]) -> bytes:
    """Return a header with ``metadata`` and a new pad, longer than ``header`` by whole blocks."""
    step = math.lcm(BLOCK, header.alignment)
    need = _size(header, metadata) + len(encode_entry(PAD_KEY, pad_value(RESERVE)))
    blocks = max(-(-(need - header.data_offset) // step), 0)
    return _filled(header, metadata, header.data_offset + blocks * step)


def split_headers(headers: Sequence[Header], metadata: Mapping[str, MetaValue]) -> tuple[bytes, list[bytes]] | None:
    """Return the header of a header-only first shard with ``metadata``, and the new header of each other file, of the
    same length as before.

    ``headers`` are the files of the model in order. The former only or first file keeps only the split keys
    (as ``gguf-split`` writes them) and a pad. ``None`` if such a header does not fit.
    """
    count = len(headers) + 1
    total = MetaValue(GGUFValueType.INT32, sum(len(header.tensors) for header in headers))
    own = {"general.alignment": headers[0].metadata.get("general.alignment")}

    def split(no: int) -> dict[str, MetaValue]:
        return {SPLIT_NO: _u16(no), SPLIT_COUNT: _u16(count), SPLIT_TENSORS: total}

    following = []
    for no, header in enumerate(headers, start=1):
        kept = edited({}, own) if no == 1 else edited(header.metadata, {})
        raw = fit(header, {**kept, **split(no)})
        if raw is None:
            return None
        following.append(raw)
    first = Header(headers[0].path, b"", headers[0].version, {}, (), headers[0].alignment, 0)
    return outgrow(first, {**edited(metadata, {}), **split(0)}), following


def changes_between(old: bytes, new: bytes) -> list[HeaderChange]:
    """Return the differences of two headers of the same length, as few ranges."""
    import numpy as np

    before, after = np.frombuffer(old, np.uint8), np.frombuffer(new, np.uint8)
    at = np.flatnonzero(before != after)
    if not at.size:
        return []
    edges = np.flatnonzero(np.diff(at) > _GAP)
    starts = [int(at[0]), *(int(at[edge + 1]) for edge in edges)]
    ends = [*(int(at[edge]) + 1 for edge in edges), int(at[-1]) + 1]
    return [HeaderChange(start, old[start:end], new[start:end]) for start, end in zip(starts, ends, strict=True)]


def _u16(number: int) -> MetaValue:
    return MetaValue(GGUFValueType.UINT16, number)


def _size(header: Header, metadata: Mapping[str, MetaValue]) -> int:
    """Return the bytes of a header with ``metadata``, before its padding."""
    directory = sum(8 + len(t.name.encode()) + 4 + 8 * len(t.shape) + 4 + 8 for t in header.tensors)
    return _COUNTS_END + sum(len(encode_entry(key, value)) for key, value in metadata.items()) + directory


def _pad_string(room: int) -> MetaValue | None:
    overhead = len(encode_entry(PAD_KEY, pad_value(0)))
    return pad_value(room - overhead) if room >= overhead else None


def _with_pad(metadata: Mapping[str, MetaValue], pad: MetaValue) -> dict[str, MetaValue]:
    """Put the pad directly after the template, so that nothing else moves if the template grows."""
    if TEMPLATE_KEY not in metadata:
        return {**metadata, PAD_KEY: pad}
    placed: dict[str, MetaValue] = {}
    for key, value in metadata.items():
        placed[key] = value
        if key == TEMPLATE_KEY:
            placed[PAD_KEY] = pad
    return placed


def _filled(header: Header, metadata: Mapping[str, MetaValue], length: int) -> bytes:
    pad = _pad_string(length - _size(header, metadata))
    assert pad is not None
    return _encode(header, _with_pad(metadata, pad))


def _encode(header: Header, metadata: Mapping[str, MetaValue]) -> bytes:
    """Encode in the file's version; for little-endian files, versions 2 and 3 differ only in the version number."""
    raw = encode_header(metadata, header.tensors, header.alignment)
    return raw[:4] + struct.pack("<I", header.version) + raw[8:]
