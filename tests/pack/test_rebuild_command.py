"""``rebuild``: a pack derived again is identical, and what was planted is named by its place and its reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.errors import BadInput, WrongUse
from strata_pack.llama.ggml import Bytes, Floats, Ggml
from strata_pack.llama.quantizer import Quantizer
from strata_pack.pack.build import build_pack
from strata_pack.pack.manifest import read_manifest
from strata_pack.pack.paths import MANIFEST, TEMPLATE
from strata_pack.pack.rebuild import RebuildRequest, RebuildResult, rebuild_pack, recorded_recipe
from strata_pack.pack.request import BuildRequest
from strata_pack.weights.gguf.file import GgufFile, MetaValue, TensorInfo, align, encode_header
from strata_pack.weights.quantize.recipes import make_recipe
from tests.pack.tiny_gguf import tensors, write_tiny

MODEL = "model/Tiny-Q4_0+.gguf"


def write_importances(path: Path) -> Path:
    parts, infos, offset = [], [], 0
    for name, weights in tensors().items():
        if weights.ndim < 2 or "blk" not in name:
            continue
        sums = np.linspace(0.5, 2.0, weights.shape[1], dtype=np.float32)
        for suffix, values in (("in_sum2", sums), ("counts", np.ones(1, np.float32))):
            data = values.tobytes().ljust(align(values.nbytes, 32), b"\0")
            infos.append(TensorInfo.make(f"{name}.{suffix}", (values.size, 1), Q.F32, offset))
            parts.append(data)
            offset += len(data)
    keys = {
        "general.type": MetaValue.string("imatrix"),
        "imatrix.chunk_count": MetaValue.uint32(1),
        "imatrix.chunk_size": MetaValue.uint32(512),
    }
    path.write_bytes(encode_header(keys, infos) + b"".join(parts))
    return path


@pytest.fixture
def request_(tmp_path: Path) -> BuildRequest:
    return BuildRequest(
        str(write_tiny(tmp_path / "Tiny.F32.gguf")),
        tmp_path / "pack",
        make_recipe("Q4_0", tensor_types=["ffn_down=Q5_0"]),
        template="keep",
        imatrix=write_importances(tmp_path / "imatrix.gguf"),
    )


@pytest.fixture
def asked(request_: BuildRequest) -> RebuildRequest:
    """A pack that was built, and what its manifest cannot hold."""
    build_pack(request_)
    return RebuildRequest(request_.out, request_.source, request_.imatrix)


def change_manifest(pack: Path, change: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads((pack / MANIFEST).read_bytes())
    change(value)
    (pack / MANIFEST).write_text(json.dumps(value))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def place(result: RebuildResult) -> tuple[str, str | None]:
    assert result.difference is not None
    return result.difference.file, result.difference.tensor


def test_an_untouched_pack_is_identical(asked: RebuildRequest) -> None:
    result = rebuild_pack(asked)
    assert (result.identical, result.causes, result.difference) == (True, (), None)


def test_the_new_pack_is_kept_where_it_was_asked_for(asked: RebuildRequest, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert rebuild_pack(RebuildRequest(asked.pack, asked.source, asked.imatrix, kept)).kept == kept
    assert read_manifest(kept / MANIFEST)["files"] == read_manifest(asked.pack / MANIFEST)["files"]


def test_a_planted_weight_is_named_by_tensor_and_block(asked: RebuildRequest) -> None:
    with GgufFile.open(asked.pack / MODEL) as file:
        tensor = next(tensor for tensor in file.tensors if tensor.name == "blk.0.attn_k.weight")
        at = file.data_offset + tensor.offset + 5 * 18 + 3
    flip(asked.pack / MODEL, at)
    result = rebuild_pack(asked)
    assert place(result) == (MODEL, "blk.0.attn_k.weight")
    assert result.difference is not None
    assert result.difference.block == 5
    assert [cause for cause in result.causes if "changed after the build" in cause]
    assert len(result.causes) == 1


def test_another_byte_in_the_imatrix_is_named(asked: RebuildRequest) -> None:
    assert asked.imatrix is not None
    with GgufFile.open(asked.imatrix) as file:
        tensor = next(tensor for tensor in file.tensors if tensor.name == "blk.0.attn_q.weight.in_sum2")
        at = file.data_offset + tensor.offset + 4 * 7 + 3
    data = bytearray(asked.imatrix.read_bytes())
    data[at] ^= 2
    asked.imatrix.write_bytes(data)
    result = rebuild_pack(asked)
    assert place(result) == (MODEL, "blk.0.attn_q.weight")
    assert [cause.partition(":")[0] for cause in result.causes] == ["other imatrix"]


def test_another_source_is_named(asked: RebuildRequest) -> None:
    source = Path(str(asked.source))
    with GgufFile.open(source) as file:
        tensor = next(tensor for tensor in file.tensors if tensor.name == "blk.0.ffn_up.weight")
        at = file.data_offset + tensor.offset + 3
    flip(source, at)
    result = rebuild_pack(asked)
    assert place(result) == (MODEL, "blk.0.ffn_up.weight")
    assert [cause.partition(":")[0] for cause in result.causes] == ["other source"]


def test_another_recipe_is_named(asked: RebuildRequest) -> None:
    change_manifest(asked.pack, lambda value: value["recipe"]["options"]["rules"][0].update(type="Q8_0"))
    result = rebuild_pack(asked)
    assert place(result) == (MODEL, "blk.0.ffn_down.weight")
    assert result.difference is not None
    assert result.difference.problem == "is Q5_0, Q8_0 in the rebuilt pack"
    assert [cause.partition(":")[0] for cause in result.causes] == ["other recipe"]


def test_another_template_is_named(asked: RebuildRequest, tmp_path: Path) -> None:
    other = write_tiny(tmp_path / "Other.F32.gguf", template="{{ messages[0].content }}")
    result = rebuild_pack(RebuildRequest(asked.pack, str(other), asked.imatrix))
    assert place(result) == (MODEL, None)
    assert result.difference is not None
    assert "tokenizer.chat_template" in result.difference.problem
    assert "other template" in [cause.partition(":")[0] for cause in result.causes]


def test_a_template_changed_in_the_pack_is_named(asked: RebuildRequest) -> None:
    with (asked.pack / TEMPLATE).open("a", encoding="utf-8") as file:
        file.write("x")
    result = rebuild_pack(asked)
    assert place(result) == (TEMPLATE, None)
    assert [cause for cause in result.causes if "changed after the build" in cause]


def test_another_library_is_named(asked: RebuildRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Quantizer.quantize_chunk

    def other(self: Quantizer, type: Q, source: Floats, out: Bytes, *rest: Any, **named: Any) -> int | None:
        row = real(self, type, source, out, *rest, **named)
        if type is Q.Q5_0:
            out[2] ^= 1
        return row

    monkeypatch.setattr(Quantizer, "quantize_chunk", other)
    monkeypatch.setattr(Ggml, "library_sha256", property(lambda _self: "0" * 64))
    monkeypatch.setattr(Ggml, "probe_hash", lambda *_: "1" * 64)
    result = rebuild_pack(asked)
    assert place(result) == (MODEL, "blk.0.ffn_down.weight")
    assert [cause.partition(":")[0] for cause in result.causes] == ["other quantizer"]
    assert "does not write the same bytes" in result.causes[0]


def test_a_local_source_has_to_be_named(asked: RebuildRequest) -> None:
    with pytest.raises(WrongUse, match="--source"):
        rebuild_pack(RebuildRequest(asked.pack, imatrix=asked.imatrix))


def test_an_imatrix_has_to_be_named(asked: RebuildRequest) -> None:
    with pytest.raises(WrongUse, match="--imatrix"):
        rebuild_pack(RebuildRequest(asked.pack, asked.source))


def test_a_folder_that_is_no_pack_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not a pack"):
        rebuild_pack(RebuildRequest(tmp_path))


def test_a_recipe_comes_back_out_of_its_manifest(request_: BuildRequest) -> None:
    build_pack(request_)
    again = recorded_recipe(read_manifest(request_.out / MANIFEST)["recipe"])
    assert (again.base, again.rules[0].type, again.label) == (request_.recipe.base, Q.Q5_0, request_.recipe.label)


def test_the_command_ends_with_0_for_an_identical_pack_and_1_for_another(asked: RebuildRequest) -> None:
    words = ["rebuild", str(asked.pack), "--source", str(asked.source), "--imatrix", str(asked.imatrix)]
    same = CliRunner().invoke(app, words)
    assert (same.exit_code, "identical" in same.output) == (0, True)
    change_manifest(asked.pack, lambda value: value["recipe"]["options"]["rules"][0].update(type="Q8_0"))
    other = CliRunner().invoke(app, [*words, "--json"])
    assert other.exit_code == 1
    assert json.loads(other.stdout)["difference"]["tensor"] == "blk.0.ffn_down.weight"
