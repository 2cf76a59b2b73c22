"""Reads and writes GGUF headers; every length is checked before it is used.

``GgufFile.open`` checks every count, length and offset against the size of the file and raises ``BadInput`` for a
fault. In an opened file, names are printable and unique, and every tensor is inside the file and overlaps no other.
Tensor data is memory-mapped, not read ahead. Source: the GGUF specification,
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3).
"""

from __future__ import annotations

import mmap
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.llama.ggml_types import GGUFValueType
from strata_pack.weights.gguf.cursor import U32, Cursor, TruncatedHeader
from strata_pack.weights.gguf.tensor_info import TensorInfo, align, tensor_nbytes
from strata_pack.weights.gguf.values import MetaValue, encode_entry, encode_string

__all__ = [
    "DEFAULT_ALIGNMENT",
    "GgufFile",
    "MetaValue",
    "TensorInfo",
    "align",
    "encode_header",
    "open_shards",
    "shard_name",
    "shard_paths",
    "tensor_nbytes",
]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_SHARDS = 99_999
"""Matches a shard's file name: its number has five digits."""
ALIGNMENT_KEY = "general.alignment"

MAX_KEY = 65_535
"""Maximum bytes of a name, by the specification."""

_COUNTS = struct.Struct("<QQ")
_SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_MIN_ENTRY = 8 + 1 + 4 + 1
"""Bytes of the smallest possible metadata entry: key length, one letter, type, one byte."""
_MIN_TENSOR = 8 + 1 + 4 + 4 + 8
"""Bytes of the smallest possible tensor entry: name length, one letter, dimension count, type, offset."""


class GgufFile:
    """One GGUF file, opened and checked. Use as a context manager, or let the garbage collector close it.

    ``metadata`` keeps the order of the file, ``tensors`` the order of its directory. ``header_size`` is the end of
    the directory in bytes; the bytes up to ``data_offset`` are padding.
    """

    path: Path
    version: int
    metadata: Mapping[str, MetaValue]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    header_size: int
    data_offset: int
    file_size: int

    def __init__(self, path: Path, data: memoryview, file_size: int | None = None) -> None:
        """Parse ``data``, the whole file; usually called by ``open``. Raises ``BadInput``.

        With ``file_size``, ``data`` is the beginning of a remote file of that many bytes: its header is readable, its
        tensors are not. ``TruncatedHeader`` then has the minimum number of bytes needed.
        """
        self.path, self._data = path, data
        self.file_size = len(data) if file_size is None else file_size
        cursor = Cursor(path, data)
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
        with _more_to_come(n_tensors * _MIN_TENSOR):
            self.metadata = MappingProxyType(_read_metadata(cursor, n_entries))
        self.alignment = _read_alignment(cursor, self.metadata)
        self.tensors = tuple(_read_tensors(cursor, n_tensors))
        self.header_size = cursor.at
        self.data_offset = align(cursor.at, self.alignment)
        self._by_name = {info.name: info for info in self.tensors}
        if len(self._by_name) != n_tensors:
            twice = Counter(info.name for info in self.tensors).most_common(1)[0][0]
            raise cursor.refuse(f"the tensor {twice} is listed twice")
        _check_layout(cursor, self.tensors, self.alignment, self.data_offset, self.file_size)

    @classmethod
    def open(cls, path: Path | str) -> GgufFile:
        """Map and parse the file at ``path``; ``BadInput`` says what is wrong with it."""
        path = Path(path)
        try:
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise BadInput("is a device or a pipe, not a GGUF file", where=path)
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
        """Release the mapping; views from ``tensor_bytes`` stay valid until they are released."""
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
        """Return the string under ``key``, ``None`` if it is missing; ``BadInput`` if it has another type."""
        value = self.metadata.get(key)
        if value is None:
            return None
        if value.type is not GGUFValueType.STRING:
            raise BadInput(f"{key} is no string", where=self.path)
        return str(value.value)

    def integer(self, key: str) -> int | None:
        """Return the integer under ``key``, ``None`` if it is missing; ``BadInput`` if it has another type."""
        value = self.metadata.get(key)
        if value is None:
            return None
        if value.type is GGUFValueType.ARRAY or not isinstance(value.value, int) or isinstance(value.value, bool):
            raise BadInput(f"{key} is no integer", where=self.path)
        return value.value


