"""GGUF files: a header parser that believes nothing, and the encoder of headers.

``GgufFile.open`` checks every count, length and offset against the size of the file before it uses it, and refuses
with one sentence; what it returns can be trusted: names are printable and unique, every tensor lies whole inside the
file and overlaps no other. Tensor data is mapped, never read ahead.
Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3).
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.llama.ggml_types import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from strata_pack.weights.gguf.values import SCALARS, MetaValue, encode_entry, encode_string

__all__ = [
    "DEFAULT_ALIGNMENT",
    "GgufFile",
    "MetaValue",
    "TensorInfo",
    "encode_header",
    "open_shards",
    "parse_metadata",
    "shard_name",
    "shard_paths",
]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4
MAX_TENSOR_NAME = 63
"""Bytes; ggml keeps names in 64 with a final NUL."""
MAX_SHARDS = 99_999
"""A shard's number has five digits in its name."""
ALIGNMENT_KEY = "general.alignment"

MAX_KEY = 65_535
"""Bytes, by the specification."""

_TENSOR_TYPES = {int(type): type for type in GGML_QUANT_SIZES}
_U32 = SCALARS[GGUFValueType.UINT32]
_U64 = SCALARS[GGUFValueType.UINT64]
_COUNTS = struct.Struct("<QQ")
_SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_MIN_ENTRY = 8 + 1 + 4 + 1
"""Bytes of the smallest metadata entry: key length, one letter, type, one byte."""
_MIN_TENSOR = 8 + 1 + 4 + 4 + 8
"""Bytes of the smallest tensor entry: name length, one letter, dimension count, type, offset."""


@dataclass(frozen=True)
class TensorInfo:
    """One entry of the tensor directory."""

    name: str
    shape: tuple[int, ...]
    """Elements per dimension in ggml's order: ``shape[0]`` is the row length, the dimension that lies together."""
    type: GGMLQuantizationType
    offset: int
    """Bytes from the start of the data section."""
    nbytes: int

    @property
    def elements(self) -> int:
        """The number of weights."""
        return math.prod(self.shape)

    @classmethod
    def make(cls, name: str, shape: Sequence[int], type: GGMLQuantizationType, offset: int = 0) -> TensorInfo:
        """Return the entry with its size worked out; ``ValueError`` if a row is no whole number of blocks."""
        return cls(name, tuple(shape), type, offset, tensor_nbytes(shape, type))


def tensor_nbytes(shape: Sequence[int], type: GGMLQuantizationType) -> int:
    """Return the bytes of a tensor of ``shape`` (ggml order); ``ValueError`` if a row is no whole number of blocks."""
    block, size = GGML_QUANT_SIZES[type]
    row = shape[0] if shape else 1
    if row % block:
        raise ValueError(f"a row of {row} weights is no whole number of {type.name} blocks of {block}")
    return math.prod(shape) // block * size


