"""Importance matrices in both forms, and every way they can be wrong."""

from __future__ import annotations

import contextlib
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q
from gguf import GGUFValueType as V
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.errors import BadInput
from strata_pack.weights.gguf.file import MetaValue, TensorInfo, align, encode_header
from strata_pack.weights.quantize.imatrix import read_imatrix
from strata_pack.weights.tensor_source import SourceTensor
from tests.weights.quantize.models import MOE, write_imatrix

WEIGHT = SourceTensor("blk.0.ffn_up.weight", (4, 2), Q.F16)
EXPERTS = SourceTensor("blk.0.ffn_up_exps.weight", (2, 3, 2), Q.F16)


def write_gguf(
    path: Path, tensors: dict[str, tuple[tuple[int, ...], list[float]]], kind: str = "imatrix", type: Q = Q.F32
) -> Path:
    infos, data = [], b""
    for name, (shape, values) in tensors.items():
        infos.append(TensorInfo.make(name, shape, type, len(data)))
        raw = np.array(values, np.float32 if type is Q.F32 else np.float16).tobytes()
        data += raw.ljust(align(len(raw), 32), b"\0")
    metadata = {
        "general.type": MetaValue.string(kind),
        "imatrix.datasets": MetaValue.array(V.STRING, ["a.txt", "b.txt"]),
        "imatrix.chunk_count": MetaValue.uint32(7),
    }
    path.write_bytes(encode_header(metadata, infos) + data)
    return path


def write_dat(path: Path, entries: list[tuple[str, int, list[float]]], tail: bytes = b"") -> Path:
    data = struct.pack("<i", len(entries))
    for name, calls, values in entries:
        data += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", calls, len(values))
        data += np.array(values, np.float32).tobytes()
    path.write_bytes(data + tail)
    return path


def test_importances_are_the_sums_over_the_counts(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "i.gguf",
        {f"{WEIGHT.name}.in_sum2": ((4, 1), [2, 4, 6, 8]), f"{WEIGHT.name}.counts": ((1, 1), [2])},
    )
    importances = read_imatrix(path).importances(WEIGHT)
    assert importances is not None
    assert importances.tolist() == [[1, 2, 3, 4]]


def test_an_expert_that_was_never_chosen_counts_all_columns_alike(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "i.gguf",
        {f"{EXPERTS.name}.in_sum2": ((2, 2), [5, 6, 9, 3]), f"{EXPERTS.name}.counts": ((1, 2), [0, 3])},
    )
    importances = read_imatrix(path).importances(EXPERTS)
    assert importances is not None
    assert importances.tolist() == [[1, 1], [3, 1]]


def test_the_file_is_recorded_with_hash_datasets_and_chunks(tmp_path: Path) -> None:
    path = write_imatrix(tmp_path / "i.gguf", MOE)
    imatrix = read_imatrix(path)
    assert imatrix.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (imatrix.datasets, imatrix.chunks) == (("calibration.txt",), 37)


def test_the_old_form_is_read(tmp_path: Path) -> None:
    tail = struct.pack("<ii", 12, 5) + b"c.txt"
    path = write_dat(tmp_path / "i.dat", [(WEIGHT.name, 4, [4, 8, 12, 16]), (EXPERTS.name, 0, [1, 2, 3, 4])], tail)
    imatrix = read_imatrix(path)
    first, second = imatrix.importances(WEIGHT), imatrix.importances(EXPERTS)
    assert first is not None
    assert second is not None
    assert (first.tolist(), second.tolist()) == ([[1, 2, 3, 4]], [[1, 2], [3, 4]])
    assert (imatrix.datasets, imatrix.chunks) == (("c.txt",), 12)


def test_the_old_form_may_end_after_the_values(tmp_path: Path) -> None:
    assert read_imatrix(write_dat(tmp_path / "i.dat", [("x", 1, [1.0])])).chunks is None