def _read_version(cursor: Cursor) -> int:
    magic = bytes(cursor.data[:4])
    if magic != MAGIC:
        hint = "a byte-swapped GGUF" if magic == MAGIC[::-1] else "not a GGUF file"
        raise cursor.refuse(f"{hint} (it begins with {magic!r})")
    cursor.skip(4, "the magic")
    version = cursor.number(U32, "the version")
    if version and not version & 0xFFFF:
        raise cursor.refuse("big-endian GGUF is not supported")
    if version not in VERSIONS:
        raise cursor.refuse(f"GGUF v{version} is not supported (v2 and v3 are)")
    return version


@contextmanager
def _more_to_come(nbytes: int) -> Iterator[None]:
    """Convert errors of a header that ends inside the block, adding the minimum bytes that must follow."""
    try:
        yield
    except TruncatedHeader as error:
        error.needed += nbytes
        raise


def _read_metadata(cursor: Cursor, count: int) -> dict[str, MetaValue]:
    metadata: dict[str, MetaValue] = {}
    for number in range(count):
        with _more_to_come((count - number - 1) * _MIN_ENTRY):
            key = cursor.name("a metadata key", MAX_KEY)
            if key in metadata:
                raise cursor.refuse(f"the metadata key {key} occurs twice")
            metadata[key] = cursor.value(key)
    return metadata


def _read_tensors(cursor: Cursor, count: int) -> Iterator[TensorInfo]:
    for number in range(count):
        try:
            yield cursor.tensor()
        except TruncatedHeader as error:
            error.needed += (count - number - 1) * _MIN_TENSOR
            raise


def _read_alignment(cursor: Cursor, metadata: Mapping[str, MetaValue]) -> int:
    stored = metadata.get(ALIGNMENT_KEY)
    if stored is None:
        return DEFAULT_ALIGNMENT
    if stored.type is not GGUFValueType.UINT32 or stored.value.bit_count() != 1:
        raise cursor.refuse(f"{ALIGNMENT_KEY} is {stored!r} and must be a power of two as UINT32")
    return int(stored.value)


def _check_layout(
    cursor: Cursor, tensors: Sequence[TensorInfo], alignment: int, data_offset: int, file_size: int
) -> None:
    """Raise ``BadInput`` for tensors that are misaligned, overlap, or end beyond the end of the file."""
    end, previous = 0, ""
    for info in sorted(tensors, key=lambda t: t.offset):
        if info.offset % alignment:
            raise cursor.refuse(f"the tensor {info.name} is at offset {info.offset}, not a multiple of {alignment}")
        if info.offset < end:
            raise cursor.refuse(f"the tensors {previous} and {info.name} overlap")
        end, previous = info.offset + info.nbytes, info.name
    if tensors and data_offset + end > file_size:
        raise BadInput(
            f"the file is truncated: the tensor {previous} ends at byte {data_offset + end} and the file at "
            f"{file_size}",
            where=cursor.path,
            remedy="fetch or copy it again",
        )


def encode_header(
    metadata: Mapping[str, MetaValue], tensors: Sequence[TensorInfo], alignment: int = DEFAULT_ALIGNMENT
) -> bytes:
    """Return a complete GGUF v3 header, padded with zeros so that its length is the data offset.

    ``alignment`` must equal the alignment key of ``metadata`` (default 32), which readers use, else ``ValueError``.
    """
    stored = metadata.get(ALIGNMENT_KEY)
    if alignment != (DEFAULT_ALIGNMENT if stored is None else stored.value):
        raise ValueError(f"the alignment {alignment} is not the one {ALIGNMENT_KEY} tells readers")
    parts = [MAGIC, U32.pack(VERSIONS[-1]), _COUNTS.pack(len(tensors), len(metadata))]
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
    """Return all files, in order, of the model to which ``path`` (a whole file, or any shard) belongs.

    Only names are used; ``BadInput`` if a shard is missing or the numbers in the name are invalid.
    """
    path = Path(path)
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    if not 1 <= int(match["no"]) <= count:
        raise BadInput(f"is named shard {int(match['no'])} of {count}", where=path, remedy="restore its original name")
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

    ``BadInput`` if a shard is missing, renamed or of another model: ``split.no`` and ``split.count`` must match the
    names, ``split.tensors.count`` the number of all tensors, and no tensor may occur twice.
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
                remedy="shards must keep the names llama.cpp gave them; fetch or rename it",
            )
        twice = next((t.name for t in file.tensors if t.name in names), None)
        if twice is not None:
            raise BadInput(f"the tensor {twice} is in two shards", where=file.path)
        names.update(t.name for t in file.tensors)
    stated = first.integer("split.tensors.count")
    if stated is not None and stated != len(names):
        raise BadInput(f"the shards have {len(names)} tensors, but their header says {stated}", where=first.path)
    return files
