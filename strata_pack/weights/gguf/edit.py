"""Replaces the metadata of a GGUF and leaves its tensors where they are.

A header may change freely as long as its aligned end, where the tensors begin, does not move. So a metadata string that
nobody reads (``PAD_KEY``, directly after the template) takes up what a new value leaves over, and gives back what it
needs more. Where the pad is too small, a header with a new, larger pad is made, and the caller chooses between a
header-only first shard (``split_headers``) and a copy of the file (``gguf_edit_copy``).
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
"""The metadata key whose string keeps room for a longer template. Readers skip keys they do not know."""
EDGE_KEY = "strata_pack.edge"
"""The metadata key right before the template in a pack: a chunk of a store ends there (see ``CHUNK_END``)."""
CHUNK_END = "room for a longer chat template; chunks end here: cbrpposctpdhti"
"""A chunk ends after these 64 bytes wherever stores cut files by their content with Xet's rolling hash.

Such a cut depends on the last 64 bytes alone. The last 14 letters were found by trying: with them a chunk of 8 KiB or
more ends here. So a template between two of them is a chunk of its own, and a newer one is all that such a store gets.
Source: Xet's chunking (gear hash, chunks of 8 to 128 KiB).
"""
_STEP = 1024
"""Bytes of pad from one end of a chunk to the next."""
RESERVE = 32 << 10
"""Bytes of pad that a build, a copy or a new first shard gets: the largest known chat templates are about 20 KB."""
BLOCK = 4096
"""Bytes; file systems share extents between files in whole blocks, so a copy moves its tensors by whole blocks."""

SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS = "split.no", "split.count", "split.tensors.count"

_COUNTS_END = 24
"""Bytes of magic, version, tensor count and metadata count."""
_GAP = 4096
"""Bytes; two changed ranges closer than this are written as one."""


@dataclass(frozen=True)
class Header:
    """The header of one file, as it lies there. ``raw`` is every byte before the tensors (``data_offset`` of them)."""

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
    """``old`` at ``offset`` (bytes from the start of the file) becomes ``new``, which is as long."""

    offset: int
    old: bytes
    new: bytes


def read_header(path: Path) -> Header:
    """Return the header of ``path``.

    Raises ``BadInput`` for a damaged GGUF, and for one whose header could not be written again to the byte.
    """
    with GgufFile.open(path) as gguf:
        with path.open("rb") as file:
            raw = file.read(gguf.data_offset)
        if len(raw) < gguf.data_offset:
            # A file without tensors may end at its last key; the specification's padding is not there to be kept.
            raw = raw.ljust(gguf.data_offset, b"\0")
        header = Header(path, raw, gguf.version, gguf.metadata, gguf.tensors, gguf.alignment, gguf.file_size)
        if _encode(header, header.metadata)[: gguf.header_size] != raw[: gguf.header_size]:
            raise BadInput("has a header that this tool cannot reproduce", where=path, remedy="leave it as it is")
    return header


def pad_value(size: int) -> MetaValue:
    """Return the value for ``PAD_KEY`` that takes ``size`` bytes in addition to its key, type and length.

    It is spaces with ``CHUNK_END`` at the end of each KiB, counted from the pad's end, which does not move.
    """
    whole = (" " * (_STEP - len(CHUNK_END)) + CHUNK_END) * (size // _STEP + 1)
    return MetaValue.string(whole[len(whole) - size :])


def edited(metadata: Mapping[str, MetaValue], changes: Mapping[str, MetaValue | None]) -> dict[str, MetaValue]:
    """Return ``metadata`` without the pad and with ``changes``: a value replaces or adds, ``None`` removes."""
    merged: dict[str, MetaValue | None] = {**metadata, **changes, PAD_KEY: None}
    return {key: value for key, value in merged.items() if value is not None}


def fit(header: Header, metadata: Mapping[str, MetaValue]) -> bytes | None:
    """Return a header with ``metadata`` (which has no pad) exactly as long as the present one.

    ``None`` if there is no room, or if the room left over is too small for a pad and too large for the alignment.
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
    """Return a header with ``metadata`` and a fresh reserve, longer than the present one by whole blocks."""
    step = math.lcm(BLOCK, header.alignment)
    need = _size(header, metadata) + len(encode_entry(PAD_KEY, pad_value(RESERVE)))
    blocks = max(-(-(need - header.data_offset) // step), 0)
    return _filled(header, metadata, header.data_offset + blocks * step)


def split_headers(headers: Sequence[Header], metadata: Mapping[str, MetaValue]) -> tuple[bytes, list[bytes]] | None:
    """Return a header-only first shard with ``metadata``, and the new header of each file after it, as long as before.

    ``headers`` are the files of the model in order. A file that was the only or the first one keeps no metadata but
    the split keys (as ``gguf-split`` leaves them) and a pad. ``None`` if such a header does not fit.
    """
    count = len(headers) + 1
    total = MetaValue(GGUFValueType.INT32, sum(len(header.tensors) for header in headers))
    own = {"general.alignment": headers[0].metadata.get("general.alignment")}

    def split(no: int) -> dict[str, MetaValue]:
        return {SPLIT_NO: _u16(no), SPLIT_COUNT: _u16(count), SPLIT_TENSORS: total}

    behind = []
    for no, header in enumerate(headers, start=1):
        kept = edited({}, own) if no == 1 else edited(header.metadata, {})
        raw = fit(header, {**kept, **split(no)})
        if raw is None:
            return None
        behind.append(raw)
    first = Header(headers[0].path, b"", headers[0].version, {}, (), headers[0].alignment, 0)
    return outgrow(first, {**edited(metadata, {}), **split(0)}), behind


def changes_between(old: bytes, new: bytes) -> list[HeaderChange]:
    """Return what differs between two headers of one length, as few ranges."""
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
    """Put the pad directly after the template, so that nothing else moves when one grows into the other."""
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
    """Encode as the version the file has; versions 2 and 3 differ in nothing else for little-endian files."""
    raw = encode_header(metadata, header.tensors, header.alignment)
    return raw[:4] + struct.pack("<I", header.version) + raw[8:]
