"""Safetensors headers: nothing is believed that the file does not hold."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.errors import BadInput
from strata_pack.weights.convert.safetensors import MAX_HEADER, Checkpoint, read_header
from tests.tiny_models import write_safetensors

DATA = bytes(range(64))


def save(path: Path, header: Any, data: bytes = DATA) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str = "F32", shape: Any = (2, 4), offsets: Any = (0, 32)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_tensors_come_by_name_with_their_place(tmp_path: Path) -> None:
    path = save(tmp_path / "x", {"__metadata__": {"a": "b"}, "b": entry(), "a": entry("BF16", [16], [32, 64])})
    first, second = read_header(path)
    assert [(t.name, t.dtype, t.shape, t.nbytes) for t in (first, second)] == [
        ("a", "BF16", (16,), 32),
        ("b", "F32", (2, 4), 32),
    ]
    assert path.read_bytes()[second.start : second.start + 32] == DATA[:32]


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        (b"{", "malformed"),
        (b"[]", "malformed"),
        (b'"x"', "malformed"),
        (b"[" * 100_000, "malformed"),
        (b"\xff\xfe", "malformed"),
        ({"a": 7}, "malformed"),
        ({"a": {}}, "malformed"),
        ({"": entry()}, "has the name ''"),
        ({"a\nb": entry()}, "has the name"),
        ({"a" * 2000: entry()}, "has the name"),
        ({"a": entry("F31")}, "unknown type 'F31'"),
        ({"a": entry(dtype=["F32"])}, "malformed"),
        ({"a": entry(shape=[2, -4])}, "impossible shape"),
        ({"a": entry(shape=[2, 1 << 60])}, "impossible shape"),
        ({"a": entry(shape=[2, 4.0])}, "impossible shape"),
        ({"a": entry(shape=[True, 8])}, "impossible shape"),
        ({"a": entry(shape=[1] * 9)}, "impossible shape"),
        ({"a": entry(shape=7)}, "malformed"),
        ({"a": entry(offsets=[0, 31])}, "do not fit F32"),
        ({"a": entry(offsets=[-32, 0])}, "do not fit F32"),
        ({"a": entry(offsets=[0.0, 32.0])}, "do not fit F32"),
        ({"a": entry(offsets=[0])}, "malformed"),
        ({"a": entry(offsets=[64, 96])}, "is truncated: a ends at byte"),
        ({"a": entry(), "b": entry(offsets=[16, 48])}, "the tensors a and b overlap"),
    ],
)
def test_damaged_header_is_refused(tmp_path: Path, header: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        read_header(save(tmp_path / "x", header))


def test_header_longer_than_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(struct.pack("<Q", 1 << 63) + b"{}")
    with pytest.raises(BadInput, match="its header does not fit"):
        read_header(tmp_path / "x")


def test_header_over_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", MAX_HEADER + 1))
        file.truncate(MAX_HEADER + 1000)
    with pytest.raises(BadInput, match=f"at most {MAX_HEADER} are allowed"):
        read_header(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        read_header(tmp_path / "x")


def test_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    tensors = {"a": ("F32", (2, 4), DATA[:32])}
    names = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for name in names:
        write_safetensors(tmp_path / name, tensors)
    index = {"weight_map": {"a": names[0], "b": names[1]}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadInput, match=f"the tensor a is in {names[0]} too"):
        Checkpoint(tmp_path)


def test_a_message_about_a_missing_tensor_shows_the_beginning_of_a_long_name(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"a": ("F32", (2, 4), DATA[:32])})
    index = {"weight_map": dict.fromkeys(("a", "t" * 5000), "model.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadInput, match=r"lacks t{80}, which"):
        Checkpoint(tmp_path)


def test_bytes_are_read_from_any_offset(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"a": ("F32", (2, 4), DATA[:32]), "b": ("U8", (9,), DATA[:9])})
    with Checkpoint(tmp_path) as checkpoint:
        out = np.empty(8, dtype=np.uint8)
        checkpoint.read_into(checkpoint.tensors["a"], 20, out)
    assert bytes(out) == DATA[20:28]


_SAMPLE = struct.pack("<Q", 62) + json.dumps({"a": entry()}).encode().ljust(62) + DATA


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, len(_SAMPLE) - 1), st.binary(min_size=1, max_size=6))
def test_damage_anywhere_is_refused_or_harmless(tmp_path_factory: pytest.TempPathFactory, at: int, junk: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(_SAMPLE[:at] + junk + _SAMPLE[at + len(junk) :])
    try:
        tensors = read_header(path)
    except BadInput:
        return
    assert all(tensor.start + tensor.nbytes <= path.stat().st_size for tensor in tensors)
