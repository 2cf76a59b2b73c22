"""Defines a GGUF metadata value, which keeps its encoded bytes and is decoded on demand.

A vocabulary has 150,000 strings; most readers never use them, and a rewritten header must preserve them byte for byte.
So a value from a file keeps its raw encoding and is decoded at the first access.
Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (little-endian, version 3).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from strata_pack.errors import BadInput
from strata_pack.llama.ggml_types import GGUFValueType

SCALARS: dict[GGUFValueType, struct.Struct] = {
    GGUFValueType.UINT8: struct.Struct("<B"),
    GGUFValueType.INT8: struct.Struct("<b"),
    GGUFValueType.UINT16: struct.Struct("<H"),
    GGUFValueType.INT16: struct.Struct("<h"),
    GGUFValueType.UINT32: struct.Struct("<I"),
    GGUFValueType.INT32: struct.Struct("<i"),
    GGUFValueType.FLOAT32: struct.Struct("<f"),
    GGUFValueType.BOOL: struct.Struct("<?"),
    GGUFValueType.UINT64: struct.Struct("<Q"),
    GGUFValueType.INT64: struct.Struct("<q"),
    GGUFValueType.FLOAT64: struct.Struct("<d"),
}
"""The struct format of each fixed-size type."""

_U32 = SCALARS[GGUFValueType.UINT32]
_U64 = SCALARS[GGUFValueType.UINT64]
_ARRAY_HEAD = struct.Struct("<IQ")
_UNDECODED: Any = object()


def encode_string(text: str) -> bytes:
    """Return ``text`` in GGUF's encoding: the length in bytes (u64), then UTF-8."""
    data = text.encode("utf-8")
    return _U64.pack(len(data)) + data


class MetaValue:
    """One metadata value: ``type``, ``value`` and, for arrays, ``item_type``. Immutable; equal when the bytes are.

    ``value`` is an ``int``, ``float``, ``bool`` or ``str``, and a ``list`` of these for an array.
    The constructor raises ``ValueError`` for a value that does not fit the type.
    """

    __slots__ = ("_raw", "_value", "item_type", "type")

    type: GGUFValueType
    item_type: GGUFValueType | None

    def __init__(self, type: GGUFValueType, value: Any, item_type: GGUFValueType | None = None) -> None:
        if (type is GGUFValueType.ARRAY) is (item_type is None):
            raise ValueError("an array needs an item_type, and nothing else has one")
        self.type, self.item_type, self._value = type, item_type, value
        self._raw = _encode(type, value, item_type)

    @classmethod
    def from_raw(cls, type: GGUFValueType, raw: bytes, item_type: GGUFValueType | None = None) -> MetaValue:
        """Return the value with the encoding ``raw`` (for arrays with item type and count), which must be valid."""
        made = cls.__new__(cls)
        made.type, made.item_type, made._raw, made._value = type, item_type, raw, _UNDECODED
        return made

    @classmethod
    def string(cls, text: str) -> MetaValue:
        """Return a string value."""
        return cls(GGUFValueType.STRING, text)

    @classmethod
    def uint32(cls, number: int) -> MetaValue:
        """Return an unsigned 32-bit value, the type of most numbers in a GGUF header."""
        return cls(GGUFValueType.UINT32, number)

    @classmethod
    def array(cls, item_type: GGUFValueType, values: Sequence[Any]) -> MetaValue:
        """Return an array of ``item_type``."""
        return cls(GGUFValueType.ARRAY, list(values), item_type)

    @property
    def raw(self) -> bytes:
        """The value's bytes in a file, without the leading type code."""
        return self._raw

    @property
    def value(self) -> Any:
        """The decoded value; ``BadInput`` for a string that is not UTF-8 (llama.cpp does not check that)."""
        if self._value is _UNDECODED:
            try:
                self._value = _decode(self.type, self._raw)
            except UnicodeDecodeError as error:
                raise BadInput(f"a metadata string is not UTF-8 ({error.reason})") from None
        return self._value

    def head(self, count: int) -> list[Any]:
        """Return the first ``count`` items of an array, or all if it has fewer, without decoding the others."""
        if self._value is not _UNDECODED:
            return list(self._value[:count])
        try:
            return _decode_array(self._raw, min(count, len(self)))
        except UnicodeDecodeError as error:
            raise BadInput(f"a metadata string is not UTF-8 ({error.reason})") from None

    def __len__(self) -> int:
        """Return the number of items of an array, without decoding it."""
        if self.type is not GGUFValueType.ARRAY:
            raise TypeError(f"a {self.type.name} has no length")
        return int(_ARRAY_HEAD.unpack_from(self._raw)[1])

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MetaValue) and self.type is other.type and self._raw == other._raw

    def __hash__(self) -> int:
        return hash((self.type, self._raw))

    def __repr__(self) -> str:
        if self.type is GGUFValueType.ARRAY and self.item_type is not None:
            return f"MetaValue({self.item_type.name}[{len(self)}])"
        return f"MetaValue({self.type.name}, {self.value!r})"


def _encode(type: GGUFValueType, value: Any, item_type: GGUFValueType | None) -> bytes:
    try:
        if type is GGUFValueType.STRING:
            return encode_string(value)
        if item_type is None:
            return SCALARS[type].pack(value)
        head = _ARRAY_HEAD.pack(item_type, len(value))
        if item_type is GGUFValueType.STRING:
            return head + b"".join(map(encode_string, value))
        return head + struct.pack(f"<{len(value)}{SCALARS[item_type].format[-1]}", *value)
    except (struct.error, KeyError, AttributeError, TypeError) as error:
        kind = type.name if item_type is None else f"array of {item_type.name}"
        raise ValueError(f"not a value for {kind}: {error}") from error


def _decode(type: GGUFValueType, raw: bytes) -> Any:
    if type is GGUFValueType.STRING:
        return str(memoryview(raw)[8:], "utf-8")
    if type is not GGUFValueType.ARRAY:
        return SCALARS[type].unpack(raw)[0]
    return _decode_array(raw, _ARRAY_HEAD.unpack_from(raw)[1])


def _decode_array(raw: bytes, count: int) -> list[Any]:
    """Return the first ``count`` items of the array in ``raw``."""
    item_type = GGUFValueType(_ARRAY_HEAD.unpack_from(raw)[0])
    if item_type is not GGUFValueType.STRING:
        return list(struct.unpack_from(f"<{count}{SCALARS[item_type].format[-1]}", raw, _ARRAY_HEAD.size))
    strings, position, length_at = [], _ARRAY_HEAD.size, _U64.unpack_from
    for _ in range(count):
        start = position + 8
        position = start + length_at(raw, position)[0]
        strings.append(raw[start:position].decode("utf-8"))
    return strings


def encode_entry(key: str, value: MetaValue) -> bytes:
    """Return the bytes of one key and its value in a header."""
    return b"".join((encode_string(key), _U32.pack(value.type), value.raw))