def test_a_weight_that_is_not_in_the_file_has_no_importances(tmp_path: Path) -> None:
    imatrix = read_imatrix(write_dat(tmp_path / "i.dat", [("x", 1, [1.0])]))
    assert imatrix.importances(WEIGHT) is None


def test_importances_of_another_size_are_refused(tmp_path: Path) -> None:
    imatrix = read_imatrix(write_dat(tmp_path / "i.dat", [(WEIGHT.name, 1, [1.0] * 5)]))
    with pytest.raises(BadInput, match=r"has 5 importances for blk\.0\.ffn_up\.weight, which needs 4"):
        imatrix.importances(WEIGHT)


def test_importances_of_the_embedding_by_token_are_passed_over(tmp_path: Path) -> None:
    embedding = SourceTensor("token_embd.weight", (4, 9), Q.F16)
    imatrix = read_imatrix(write_dat(tmp_path / "i.dat", [(embedding.name, 1, [1.0] * 9)]))
    assert imatrix.importances(embedding) is None


GOOD = {"w.in_sum2": ((2, 1), [1.0, 2.0]), "w.counts": ((1, 1), [1.0])}
BAD_GGUF = {
    "a model": ({}, {"kind": "model"}, "is a GGUF of type 'model', not an imatrix"),
    "empty": ({}, {}, "has no importances"),
    "sums without counts": ({"w.in_sum2": GOOD["w.in_sum2"]}, {}, r"without fitting F32 \.counts"),
    "counts without sums": ({"w.counts": GOOD["w.counts"]}, {}, r"without its \.in_sum2"),
    "too many counts": (GOOD | {"w.counts": ((1, 2), [1.0, 1.0])}, {}, r"without fitting F32 \.counts"),
    "half floats": (GOOD, {"type": Q.F16}, r"without fitting F32 \.counts"),
    "a NaN": (GOOD | {"w.in_sum2": ((2, 1), [1.0, float("nan")])}, {}, "NaN or infinite importance for w"),
    "an infinity": (GOOD | {"w.in_sum2": ((2, 1), [float("inf"), 0.0])}, {}, "NaN or infinite importance for w"),
}


@pytest.mark.parametrize("case", BAD_GGUF)
def test_a_bad_gguf_imatrix_is_refused(case: str, tmp_path: Path) -> None:
    tensors, options, words = BAD_GGUF[case]
    path = write_gguf(tmp_path / "i.gguf", tensors, **options)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=words):
        read_imatrix(path)


BAD_DAT = {
    "empty": b"",
    "text": b"hello, I am no imatrix at all",
    "no entries": struct.pack("<i", 0),
    "negative count": struct.pack("<i", -1),
    "absurd count": struct.pack("<i", 1 << 30),
    "absurd name": struct.pack("<ii", 1, 1 << 30),
    "values past the end": struct.pack("<ii", 1, 1) + b"w" + struct.pack("<ii", 1, 1 << 28),
    "no values": struct.pack("<ii", 1, 1) + b"w" + struct.pack("<ii", 1, 0),
    "cut in the middle": struct.pack("<ii", 2, 1) + b"w" + struct.pack("<iif", 1, 1, 1.0),
}


@pytest.mark.parametrize("case", BAD_DAT)
def test_a_bad_dat_imatrix_is_refused(case: str, tmp_path: Path) -> None:
    path = tmp_path / "i.dat"
    path.write_bytes(BAD_DAT[case])
    with pytest.raises(BadInput, match=r"imatrix|truncated"):
        read_imatrix(path)


def test_the_same_weight_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="'w' twice"):
        read_imatrix(write_dat(tmp_path / "i.dat", [("w", 1, [1.0]), ("w", 1, [1.0])]))


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        read_imatrix(tmp_path / "none.gguf")
    with pytest.raises(BadInput, match="is a folder"):
        read_imatrix(tmp_path)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.binary(max_size=120))
def test_random_bytes_raise_nothing_but_bad_input(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.dat"
    path.write_bytes(data)
    with contextlib.suppress(BadInput):
        read_imatrix(path)
