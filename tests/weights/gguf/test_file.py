"""The GGUF parser and header encoder: exact round trips, and one sentence for everything hostile."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q
from gguf import GGUFReader, GGUFWriter
from gguf import GGUFValueType as V
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.errors import BadInput
from strata_pack.weights.gguf.file import (
    GgufFile,
    MetaValue,
    TensorInfo,
    encode_header,
    open_shards,
    shard_name,
    shard_paths,
)
from tests.weights.gguf.samples import SCALAR_VALUES, header, sample_metadata, sample_tensors, text


def test_all_value_types_survive_writing_and_parsing(sample: Path) -> None:
    with GgufFile.open(sample) as file:
        assert dict(file.metadata) == sample_metadata()
        assert {k: v.value for k, v in file.metadata.items()} == {k: v.value for k, v in sample_metadata().items()}


def test_tensor_directory_gives_shape_type_size_and_bytes(sample: Path) -> None:
    with GgufFile.open(sample) as file:
        embedding, norm = file.tensors
        assert embedding == TensorInfo("token_embd.weight", (256, 3), Q.Q4_K, 0, 432)
        assert bytes(file.tensor_bytes(norm)) == (bytes(range(240)) * 2)[448:480]
        assert file.tensor("blk.0.attn_norm.weight") is norm
        assert file.data_offset % file.alignment == 0
        assert file.header_size <= file.data_offset


def test_a_parsed_header_is_encoded_to_the_same_bytes(sample: Path) -> None:
    with GgufFile.open(sample) as file:
        assert encode_header(file.metadata, file.tensors, file.alignment) == sample.read_bytes()[: file.data_offset]


def test_the_header_of_a_real_model_is_encoded_to_the_same_bytes(smollm2: Path) -> None:
    with GgufFile.open(smollm2) as file:
        with smollm2.open("rb") as raw:
            expected = raw.read(file.data_offset)
        assert encode_header(file.metadata, file.tensors, file.alignment) == expected


def test_gguf_py_reads_what_we_encode(sample: Path) -> None:
    reader = GGUFReader(sample)
    assert [t.name for t in reader.tensors] == [t.name for t in sample_tensors()]
    field = reader.get_field("test.string")
    assert field is not None
    assert field.contents() == SCALAR_VALUES[V.STRING]


def test_we_read_what_gguf_py_writes(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    writer.add_array("words", ["a", "", "ß"])
    writer.add_tensor("x.weight", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("y.weight", np.ones(4, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GgufFile.open(path) as file:
        assert file.alignment == 64
        assert file.metadata["words"].value == ["a", "", "ß"]
        assert file.tensor("x.weight").shape == (4, 3)
        assert np.frombuffer(file.tensor_bytes(file.tensor("y.weight")), np.float16).tolist() == [1] * 4


def test_a_vocabulary_of_150000_tokens_is_parsed_quickly(tmp_path: Path) -> None:
    path = tmp_path / "big.gguf"
    tokens = MetaValue.array(V.STRING, [f"token{i}" for i in range(150_000)])
    path.write_bytes(encode_header({"tokens": tokens, "merges": tokens}, []))
    start = time.process_time()
    with GgufFile.open(path) as file:
        assert len(file.metadata["tokens"]) == 150_000
    assert time.process_time() - start < 1


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.dictionaries(
        st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20),
        st.one_of(
            st.text(max_size=20).map(MetaValue.string),
            st.integers(0, (1 << 32) - 1).map(MetaValue.uint32),
            st.lists(st.text(max_size=8), max_size=8).map(lambda v: MetaValue.array(V.STRING, v)),
            st.lists(st.floats(width=32, allow_nan=False), max_size=8).map(lambda v: MetaValue.array(V.FLOAT32, v)),
        ),
        max_size=8,
    )
)
def test_any_metadata_round_trips(metadata: dict[str, MetaValue]) -> None:
    metadata.pop("general.alignment", None)
    data = encode_header(metadata, [])
    file = GgufFile(Path("x"), memoryview(data))
    assert dict(file.metadata) == metadata
    assert [v.value for v in file.metadata.values()] == [v.value for v in metadata.values()]
    assert encode_header(file.metadata, file.tensors) == data


@pytest.mark.parametrize(
    ("type", "value", "item_type"),
    [
        (V.UINT8, 256, None),
        (V.STRING, 5, None),
        (V.ARRAY, [1], None),
        (V.UINT32, 1, V.UINT32),
        (V.ARRAY, ["a"], V.INT8),
        (V.ARRAY, [[1]], V.ARRAY),
    ],
)
def test_a_value_that_does_not_fit_its_type_is_a_value_error(type: V, value: object, item_type: V | None) -> None:
    with pytest.raises(ValueError):
        MetaValue(type, value, item_type)


def test_text_that_is_not_utf8_is_refused_when_looked_at_and_kept_when_rewritten() -> None:
    data = header(entries=1, rest=text("a") + struct.pack("<IQ", 8, 1) + b"\xff").ljust(64, b"\0")
    file = GgufFile(Path("x"), memoryview(data))
    assert encode_header(file.metadata, [])[: file.header_size] == data[: file.header_size]
    with pytest.raises(BadInput, match="not UTF-8"):
        file.text("a")


def test_encoding_with_an_alignment_the_header_does_not_tell_is_an_error() -> None:
    with pytest.raises(ValueError, match="alignment 64"):
        encode_header({}, [], 64)


def write_shards(folder: Path, count: int, **changes: int) -> list[Path]:
    paths = []
    for index in range(count):
        keys = {"split.no": index, "split.count": count, "split.tensors.count": count} | changes
        metadata = {
            key: MetaValue(V.INT32 if key == "split.tensors.count" else V.UINT16, value) for key, value in keys.items()
        }
        path = folder / shard_name("m", index, count)
        path.write_bytes(encode_header(metadata, [TensorInfo.make(f"t{index}", (8,), Q.F32)]) + bytes(32))
        paths.append(path)
    return paths


def test_shards_are_found_from_any_of_them(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, 3)
    assert paths[0].name == "m-00001-of-00003.gguf"
    assert shard_paths(paths[1]) == paths
    assert [f.tensors[0].name for f in open_shards(paths[2])] == ["t0", "t1", "t2"]


def test_a_file_without_a_shard_name_stands_alone(sample: Path) -> None:
    assert shard_paths(sample) == [sample]
    assert len(open_shards(sample)) == 1


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, 3)
    paths[1].unlink()
    with pytest.raises(BadInput, match=r"m-00002-of-00003\.gguf of this model is missing"):
        open_shards(paths[0])


def test_a_shard_number_beyond_the_count_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is named shard 4 of 3"):
        shard_paths(tmp_path / "m-00004-of-00003.gguf")


def test_swapped_shards_are_refused(tmp_path: Path) -> None:
    first, second = write_shards(tmp_path, 2)
    first.rename(tmp_path / "x")
    second.rename(first)
    (tmp_path / "x").rename(second)
    with pytest.raises(BadInput, match="says it is shard 2 of 2, its name says 1 of 2"):
        open_shards(first)


def test_a_renamed_shard_is_not_taken_for_a_model(tmp_path: Path) -> None:
    path = write_shards(tmp_path, 2)[0].rename(tmp_path / "whole.gguf")
    with pytest.raises(BadInput, match="says it is shard 1 of 2, its name says 1 of 1"):
        open_shards(path)


def test_a_whole_file_named_as_a_shard_is_refused(tmp_path: Path, sample: Path) -> None:
    paths = write_shards(tmp_path, 2)
    sample.rename(paths[1])
    with pytest.raises(BadInput, match="has no split keys"):
        open_shards(paths[0])


def test_a_wrong_tensor_count_over_all_shards_is_refused(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, 2, **{"split.tensors.count": 5})
    with pytest.raises(BadInput, match="have 2 tensors, but their header says 5"):
        open_shards(paths[0])


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, 2)
    data = paths[1].read_bytes()
    paths[1].write_bytes(data.replace(b"t1", b"t0"))
    with pytest.raises(BadInput, match="t0 is in two shards"):
        open_shards(paths[0])


@pytest.mark.parametrize("count", [0, 1, 3, 9])
@pytest.mark.parametrize(
    ("item_type", "items"),
    [
        (V.STRING, ["a", "", "\u00e9"]),
        (V.INT32, [-1, 2, 3]),
        (V.BOOL, [True, False]),
    ],
)
def test_the_head_of_an_array_is_its_first_items(count: int, item_type: V, items: list[object]) -> None:
    made = MetaValue.array(item_type, items)
    read = MetaValue.from_raw(made.type, made.raw, made.item_type)
    assert read.head(count) == made.head(count) == items[:count]
    assert read.value == items


def test_types_are_those_of_the_package_whichever_is_imported_first() -> None:
    code = (
        "from strata_pack.llama.ggml_types import GGMLQuantizationType as Ours; import sys;"
        "assert not {'gguf', 'numpy'} & set(sys.modules); import gguf; assert gguf.GGMLQuantizationType is Ours"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_inspecting_loads_neither_numpy_nor_the_template_engine() -> None:
    code = "import strata_pack.pack.inspect, sys; assert not {'numpy', 'jinja2', 'gguf', 'yaml'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
