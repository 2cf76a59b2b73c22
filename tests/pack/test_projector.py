"""Packs of models that see: the projector converted or copied, listed with its role, held against its model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.errors import BadInput, WrongUse
from strata_pack.files import sha256_file
from strata_pack.pack.build import build_pack
from strata_pack.pack.inspect import inspect_path
from strata_pack.pack.layout import Pack
from strata_pack.pack.loadable import header_problems
from strata_pack.pack.manifest import check_manifest
from strata_pack.pack.rebuild import RebuildRequest, rebuild_pack
from strata_pack.pack.request import BuildRequest
from strata_pack.pack.verification import verify
from strata_pack.weights.convert.convert import SafetensorsSource, convert_checkpoint
from strata_pack.weights.gguf.file import GgufFile, TensorInfo
from strata_pack.weights.quantize.recipes import make_recipe
from tests.tiny_models import MODELS, weights, write_model, write_weights


def request(source: Path, out: Path, **options: Any) -> BuildRequest:
    return BuildRequest(source=str(source), out=out, recipe=make_recipe("Q8_0"), template="keep", **options)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("seeing")
    build_pack(request(write_model("qwen35-vision", root / "Tiny-VL"), root / "pack"))
    return root / "pack"


def convert(name: str, folder: Path, out: Path, part: Any, outtype: str = "bf16") -> Path:
    folder = folder if folder.exists() else write_model(name, folder)
    with SafetensorsSource.open(folder, outtype, part=part) as source:
        convert_checkpoint(source, out)
    return out


def test_checkpoint_with_a_tower_gives_a_projector_with_its_role(pack: Path) -> None:
    manifest = Pack.open(pack).manifest
    entry = next(entry for entry in manifest["files"] if entry.get("role") == "projector")
    assert entry["path"] == "model/mmproj-Tiny-VL-BF16.gguf" == manifest["projector"]["file"]
    assert manifest["projector"]["type"] == "BF16"
    with GgufFile.open(pack / entry["path"]) as file:
        assert file.text("general.type") == "mmproj"


def test_projector_is_the_one_that_convert_writes(pack: Path, tmp_path: Path) -> None:
    alone = convert("qwen35-vision", pack.parent / "Tiny-VL", tmp_path / "x.gguf", "projector")
    assert alone.read_bytes() == (pack / "model/mmproj-Tiny-VL-BF16.gguf").read_bytes()


def test_pack_with_a_projector_verifies(pack: Path) -> None:
    report = verify(pack)
    assert report.ok, [check for check in report.checks if check.status == "failed"]


def test_inspect_shows_the_projector(pack: Path) -> None:
    found = inspect_path(pack).projector
    assert found is not None
    assert (found["type"], found["size"] > 0) == ("BF16", True)
    assert "mmproj-Tiny-VL-BF16.gguf, BF16," in CliRunner().invoke(app, ["inspect", str(pack)]).stdout.replace("\n", "")


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"projector": False}, []),
        ({"projector_type": "q8_0", "name": "Eyes"}, ["mmproj-Eyes-Q8_0.gguf"]),
    ],
)
def test_projector_is_left_out_or_of_another_type(
    pack: Path, tmp_path: Path, options: dict[str, Any], names: list[str]
) -> None:
    build_pack(request(pack.parent / "Tiny-VL", tmp_path / "pack", **options))
    assert sorted(path.name for path in (tmp_path / "pack/model").glob("mmproj*")) == names
    assert verify(tmp_path / "pack").ok


def test_draft_head_is_left_out_of_the_model(pack: Path, tmp_path: Path) -> None:
    build_pack(request(pack.parent / "Tiny-VL", tmp_path / "pack", mtp=False, projector=False))
    with GgufFile.open(Pack.open(tmp_path / "pack").model_files[0]) as file:
        assert "qwen35.nextn_predict_layers" not in file.metadata
    with GgufFile.open(Pack.open(pack).model_files[0]) as file:
        assert file.metadata["qwen35.nextn_predict_layers"].value == 1


def test_projector_next_to_a_gguf_model_goes_into_its_pack(pack: Path, tmp_path: Path) -> None:
    checkpoint = pack.parent / "Tiny-VL"
    (tmp_path / "gguf").mkdir()
    convert("", checkpoint, tmp_path / "gguf/Tiny-VL-BF16.gguf", "model")
    eyes = convert("", checkpoint, tmp_path / "gguf/mmproj-Tiny-VL-F16.gguf", "projector", "f16")
    build_pack(request(tmp_path / "gguf", tmp_path / "pack"))
    assert (tmp_path / "pack/model/mmproj-Tiny-VL-F16.gguf").read_bytes() == eyes.read_bytes()
    assert verify(tmp_path / "pack").ok


@pytest.mark.parametrize(("name", "sentence"), [("flash", "vectors of 128 .* takes 256"), ("qwen3vl", "2 layers")])
def test_projector_of_another_model_is_refused(pack: Path, tmp_path: Path, name: str, sentence: str) -> None:
    model = convert("", pack.parent / "Tiny-VL", tmp_path / "model.gguf", "model")
    eyes = convert(name, tmp_path / name, tmp_path / "eyes.gguf", "projector")
    with pytest.raises(BadInput, match=f"is the projector of another model: .*{sentence}"):
        build_pack(request(model, tmp_path / "pack", projector_file=eyes))
    assert not (tmp_path / "pack").exists()


def test_model_is_no_projector(pack: Path, tmp_path: Path) -> None:
    model = convert("", pack.parent / "Tiny-VL", tmp_path / "model.gguf", "model")
    with pytest.raises(BadInput, match=r"is not a projector .general.type is 'model'"):
        build_pack(request(model, tmp_path / "pack", projector_file=model))


def test_projector_next_to_a_checkpoint_is_refused(pack: Path, tmp_path: Path) -> None:
    eyes = pack / "model/mmproj-Tiny-VL-BF16.gguf"
    with pytest.raises(WrongUse, match="the checkpoint's own tower is converted"):
        build_pack(request(pack.parent / "Tiny-VL", tmp_path / "pack", projector_file=eyes))


def test_projector_that_is_not_there_is_named(pack: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"x\.gguf: no such file"):
        build_pack(request(pack.parent / "Tiny-VL", tmp_path / "pack", projector_file=tmp_path / "x.gguf"))


def test_projector_is_no_model(pack: Path, tmp_path: Path) -> None:
    eyes = pack / "model/mmproj-Tiny-VL-BF16.gguf"
    with pytest.raises(BadInput, match="is a projector, not a model"):
        build_pack(request(eyes, tmp_path / "pack"))


def test_class_with_a_tower_whose_weights_lack_it_gives_no_projector(tmp_path: Path) -> None:
    folder = write_model("qwen35-vision", tmp_path / "Tiny-VL")
    kept = {name: values for name, values in weights(MODELS["qwen35-vision"]) if "visual." not in name}
    write_weights(folder, kept, "BF16", 1)
    build_pack(request(folder, tmp_path / "pack"))
    assert "projector" not in Pack.open(tmp_path / "pack").manifest


def test_no_projector_and_a_projector_are_wrong_use(pack: Path, tmp_path: Path) -> None:
    arguments = ["build", str(pack.parent / "Tiny-VL"), "--out", str(tmp_path / "p"), "--no-mmproj"]
    assert CliRunner().invoke(app, [*arguments, "--mmproj-type", "f16"]).exit_code == 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda m: m["projector"].update(parameters=7), "weights and the manifest says 7"),
        (lambda m: m["projector"].update(type="F16"), "is BF16 and the manifest says F16"),
        (lambda m: m.pop("projector"), "has the role of a projector and the manifest names none"),
    ],
)
def test_verify_names_a_projector_that_the_manifest_describes_wrongly(
    pack: Path, tmp_path: Path, change: Any, sentence: str
) -> None:
    shutil.copytree(pack, tmp_path / "pack")
    manifest = json.loads((tmp_path / "pack/manifest.json").read_bytes())
    change(manifest)
    check_manifest(manifest, tmp_path)
    (tmp_path / "pack/manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    report = verify(tmp_path / "pack")
    assert sentence in next(check for check in report.checks if check.id == "projector").detail


@pytest.mark.parametrize("name", ["flash", "flash-text", "qwen3next", "qwen35-merged", "qwen3vlmoe", "smollm3"])
def test_converted_model_has_all_that_a_loader_needs(tmp_path: Path, name: str) -> None:
    with SafetensorsSource.open(write_model(name, tmp_path / name), "bf16") as source:
        tensors = [TensorInfo(tensor.name, tensor.shape, tensor.type, 0, 0) for tensor in source.tensors]
        assert header_problems(source.metadata, tensors) == []


def test_flash_next_builds_into_a_pack_that_verifies(tmp_path: Path) -> None:
    build_pack(request(write_model("flash", tmp_path / "Flash"), tmp_path / "pack"))
    assert verify(tmp_path / "pack").ok


@pytest.fixture
def with_a_file(pack: Path, tmp_path: Path) -> RebuildRequest:
    """A pack that was built with a projector that somebody named, and what its manifest cannot hold."""
    model = convert("", pack.parent / "Tiny-VL", tmp_path / "model.gguf", "model")
    eyes = convert("", pack.parent / "Tiny-VL", tmp_path / "eyes.gguf", "projector", "f16")
    build_pack(request(model, tmp_path / "named", projector_file=eyes))
    return RebuildRequest(tmp_path / "named", str(model), projector=eyes)


def test_pack_with_a_projector_file_is_derived_again_from_it(with_a_file: RebuildRequest) -> None:
    assert rebuild_pack(with_a_file).identical


def test_rebuild_names_the_hash_of_the_projector_file_it_needs(with_a_file: RebuildRequest) -> None:
    assert with_a_file.projector is not None
    with pytest.raises(WrongUse, match=f"{sha256_file(with_a_file.projector)} with --mmproj"):
        rebuild_pack(replace(with_a_file, projector=None))


def test_another_projector_file_is_named_as_the_reason(pack: Path, with_a_file: RebuildRequest, tmp_path: Path) -> None:
    other = convert("", pack.parent / "Tiny-VL", tmp_path / "other.gguf", "projector", "q8_0")
    result = rebuild_pack(replace(with_a_file, projector=other))
    assert result.difference is not None
    assert "mmproj" in result.difference.file
    assert [cause.partition(":")[0] for cause in result.causes] == ["other projector"]
