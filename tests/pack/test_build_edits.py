"""What ``build`` changes in a model, as ``quantize`` does: layers, metadata, importances, number of files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.errors import WrongUse
from strata_pack.pack.build import build_pack
from strata_pack.pack.layout import Pack
from strata_pack.pack.rebuild import RebuildRequest, rebuild_pack
from strata_pack.pack.request import BuildRequest
from strata_pack.pack.verification import verify
from strata_pack.weights.gguf.file import GgufFile
from strata_pack.weights.quantize.edits import Edits, edit_options, edits_from_options, make_edits
from strata_pack.weights.quantize.recipes import make_recipe
from tests.pack.test_rebuild_command import write_importances
from tests.pack.tiny_gguf import write_tiny
from tests.tiny_models import write_model

OVERRIDE = "general.author=str:Ada"


@pytest.fixture
def request_(tmp_path: Path) -> BuildRequest:
    folder = write_model("qwen3", tmp_path / "Tiny")
    return BuildRequest(str(folder), tmp_path / "pack", make_recipe("Q8_0"), template="keep")


@pytest.mark.parametrize(
    "edits",
    [
        make_edits(prune="1"),
        make_edits([OVERRIDE, "general.rank=int:7", "general.share=float:0.3", "general.open=bool:true"]),
    ],
    ids=["pruned", "overridden"],
)
def test_a_pack_of_an_edited_model_verifies_and_is_derived_again(request_: BuildRequest, edits: Edits) -> None:
    request = replace(request_, edits=edits)
    pack = build_pack(request).path
    assert verify(pack).ok
    assert rebuild_pack(RebuildRequest(pack, request.source)).identical


def test_a_pruned_model_lacks_the_layer(request_: BuildRequest) -> None:
    whole = build_pack(replace(request_, out=request_.out.with_name("whole"))).manifest["model"]["tensors"]
    pruned = build_pack(replace(request_, edits=make_edits(prune="0"))).manifest["model"]["tensors"]
    assert len(pruned) < len(whole)


def test_an_overridden_key_stands_in_the_header_before_the_template(request_: BuildRequest) -> None:
    pack = build_pack(replace(request_, edits=make_edits([OVERRIDE]))).path
    with GgufFile.open(Pack.open(pack).model_files[0]) as file:
        assert file.metadata["general.author"].value == "Ada"
        keys = list(file.metadata)
    assert (
        keys.index("general.author") == keys.index("strata_pack.edge") - 1 == keys.index("tokenizer.chat_template") - 2
    )


def test_an_overridden_template_is_refused(request_: BuildRequest) -> None:
    edits = make_edits(["tokenizer.chat_template=str:x"])
    with pytest.raises(WrongUse, match="--template"):
        build_pack(replace(request_, edits=edits))


def test_a_pack_split_by_size_verifies_and_is_derived_again(request_: BuildRequest) -> None:
    request = replace(request_, split_bytes=20_000)
    pack = build_pack(request).path
    assert len(Pack.open(pack).model_files) > 2
    assert verify(pack).ok
    assert rebuild_pack(RebuildRequest(pack, request.source)).identical


def test_a_pack_of_other_edits_is_another_pack(request_: BuildRequest) -> None:
    build_pack(request_)
    with pytest.raises(WrongUse, match="holds a pack already"):
        build_pack(replace(request_, edits=make_edits([OVERRIDE])))


def test_excluded_weights_are_quantized_without_importances(tmp_path: Path) -> None:
    weights = write_importances(tmp_path / "imatrix.gguf")
    source = str(write_tiny(tmp_path / "Tiny.gguf"))
    request = BuildRequest(source, tmp_path / "all", make_recipe("Q4_0"), template="keep", imatrix=weights)
    every = build_pack(request)
    without = build_pack(replace(request, out=tmp_path / "some", edits=make_edits(exclude=["attn_k"])))
    paths = [Pack.open(one.path).model_files[0] for one in (every, without)]
    with GgufFile.open(paths[0]) as first, GgufFile.open(paths[1]) as second:
        differing = [
            tensor.name
            for tensor, other in zip(first.tensors, second.tensors, strict=True)
            if bytes(first.tensor_bytes(tensor)) != bytes(second.tensor_bytes(other))
        ]
    assert differing == ["blk.0.attn_k.weight"]
    assert verify(without.path).ok
    assert rebuild_pack(RebuildRequest(without.path, source, weights)).identical


def test_importances_that_are_all_excluded_are_wrong_use(tmp_path: Path) -> None:
    request = BuildRequest(
        str(write_tiny(tmp_path / "Tiny.gguf")),
        tmp_path / "pack",
        make_recipe("Q4_0"),
        template="keep",
        imatrix=write_importances(tmp_path / "imatrix.gguf"),
        edits=make_edits(include=["nothing"]),
    )
    with pytest.raises(WrongUse, match="leaves no weights"):
        build_pack(request)


def test_edits_survive_the_manifest() -> None:
    texts = ["a=int:7", "b=float:0.1", "c=bool:false", "d=str:x=y:z"]
    edits = make_edits(texts, "3,1", exclude=["ffn"])
    assert edit_options(edits)["override_kv"] == texts
    assert edits_from_options(edit_options(edits)) == edits


def test_the_command_takes_the_flags_of_quantize(request_: BuildRequest) -> None:
    flags = ["--prune-layers", "0", "--override-kv", OVERRIDE, "--split-max-size", "1M"]
    options = ["--quant", "Q8_0", "--template", "keep", "--out", str(request_.out)]
    run = CliRunner().invoke(app, ["build", request_.source, *options, *flags])
    assert run.exit_code == 0, run.output
    assert verify(request_.out).ok
