"""GGUF files that are damaged or hostile are refused with one sentence, and nothing else happens."""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.errors import BadInput
from strata_pack.weights.gguf.file import (
    GgufFile,
)
from tests.weights.gguf.samples import header, sample_bytes, tensor, text

HOSTILE = {
    "empty": (b"", "is empty"),
    "short": (b"GGU", "not a GGUF file"),
    "other format": (b"PK\x03\x04" + bytes(40), "not a GGUF file"),
    "byte-swapped magic": (b"FUGG" + bytes(40), "byte-swapped"),
    "no version": (b"GGUF", "truncated"),
    "v1": (header(version=1), "GGUF v1 is not supported"),
    "v4": (header(version=4), "GGUF v4 is not supported"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "no counts": (b"GGUF" + struct.pack("<I", 3), "truncated"),
    "absurd entry count": (header(entries=1 << 60), "cannot fit"),
    "absurd tensor count": (header(tensors=1 << 63), "cannot fit"),
    "key longer than the file": (header(entries=1, rest=struct.pack("<Q", 1 << 62) + bytes(30)), "truncated"),
    "key too long": (header(entries=1, rest=text("k" * 70_000) + bytes(30)), "at most 65535"),
    "key not UTF-8": (header(entries=1, rest=struct.pack("<Q", 2) + b"\xff\xfe" + bytes(30)), "not UTF-8"),
    "key with an escape": (header(entries=1, rest=text("a\x1b[2J") + bytes(30)), "unprintable"),
    "unknown value type": (header(entries=1, rest=text("a") + struct.pack("<I", 13) + bytes(30)), "unknown metadata"),
    "string longer than the file": (
        header(entries=1, rest=text("a") + struct.pack("<IQ", 8, 1 << 40) + bytes(30)),
        "truncated",
    ),
    "array of arrays": (header(entries=1, rest=text("a") + struct.pack("<IIQ", 9, 9, 1)), "array of arrays"),
    "absurd array": (header(entries=1, rest=text("a") + struct.pack("<IIQ", 9, 5, 1 << 61)), "truncated"),
    "absurd string array": (header(entries=1, rest=text("a") + struct.pack("<IIQ", 9, 8, 1 << 61)), "truncated"),
    "string array past the end": (
        header(entries=1, rest=text("a") + struct.pack("<IIQQ", 9, 8, 2, (1 << 64) - 9) + bytes(16)),
        "truncated",
    ),
    "key twice": (header(entries=2, rest=(text("a") + struct.pack("<IB", 0, 1)) * 2), "occurs twice"),
    "alignment 0": (header(entries=1, rest=text("general.alignment") + struct.pack("<II", 4, 0)), "power of two"),
    "alignment 48": (header(entries=1, rest=text("general.alignment") + struct.pack("<II", 4, 48)), "power of two"),
    "alignment as text": (
        header(entries=1, rest=text("general.alignment") + struct.pack("<I", 8) + text("32")),
        "power of two",
    ),
    "five dimensions": (header(tensors=1, rest=tensor("t", (1,) * 5, 0, 0) + bytes(64)), "5 dimensions"),
    "dimension of 0": (header(tensors=1, rest=tensor("t", (0,), 0, 0) + bytes(64)), "impossible shape"),
    "shape overflow": (header(tensors=1, rest=tensor("t", (1 << 40, 1 << 40), 0, 0) + bytes(64)), "impossible shape"),
    "unknown tensor type": (header(tensors=1, rest=tensor("t", (4,), 4, 0) + bytes(64)), "unknown or removed type 4"),
    "row is no whole block": (header(tensors=1, rest=tensor("t", (33,), 8, 0) + bytes(64)), "not a whole number"),
    "tensor name too long": (header(tensors=1, rest=tensor("t" * 64, (4,), 0, 0) + bytes(64)), "at most 63"),
    "misaligned": (header(tensors=1, rest=tensor("t", (4,), 0, 8) + bytes(90)), "not a multiple of 32"),
    "past the end": (header(tensors=1, rest=tensor("t", (4,), 0, 1 << 40) + bytes(64)), "truncated"),
    "huge offset": (header(tensors=1, rest=tensor("t", (4,), 0, (1 << 64) - 32) + bytes(64)), "truncated"),
    "data cut": (header(tensors=1, rest=tensor("t", (64,), 0, 0) + bytes(64)), "truncated"),
    "overlap": (
        header(tensors=2, rest=tensor("t", (16,), 0, 0) + tensor("u", (16,), 0, 32) + bytes(200)),
        "t and u overlap",
    ),
    "tensor twice": (
        header(tensors=2, rest=tensor("t", (8,), 0, 0) + tensor("t", (8,), 0, 32) + bytes(200)),
        "t is listed twice",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_refused_with_one_sentence(name: str, tmp_path: Path) -> None:
    data, words = HOSTILE[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(BadInput, match=words) as caught:
        GgufFile.open(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        GgufFile.open(tmp_path / "none.gguf")
    with pytest.raises(BadInput, match="is a folder"):
        GgufFile.open(tmp_path)


def test_a_pipe_is_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(BadInput, match="is a device or a pipe"):
        GgufFile.open(tmp_path / "pipe.gguf")


def read_all(data: bytes) -> None:
    file = GgufFile(Path("fuzz.gguf"), memoryview(data))
    for value in file.metadata.values():
        assert value.value is not None
    for info in file.tensors:
        assert len(file.tensor_bytes(info)) == info.nbytes


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.integers(0, len(sample_bytes()) - 1))
def test_every_truncation_is_refused_or_harmless(size: int) -> None:
    with pytest.raises(BadInput):
        read_all(sample_bytes()[:size])


@settings(max_examples=500, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, len(sample_bytes()) - 481), st.integers(0, 7)), min_size=1, max_size=6))
def test_flipped_header_bits_raise_nothing_but_bad_input(flips: list[tuple[int, int]]) -> None:
    data = bytearray(sample_bytes())
    for position, bit in flips:
        data[position] ^= 1 << bit
    with contextlib.suppress(BadInput):
        read_all(bytes(data))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.binary(max_size=200))
def test_random_bytes_after_a_valid_start_raise_nothing_but_bad_input(tail: bytes) -> None:
    with contextlib.suppress(BadInput):
        read_all(header(tensors=1, entries=1, rest=tail))