def align(size: int, alignment: int) -> int:
    """Return ``size`` rounded up to a multiple of ``alignment``."""
    return -(-size // alignment) * alignment


class _Cursor:
    """A reading position in the header that cannot leave the file."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path, self.data, self.at, self.size = path, data, 0, len(data)

    def refuse(self, problem: str) -> BadInput:
        return BadInput(problem, where=self.path)

    def skip(self, size: int, what: str) -> int:
        """Move on by ``size`` bytes and return where they began."""
        start = self.at
        if size > self.size - start:
            raise BadInput(
                f"the header is truncated: {what} at byte {start} needs {size} bytes and the file ends at {self.size}",
                where=self.path,
                remedy="fetch or copy the file again",
            )
        self.at = start + size
        return start

    def number(self, layout: struct.Struct, what: str) -> int:
        start = self.skip(layout.size, what)
        return int(layout.unpack_from(self.data, start)[0])

    def name(self, what: str, limit: int) -> str:
        """Read a string that will be shown to people: printable UTF-8 of 1 to ``limit`` bytes."""
        length = self.number(_U64, what)
        start = self.skip(length, what)
        if length > limit:
            raise self.refuse(f"{what} at byte {start} is {length} bytes long and at most {limit} are allowed")
        try:
            text = str(self.data[start : start + length], "utf-8")
        except UnicodeDecodeError:
            raise self.refuse(f"{what} at byte {start} is not UTF-8") from None
        if not text or not text.isprintable():
            raise self.refuse(f"{what} at byte {start} is empty or has unprintable characters")
        return text

    def value_type(self, key: str) -> GGUFValueType:
        code = self.number(_U32, f"the type of {key}")
        try:
            return GGUFValueType(code)
        except ValueError:
            raise self.refuse(f"{key} has the unknown metadata type {code}") from None

    def value(self, key: str) -> MetaValue:
        type = self.value_type(key)
        start, item_type = self.at, None
        if type is GGUFValueType.STRING:
            self.skip(self.number(_U64, f"the length of {key}"), f"the value of {key}")
        elif type is GGUFValueType.ARRAY:
            item_type = self.array(key)
        else:
            self.skip(SCALARS[type].size, f"the value of {key}")
        return MetaValue.from_raw(type, bytes(self.data[start : self.at]), item_type)

    def array(self, key: str) -> GGUFValueType:
        item_type = self.value_type(key)
        count = self.number(_U64, f"the item count of {key}")
        if item_type is GGUFValueType.ARRAY:
            raise self.refuse(f"{key} is an array of arrays, which no GGUF reader supports")
        if item_type is not GGUFValueType.STRING:
            self.skip(count * SCALARS[item_type].size, f"the items of {key}")
            return item_type
        data, at, length_at = self.data, self.at, _U64.unpack_from
        try:
            for _ in range(count):
                at += 8 + length_at(data, at)[0]
        except (struct.error, OverflowError):
            at = self.size + 1
        if at > self.size:
            raise self.refuse(f"the header is truncated: the {count} strings of {key} run past the end of the file")
        self.at = at
        return item_type

    def tensor(self) -> TensorInfo:
        name = self.name("a tensor name", MAX_TENSOR_NAME)
        n_dims = self.number(_U32, f"the dimension count of {name}")
        if n_dims > MAX_DIMS:
            raise self.refuse(f"the tensor {name} has {n_dims} dimensions and ggml knows at most {MAX_DIMS}")
        shape = tuple(self.number(_U64, f"the shape of {name}") for _ in range(n_dims))
        if any(not 0 < n < 1 << 63 for n in shape) or math.prod(shape) >= 1 << 60:
            raise self.refuse(f"the tensor {name} has the impossible shape {list(shape)}")
        code = self.number(_U32, f"the type of {name}")
        offset = self.number(_U64, f"the offset of {name}")
        type = _TENSOR_TYPES.get(code)
        if type is None:
            raise self.refuse(f"the tensor {name} has the unknown or removed type {code}")
        try:
            nbytes = tensor_nbytes(shape, type)
        except ValueError as error:
            raise self.refuse(f"the tensor {name} is malformed: {error}") from None
        return TensorInfo(name, shape, type, offset, nbytes)


class GgufFile:
    """One GGUF file, opened and checked. Use as a context manager, or leave closing to the garbage collector.

    ``metadata`` keeps the order of the file, ``tensors`` the order of its directory. ``header_size`` is the end of
    the directory in bytes; the padding up to ``data_offset`` is free.
    """

    path: Path
    version: int
    metadata: Mapping[str, MetaValue]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    header_size: int
    data_offset: int
    file_size: int

    def __init__(self, path: Path, data: memoryview) -> None:
        """Parse ``data``, the whole file; ``open`` is the usual way in. Raises ``BadInput``."""
        self.path, self._data, self.file_size = path, data, len(data)
        cursor = _Cursor(path, data)
        self.version = _read_version(cursor)
        n_tensors, n_entries = _COUNTS.unpack_from(data, cursor.skip(_COUNTS.size, "the counts"))
        left = self.file_size - cursor.at
        if n_entries * _MIN_ENTRY + n_tensors * _MIN_TENSOR > left:
            raise BadInput(
                f"the header counts {n_entries} metadata entries and {n_tensors} tensors, which cannot fit the file's "
                f"{self.file_size} bytes",
                where=path,
                remedy="it is truncated or damaged; fetch or copy it again",
            )
        self.metadata = MappingProxyType(_read_metadata(cursor, n_entries))
        self.alignment = _read_alignment(cursor, self.metadata)
        self.tensors = tuple(cursor.tensor() for _ in range(n_tensors))
        self.header_size = cursor.at
        self.data_offset = align(cursor.at, self.alignment)
        self._by_name = {info.name: info for info in self.tensors}
        if len(self._by_name) != n_tensors:
            twice = Counter(info.name for info in self.tensors).most_common(1)[0][0]
            raise cursor.refuse(f"the tensor {twice} is listed twice")
        _check_layout(cursor, self.tensors, self.alignment, self.data_offset)

    @classmethod
    def open(cls, path: Path | str) -> GgufFile:
        """Map and parse the file at ``path``; ``BadInput`` says what is wrong with it."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise BadInput("no such file", where=path) from None
        except IsADirectoryError:
            raise BadInput("is a folder, not a GGUF file", where=path) from None
        except ValueError:
            raise BadInput("is empty, not a GGUF file", where=path) from None
        except OSError as error:
            raise EnvironmentFailure(f"cannot be read ({error.strerror})", where=path) from error
        view = memoryview(mapped)
        try:
            return cls(path, view)
        except BaseException:
            view.release()
            mapped.close()
            raise

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the mapping; views that ``tensor_bytes`` handed out stay valid until they are released."""
        self._data.release()

    def tensor(self, name: str) -> TensorInfo:
        """Return the directory entry of ``name``; ``BadInput`` if there is none."""
        try:
            return self._by_name[name]
        except KeyError:
            raise BadInput(f"has no tensor {name}", where=self.path) from None

    def tensor_bytes(self, info: TensorInfo) -> memoryview:
        """Return the mapped bytes of a tensor of this file (read-only, ``info.nbytes`` long)."""
        start = self.data_offset + info.offset
        return self._data[start : start + info.nbytes]

    def text(self, key: str) -> str | None:
        """Return the string under ``key``, ``None`` if it is missing; ``BadInput`` if it is something else."""
        value = self.metadata.get(key)
        if value is None:
            return None
        if value.type is not GGUFValueType.STRING:
            raise BadInput(f"{key} is no string", where=self.path)
        return str(value.value)

    def integer(self, key: str) -> int | None:
        """Return the integer under ``key``, ``None`` if it is missing; ``BadInput`` if it is something else."""
        value = self.metadata.get(key)
        if value is None:
            return None
        if value.type is GGUFValueType.ARRAY or not isinstance(value.value, int) or isinstance(value.value, bool):
            raise BadInput(f"{key} is no integer", where=self.path)
        return value.value


def parse_metadata(path: Path, data: memoryview) -> dict[str, MetaValue]:
    """Return the metadata at the beginning of a GGUF; ``BadInput`` if ``data`` ends before they do."""
    cursor = _Cursor(path, data)
    _read_version(cursor)
    _, n_entries = _COUNTS.unpack_from(data, cursor.skip(_COUNTS.size, "the counts"))
    return _read_metadata(cursor, n_entries)


def _read_version(cursor: _Cursor) -> int:
    magic = bytes(cursor.data[:4])
    if magic != MAGIC:
        hint = "a byte-swapped GGUF" if magic == MAGIC[::-1] else "not a GGUF file"
        raise cursor.refuse(f"{hint} (it begins with {magic!r})")
    cursor.skip(4, "the magic")
    version = cursor.number(_U32, "the version")
    if version and not version & 0xFFFF:
        raise cursor.refuse("big-endian GGUF is not supported")
    if version not in VERSIONS:
        raise cursor.refuse(f"GGUF v{version} is not supported (v2 and v3 are)")
    return version


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, MetaValue]:
    metadata: dict[str, MetaValue] = {}
    for _ in range(count):
        key = cursor.name("a metadata key", MAX_KEY)
        if key in metadata:
            raise cursor.refuse(f"the metadata key {key} is there twice")
        metadata[key] = cursor.value(key)
    return metadata


def _read_alignment(cursor: _Cursor, metadata: Mapping[str, MetaValue]) -> int:
    stored = metadata.get(ALIGNMENT_KEY)
    if stored is None:
        return DEFAULT_ALIGNMENT
    if stored.type is not GGUFValueType.UINT32 or stored.value.bit_count() != 1:
        raise cursor.refuse(f"{ALIGNMENT_KEY} is {stored!r} and must be a power of two as UINT32")
    return int(stored.value)


def _check_layout(cursor: _Cursor, tensors: Sequence[TensorInfo], alignment: int, data_offset: int) -> None:
    """Refuse tensors that are misaligned, overlap, or end behind the end of the file."""
    end, previous = 0, ""
    for info in sorted(tensors, key=lambda t: t.offset):
        if info.offset % alignment:
            raise cursor.refuse(f"the tensor {info.name} is at offset {info.offset}, no multiple of {alignment}")
        if info.offset < end:
            raise cursor.refuse(f"the tensors {previous} and {info.name} overlap")
        end, previous = info.offset + info.nbytes, info.name
    if tensors and data_offset + end > cursor.size:
        raise BadInput(
            f"the file is truncated: the tensor {previous} ends at byte {data_offset + end} and the file at "
            f"{cursor.size}",
            where=cursor.path,
            remedy="fetch or copy it again",
        )


def encode_header(
    metadata: Mapping[str, MetaValue], tensors: Sequence[TensorInfo], alignment: int = DEFAULT_ALIGNMENT
) -> bytes:
    """Return a whole GGUF v3 header, padded with zeros so that its length is the data offset.

    ``alignment`` must be what ``metadata`` says (32 if it says nothing), else ``ValueError``: readers go by the key.
    """
    stored = metadata.get(ALIGNMENT_KEY)
    if alignment != (DEFAULT_ALIGNMENT if stored is None else stored.value):
        raise ValueError(f"the alignment {alignment} is not the one {ALIGNMENT_KEY} tells readers")
    parts = [MAGIC, _U32.pack(VERSIONS[-1]), _COUNTS.pack(len(tensors), len(metadata))]
    parts += [encode_entry(key, value) for key, value in metadata.items()]
    for info in tensors:
        layout = struct.Struct(f"<I{len(info.shape)}QIQ")
        parts += [encode_string(info.name), layout.pack(len(info.shape), *info.shape, info.type, info.offset)]
    header = b"".join(parts)
    return header.ljust(align(len(header), alignment), b"\0")


def shard_name(stem: str, index: int, count: int) -> str:
    """Return the file name of shard ``index`` (from 0) of ``count``, as llama.cpp names it."""
    return f"{stem}-{index + 1:05d}-of-{count:05d}.gguf"


def shard_paths(path: Path | str) -> list[Path]:
    """Return all files of the model that ``path`` (a whole file, or any of its shards) belongs to, in order.

    Goes by the name alone; ``BadInput`` when a shard is missing or the numbers in the name make no sense.
    """
    path = Path(path)
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    if not 1 <= int(match["no"]) <= count:
        raise BadInput(f"is named shard {int(match['no'])} of {count}", where=path, remedy="give it its real name")
    if not path.is_file():
        raise BadInput("no such file", where=path)
    paths = [path.with_name(shard_name(match["stem"], index, count)) for index in range(count)]
    missing = [p.name for p in paths if not p.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise BadInput(f"the shard {missing[0]}{more} of this model is missing", where=path, remedy="fetch it")
    return paths


def open_shards(path: Path | str) -> list[GgufFile]:
    """Open all files of a model and check that they belong together.

    ``BadInput`` when a shard is missing, renamed or of another model: ``split.no`` and ``split.count`` must agree
    with the names, ``split.tensors.count`` with the sum of the directories, and no tensor may be there twice.
    """
    files = [GgufFile.open(p) for p in shard_paths(path)]
    first = files[0]
    if len(files) == 1 and (first.integer("split.count") or 1) == 1:
        return files
    names: set[str] = set()
    for index, file in enumerate(files):
        count, no = file.integer("split.count"), file.integer("split.no")
        if count != len(files) or no != index:
            found = "has no split keys" if count is None or no is None else f"says it is shard {no + 1} of {count}"
            raise BadInput(
                f"{found}, its name says {index + 1} of {len(files)}",
                where=file.path,
                remedy="shards keep the names llama.cpp gave them; fetch or rename it",
            )
        twice = next((t.name for t in file.tensors if t.name in names), None)
        if twice is not None:
            raise BadInput(f"the tensor {twice} is in two shards", where=file.path)
        names.update(t.name for t in file.tensors)
    stated = first.integer("split.tensors.count")
    if stated is not None and stated != len(names):
        raise BadInput(f"the shards hold {len(names)} tensors, their header says {stated}", where=first.path)
    return files
