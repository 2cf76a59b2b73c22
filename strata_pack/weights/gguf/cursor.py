"""Parses a GGUF header; every count and length is checked against the file size before it is used."""

from __future__ import annotations

import math
import struct
from pathlib import Path

from strata_pack.errors import BadInput
from strata_pack.llama.ggml_types import GGML_QUANT_SIZES, GGUFValueType
from strata_pack.weights.gguf.tensor_info import MAX_TENSOR_NAME, TensorInfo, tensor_nbytes
from strata_pack.weights.gguf.values import SCALARS, MetaValue

MAX_DIMS = 4

_TENSOR_TYPES = {int(type): type for type in GGML_QUANT_SIZES}
U32 = SCALARS[GGUFValueType.UINT32]
U64 = SCALARS[GGUFValueType.UINT64]


class TruncatedHeader(BadInput):
    """The header ends too early. ``needed`` is a lower bound of the header's size in bytes."""

    def __init__(self, problem: str, where: Path, needed: int) -> None:
        self.needed = needed
        super().__init__(problem, where=where, remedy="fetch or copy the file again")


class Cursor:
    """A reading position in the header, which is always inside the file."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path, self.data, self.at, self.size = path, data, 0, len(data)

    def refuse(self, problem: str) -> BadInput:
        return BadInput(problem, where=self.path)

    def skip(self, size: int, what: str) -> int:
        """Advance by ``size`` bytes and return the start."""
        start = self.at
        if size > self.size - start:
            raise TruncatedHeader(
                f"the header is truncated: {what} at byte {start} needs {size} bytes and the file ends at {self.size}",
                self.path,
                start + size,
            )
        self.at = start + size
        return start

    def number(self, layout: struct.Struct, what: str) -> int:
        start = self.skip(layout.size, what)
        return int(layout.unpack_from(self.data, start)[0])

    def name(self, what: str, limit: int) -> str:
        """Read a name: printable UTF-8 of 1 to ``limit`` bytes."""
        length = self.number(U64, what)
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
        code = self.number(U32, f"the type of {key}")
        try:
            return GGUFValueType(code)
        except ValueError:
            raise self.refuse(f"{key} has the unknown metadata type {code}") from None

    def value(self, key: str) -> MetaValue:
        type = self.value_type(key)
        start, item_type = self.at, None
        if type is GGUFValueType.STRING:
            self.skip(self.number(U64, f"the length of {key}"), f"the value of {key}")
        elif type is GGUFValueType.ARRAY:
            item_type = self.array(key)
        else:
            self.skip(SCALARS[type].size, f"the value of {key}")
        return MetaValue.from_raw(type, bytes(self.data[start : self.at]), item_type)

    def array(self, key: str) -> GGUFValueType:
        item_type = self.value_type(key)
        count = self.number(U64, f"the item count of {key}")
        if item_type is GGUFValueType.ARRAY:
            raise self.refuse(f"{key} is an array of arrays, which no GGUF reader supports")
        if item_type is not GGUFValueType.STRING:
            self.skip(count * SCALARS[item_type].size, f"the items of {key}")
            return item_type
        data, at, length_at = self.data, self.at, U64.unpack_from
        read = 0
        try:
            for read in range(count):  # noqa: B007
                at += 8 + length_at(data, at)[0]
            read = count
        except (struct.error, OverflowError):
            at += 8 * (count - read)
        if at > self.size:
            problem = f"the header is truncated: the {count} strings of {key} run past the end of the file"
            raise TruncatedHeader(problem, self.path, at)
        self.at = at
        return item_type

    def tensor(self) -> TensorInfo:
        name = self.name("a tensor name", MAX_TENSOR_NAME)
        n_dims = self.number(U32, f"the dimension count of {name}")
        if n_dims > MAX_DIMS:
            raise self.refuse(f"the tensor {name} has {n_dims} dimensions and ggml knows at most {MAX_DIMS}")
        shape = tuple(self.number(U64, f"the shape of {name}") for _ in range(n_dims))
        if any(not 0 < n < 1 << 63 for n in shape) or math.prod(shape) >= 1 << 60:
            raise self.refuse(f"the tensor {name} has the impossible shape {list(shape)}")
        code = self.number(U32, f"the type of {name}")
        offset = self.number(U64, f"the offset of {name}")
        type = _TENSOR_TYPES.get(code)
        if type is None:
            raise self.refuse(f"the tensor {name} has the unknown or removed type {code}")
        try:
            nbytes = tensor_nbytes(shape, type)
        except ValueError as error:
            raise self.refuse(f"the tensor {name} is malformed: {error}") from None
        return TensorInfo(name, shape, type, offset, nbytes)
