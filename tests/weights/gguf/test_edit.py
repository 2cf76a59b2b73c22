"""Headers that change while the tensors stay where they are."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFValueType
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.llama.logits_native import LogitsModel
from strata_pack.weights.gguf.copy import allocated_bytes, copy_with_header
from strata_pack.weights.gguf.edit import (
    BLOCK,
    CHUNK_END,
    PAD_KEY,
    RESERVE,
    TEMPLATE_KEY,
    Header,
    changes_between,
    edited,
    fit,
    outgrow,
    pad_value,
    read_header,
    split_headers,
)
from strata_pack.weights.gguf.file import GgufFile, MetaValue, open_shards
from tests.pack.tiny_gguf import STOCK, metadata, tensors, write_file, write_shards, write_tiny


def with_template(header: Header, text: str | None) -> dict[str, MetaValue]:
    return edited(header.metadata, {TEMPLATE_KEY: None if text is None else MetaValue.string(text)})


def put(path: Path, raw: bytes) -> None:
    with path.open("r+b") as file:
        file.write(raw)


def weights_of(paths: list[Path]) -> dict[str, bytes]:
    return {t.name: bytes(file.tensor_bytes(t)) for file in open_shards(paths[0]) for t in file.tensors}


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("padded") / "m.gguf", extra={PAD_KEY: pad_value(1000)})


@given(st.integers(0, 1300))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_header_that_fits_keeps_its_length_and_all_else(padded: Path, length: int) -> None:
    header = read_header(padded)
    wanted = with_template(header, "x" * length)
    raw = fit(header, wanted)
    room = 1000 + len(STOCK) + len(PAD_KEY) + 8 + 4 + 8 + header.alignment
    if raw is None:
        assert length > room - 2 * header.alignment
        return
    assert len(raw) == header.data_offset
    copy = padded.with_name("copy.gguf")
    copy.write_bytes(raw + padded.read_bytes()[header.data_offset :])
    with GgufFile.open(copy) as gguf:
        assert {k: v for k, v in gguf.metadata.items() if k != PAD_KEY} == wanted
        assert [k for k in gguf.metadata if k != PAD_KEY] == list(wanted)
        assert gguf.tensors == header.tensors
        assert gguf.data_offset == header.data_offset


@given(st.integers(0, len(STOCK)))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_any_shorter_template_fits_a_file_that_was_never_padded(tmp_path_factory: object, length: int) -> None:
    path = write_tiny(tmp_path_factory.getbasetemp() / "plain.gguf")  # type: ignore[attr-defined]
    header = read_header(path)
    raw = fit(header, with_template(header, "x" * length))
    assert raw is not None
    assert len(raw) == header.data_offset


def test_the_pad_comes_right_after_the_template(padded: Path) -> None:
    header = read_header(padded)
    raw = fit(header, with_template(header, "short"))
    assert raw is not None
    copy = padded.with_name("order.gguf")
    copy.write_bytes(raw + padded.read_bytes()[header.data_offset :])
    with GgufFile.open(copy) as gguf:
        keys = list(gguf.metadata)
    assert keys[keys.index(TEMPLATE_KEY) + 1] == PAD_KEY


def test_once_the_pad_is_there_only_bytes_around_the_template_change(padded: Path) -> None:
    header = read_header(padded)
    first = fit(header, with_template(header, "short"))
    assert first is not None
    second = fit(header, with_template(header, "not so short"))
    assert second is not None
    changes = changes_between(first, second)
    assert len(changes) == 1
    assert sum(len(change.new) for change in changes) < 200


def test_the_changes_make_the_new_header_of_the_old() -> None:
    old, new = bytearray(os.urandom(100_000)), bytearray()
    new[:] = old
    for at in (0, 17, 9_000, 9_001, 99_999):
        new[at] ^= 1
    patched = bytearray(old)
    for change in changes_between(bytes(old), bytes(new)):
        assert patched[change.offset : change.offset + len(change.old)] == change.old
        patched[change.offset : change.offset + len(change.new)] = change.new
    assert patched == new


def test_a_missing_template_key_is_added_where_the_pad_leaves_room(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", template=None, extra={PAD_KEY: pad_value(500)})
    header = read_header(path)
    raw = fit(header, with_template(header, "new"))
    assert raw is not None
    put(path, raw)
    with GgufFile.open(path) as gguf:
        assert gguf.text(TEMPLATE_KEY) == "new"


def test_a_longer_header_moves_the_tensors_by_whole_blocks_and_brings_a_reserve(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    header = read_header(path)
    raw = outgrow(header, with_template(header, "y" * 5000))
    assert (len(raw) - header.data_offset) % BLOCK == 0
    copy_with_header(path, header.data_offset, raw, tmp_path / "n.gguf")
    with GgufFile.open(tmp_path / "n.gguf") as gguf:
        assert len(str(gguf.metadata[PAD_KEY].value)) >= RESERVE
    assert weights_of([tmp_path / "n.gguf"]) == weights_of([path])
    with (
        LogitsModel(tmp_path / "n.gguf", context=16, threads=1) as new,
        LogitsModel(path, context=16, threads=1) as old,
    ):
        assert np.array_equal(new.logits([4, 5, 6], 0), old.logits([4, 5, 6], 0))


@pytest.mark.parametrize("counts", [(12,), (7, 5), (0, 12), (4, 4, 4)])
def test_a_header_only_first_shard_leaves_every_tensor_in_its_place(tmp_path: Path, counts: tuple[int, ...]) -> None:
    old = [write_tiny(tmp_path / "tiny.gguf")] if counts == (12,) else write_shards(tmp_path, counts)
    headers = [read_header(path) for path in old]
    split = split_headers(headers, with_template(headers[0], "z" * 5000))
    assert split is not None
    first, behind = split
    folder = tmp_path / "new"
    folder.mkdir()
    count = len(old) + 1
    paths = [folder / f"tiny-{no:05d}-of-{count:05d}.gguf" for no in range(1, count + 1)]
    paths[0].write_bytes(first)
    for path, source, header, raw in zip(paths[1:], old, headers, behind, strict=True):
        assert len(raw) == header.data_offset
        path.write_bytes(raw + source.read_bytes()[header.data_offset :])
    assert weights_of(paths) == weights_of(old)
    with LogitsModel(paths[0], context=16, threads=1) as new, LogitsModel(old[0], context=16, threads=1) as before:
        assert np.array_equal(new.logits([4, 5, 6], 0), before.logits([4, 5, 6], 0))


def test_a_gguf_of_version_2_stays_one(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", extra={PAD_KEY: pad_value(100)})
    put(path, b"GGUF\x02\0\0\0")
    header = read_header(path)
    raw = fit(header, with_template(header, "x"))
    assert raw is not None
    assert raw[4] == 2


def test_an_alignment_of_64_is_kept(tmp_path: Path) -> None:
    values = metadata(STOCK) | {"general.alignment": MetaValue.uint32(64), PAD_KEY: pad_value(300)}
    from strata_pack.weights.gguf.file import encode_header

    path = tmp_path / "m.gguf"
    path.write_bytes(encode_header(values, [], 64))
    header = read_header(path)
    raw = fit(header, with_template(header, "x"))
    assert raw is not None
    assert len(raw) == header.data_offset
    assert len(outgrow(header, with_template(header, "x" * 9000))) % 64 == 0


def test_a_header_that_cannot_be_written_again_to_the_byte_is_refused(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", extra={"a.flag": MetaValue(GGUFValueType.BOOL, True)})
    data = bytearray(path.read_bytes())
    at = data.index(b"a.flag") + len("a.flag") + 4
    data[at] = 7
    path.write_bytes(data)
    try:
        header = read_header(path)
    except BadInput:
        return
    assert header.raw[at] == 7, "an odd byte is either refused or carried over, never changed"


def test_holes_stay_holes_in_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    write_file(path, metadata(STOCK), {k: v for k, v in tensors().items() if k != "output.weight"})
    header = read_header(path)
    os.truncate(path, 1 << 30)
    raw = outgrow(header, with_template(header, "y" * 9000))
    copy_with_header(path, header.data_offset, raw, tmp_path / "copy.gguf")
    assert (tmp_path / "copy.gguf").stat().st_size == (1 << 30) + len(raw) - header.data_offset
    assert allocated_bytes(tmp_path / "copy.gguf") < 4 << 20


@pytest.fixture
def copy_failing_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Path]:
    """Copy a model under a longer header while the kernel's copy fails with the given number; return the copy."""

    def run(code: int) -> Path:
        path = write_tiny(tmp_path / "m.gguf")
        header = read_header(path)

        def failing(*_: object) -> int:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "copy_file_range", failing)
        raw = outgrow(header, with_template(header, "y" * 9000))
        copy_with_header(path, header.data_offset, raw, tmp_path / "n.gguf")
        return tmp_path / "n.gguf"

    return run


