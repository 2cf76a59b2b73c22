"""inspect counts tensors, bits and bytes, and knows the template of a pack and of a bare GGUF."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_pack.chat.library import load_shipped
from strata_pack.errors import BadInput
from strata_pack.pack.inspect import inspect_path
from strata_pack.weights.gguf.file import GgufFile, MetaValue
from tests.pack.tiny_gguf import STOCK, tensors, write_shards, write_tiny
from tests.pack.tiny_pack import write_pack

PARAMETERS = sum(weights.size for weights in tensors().values())


def test_a_float_model_has_32_bits_a_weight(tmp_path: Path) -> None:
    found = inspect_path(write_tiny(tmp_path / "m.gguf"))
    assert (found.parameters, found.bits_per_weight) == (PARAMETERS, 32.0)


def test_types_add_up_to_the_tensors(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    with GgufFile.open(path) as gguf:
        expected = (len(gguf.tensors), sum(tensor.nbytes for tensor in gguf.tensors))
    shares = inspect_path(path).types
    assert (sum(share.tensors for share in shares), sum(share.bytes for share in shares)) == expected


def test_any_shard_stands_for_all(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, (7, 5))
    first, second = (inspect_path(shard) for shard in shards)
    assert first.parameters == second.parameters == PARAMETERS
    assert first.files == second.files == [shard.name for shard in shards]


def test_a_shipped_template_is_named(tmp_path: Path) -> None:
    shipped = load_shipped("qwen3.8-flash-next")
    found = inspect_path(write_tiny(tmp_path / "m.gguf", shipped.source))
    assert (found.template_id, found.template_status, found.template_sha256) == (shipped.id, "repaired", shipped.sha256)


@pytest.mark.parametrize(("template", "status"), [(STOCK, "unknown"), (None, "missing")])
def test_another_template_has_a_status_and_no_id(tmp_path: Path, template: str | None, status: str) -> None:
    found = inspect_path(write_tiny(tmp_path / "m.gguf", template))
    assert (found.template_id, found.template_status) == (None, status)


def test_a_pack_shows_its_manifest(tmp_path: Path) -> None:
    found = inspect_path(write_pack(tmp_path / "p"))
    assert found.kind == "pack"
    assert found.manifest is not None
    assert found.manifest["model"]["name"] == "tiny"


def test_long_values_are_cut(tmp_path: Path) -> None:
    extra = {"general.description": MetaValue.string("x" * 1000)}
    found = inspect_path(write_tiny(tmp_path / "m.gguf", extra=extra))
    assert found.metadata["general.description"] == "x" * 200 + "... (1000 characters)"
    assert found.metadata["tokenizer.ggml.tokens"][-1] == "... (259 items)"


@pytest.mark.parametrize("name", ["missing.gguf", "folder"])
def test_what_is_neither_pack_nor_gguf_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInput, match=name):
        inspect_path(tmp_path / name)