def test_a_failed_copy_leaves_no_file(tmp_path: Path, copy_failing_with: Callable[[int], Path]) -> None:
    with pytest.raises(EnvironmentFailure, match="no space left"):
        copy_failing_with(errno.ENOSPC)
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.gguf"]


def test_a_copy_works_where_the_kernel_does_not_copy(tmp_path: Path, copy_failing_with: Callable[[int], Path]) -> None:
    assert weights_of([copy_failing_with(errno.ENOSYS)]) == weights_of([tmp_path / "m.gguf"])


@pytest.mark.parametrize("size", [0, 1, 63, 64, 1023, 1024, 1025, 5000])
def test_a_pad_has_its_size_and_the_same_end(size: int) -> None:
    value = str(pad_value(size).value)
    assert len(value.encode()) == size
    assert str(pad_value(size + 777).value).endswith(value)


def test_a_store_of_chunks_cuts_where_the_pad_says(tmp_path: Path) -> None:
    hf_xet = pytest.importorskip("hf_xet")
    noise = np.random.default_rng(1).bytes(6000)
    sizes = []
    for text in (b"a template", b"a longer template of another kind"):
        data = noise * 20 + CHUNK_END.encode() + text + str(pad_value(40_000 - len(text)).value).encode() + noise * 20
        path = tmp_path / "file"
        path.write_bytes(data)
        with hf_xet.XetSession().new_upload_commit(endpoint=f"local://{tmp_path / 'store'}") as commit:
            commit.start_upload_file(str(path), sha256=hf_xet.COMPUTE_SHA256)
        sizes.append(sum(one.stat().st_size for one in (tmp_path / "store/xet/xorbs/xorbs").iterdir()))
    assert sizes[1] - sizes[0] < 10_000
