"""The attestations of a built pack: what they say, that they are always the same, and that verify checks them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.errors import BadInput, WrongUse
from strata_pack.files import sha256_file
from strata_pack.pack.attestations.files import differences
from strata_pack.pack.attestations.sbom import SPDX
from strata_pack.pack.build import build_pack
from strata_pack.pack.manifest import read_manifest
from strata_pack.pack.rebuild import RebuildRequest, rebuild_pack
from strata_pack.pack.request import BuildRequest
from strata_pack.pack.template.install import install_template, rollback_template
from strata_pack.pack.verification import verify
from strata_pack.weights.gguf.file import MetaValue
from strata_pack.weights.quantize.recipes import make_recipe
from tests.pack.test_rebuild_command import write_importances
from tests.pack.tiny_gguf import STOCK, write_tiny
from tests.pack.tiny_pack import CASES

ORIGIN = {
    "general.license": MetaValue.string("Apache-2.0"),
    "general.base_model.count": MetaValue.uint32(1),
    "general.base_model.0.repo_url": MetaValue.string("https://host/org/Base-1B"),
}


@pytest.fixture
def request_(tmp_path: Path) -> BuildRequest:
    (tmp_path / "golden.json").write_text(json.dumps(CASES))
    return BuildRequest(
        str(write_tiny(tmp_path / "Tiny.F32.gguf", STOCK, ORIGIN)),
        tmp_path / "pack",
        make_recipe("Q8_0"),
        template="keep",
        golden=tmp_path / "golden.json",
        imatrix=write_importances(tmp_path / "imatrix.gguf"),
    )


@pytest.fixture
def pack(request_: BuildRequest) -> Path:
    return build_pack(request_).path


def attestation(pack: Path, name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((pack / name).read_bytes())
    return value


def hashes_of(pack: Path) -> dict[str, str]:
    """Return the SHA-256 of everything the manifest lists, and of the manifest."""
    listed = [entry["path"] for entry in read_manifest(pack / "manifest.json")["files"]]
    return {name: sha256_file(pack / name) for name in [*listed, "manifest.json"]}


def test_the_same_build_writes_the_same_papers(pack: Path, request_: BuildRequest, tmp_path: Path) -> None:
    again = build_pack(replace(request_, out=tmp_path / "again")).path
    for name in ("provenance.json", "sbom.cdx.json"):
        assert (pack / name).read_bytes() == (again / name).read_bytes()


def test_the_statement_names_every_file_of_the_pack_and_of_its_source(pack: Path, request_: BuildRequest) -> None:
    said = attestation(pack, "provenance.json")
    subjects = {one["name"]: one["digest"]["sha256"] for one in said["subject"]}
    manifest = read_manifest(pack / "manifest.json")
    assert subjects == {
        name: sha256_file(pack / name) for name in [*(e["path"] for e in manifest["files"]), "manifest.json"]
    }
    found = {
        one["name"]: one["digest"]["sha256"] for one in said["predicate"]["buildDefinition"]["resolvedDependencies"]
    }
    assert found == {
        "Tiny.F32.gguf": sha256_file(Path(request_.source)),
        "imatrix": manifest["recipe"]["imatrix_sha256"],
        "chat template": manifest["template"]["sha256"],
    }


def test_the_statement_says_with_what_it_was_built(pack: Path) -> None:
    definition = attestation(pack, "provenance.json")["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["recipe"]["preset"] == "Q8_0"
    assert definition["internalParameters"]["quantizer"]["kernels"]["types"]
    assert definition["internalParameters"]["quantizer"]["sha256"]


def test_a_hub_source_is_named_with_its_commit(pack: Path) -> None:
    from strata_pack.pack.attestations.provenance import provenance

    manifest = read_manifest(pack / "manifest.json")
    manifest["source"] |= {"kind": "hub", "repo": "org/Base-1B", "commit": "a" * 40}
    first, second, *_ = provenance(manifest, "0" * 64)["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert first == {"uri": f"pkg:huggingface/org/Base-1B@{'a' * 40}", "digest": {"gitCommit": "a" * 40}}
    assert second["uri"] == f"pkg:huggingface/org/Base-1B@{'a' * 40}#Tiny.F32.gguf"


def test_the_bill_of_materials_is_valid_cyclonedx(pack: Path) -> None:
    pytest.importorskip("cyclonedx")
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str((pack / "sbom.cdx.json").read_text()) is None


def test_every_licence_id_is_one_of_spdx() -> None:
    pytest.importorskip("cyclonedx")
    from cyclonedx.spdx import is_supported_id

    assert [name for name in SPDX.values() if not is_supported_id(name)] == []


def test_the_bill_of_materials_has_licence_base_model_hashes_and_template(pack: Path) -> None:
    said = attestation(pack, "sbom.cdx.json")
    component = said["metadata"]["component"]
    manifest = read_manifest(pack / "manifest.json")
    assert component["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    assert [one["purl"] for one in component["pedigree"]["ancestors"]] == ["pkg:huggingface/org/Base-1B"]
    hashes = {
        one["name"]: one["hashes"][0]["content"] for one in said["components"] if one["bom-ref"].startswith("file:")
    }
    assert hashes == {
        name: sha256_file(pack / name) for name in [*(e["path"] for e in manifest["files"]), "manifest.json"]
    }
    properties = {one["name"]: one["value"] for one in component["properties"]}
    assert properties["strata-pack:template:sha256"] == manifest["template"]["sha256"]


def edit(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def carry_out(pack: Path) -> None:
        value = attestation(pack, name)
        change(value)
        (pack / name).write_text(json.dumps(value))

    return carry_out


def definition(said: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = said["predicate"]["buildDefinition"]
    return found


LIES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a file's hash": (
        "subject/manifest.json/digest/sha256",
        edit("provenance.json", lambda said: said["subject"][-1]["digest"].update(sha256="0" * 64)),
    ),
    "a file more": (
        "subject/x",
        edit("provenance.json", lambda said: said["subject"].append({"name": "x", "digest": {"sha256": "0" * 64}})),
    ),
    "a file less": ("lacks subject/", edit("provenance.json", lambda said: said["subject"].pop(0))),
    "a source's hash": (
        "resolvedDependencies",
        edit("provenance.json", lambda said: definition(said)["resolvedDependencies"][0]["digest"].update(sha256="0")),
    ),
    "a recipe": (
        "recipe/preset",
        edit("provenance.json", lambda said: definition(said)["externalParameters"]["recipe"].update(preset="Q4_0")),
    ),
    "a library": (
        "quantizer/version",
        edit("provenance.json", lambda said: definition(said)["internalParameters"]["quantizer"].update(version="1")),
    ),
    "a statement of another kind": (
        "is not SLSA provenance",
        edit("provenance.json", lambda said: said.update(predicateType="https://x/v1")),
    ),
    "a build of another kind": (
        "a build of another kind",
        edit("provenance.json", lambda said: definition(said).update(buildType="https://x/v1")),
    ),
    "no JSON": ("is not JSON", lambda pack: (pack / "provenance.json").write_text("{") and None),
    "a licence": (
        "licenses",
        edit("sbom.cdx.json", lambda said: said["metadata"]["component"]["licenses"][0]["license"].update(id="MIT")),
    ),
    "a component's hash": (
        "components/file:",
        edit("sbom.cdx.json", lambda said: said["components"][0]["hashes"][0].update(content="0" * 64)),
    ),
    "a component less": ("lacks components/file:", edit("sbom.cdx.json", lambda said: said["components"].pop(0))),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_paper_that_says_something_else_is_found(pack: Path, lie: str) -> None:
    said, change = LIES[lie]
    change(pack)
    (failed,) = [check for check in verify(pack).checks if check.status == "failed"]
    assert said in failed.detail


def test_what_somebody_adds_to_the_bill_of_materials_is_no_lie(pack: Path) -> None:
    edit("sbom.cdx.json", lambda said: said["metadata"].update(supplier={"name": "me"}))(pack)
    edit("sbom.cdx.json", lambda said: said["components"].append({"type": "file", "bom-ref": "x", "name": "x"}))(pack)
    assert verify(pack).ok


def test_a_pack_without_papers_passes(pack: Path) -> None:
    for name in ("provenance.json", "sbom.cdx.json"):
        (pack / name).unlink()
    assert verify(pack).ok


def test_a_template_installed_later_renews_the_papers(pack: Path, tmp_path: Path) -> None:
    (tmp_path / "new.jinja").write_text(STOCK + "{# newer #}")
    before = {name: (pack / name).read_bytes() for name in ("provenance.json", "sbom.cdx.json")}
    (pack / "model.sig").write_text("{}")
    result = install_template(pack, str(tmp_path / "new.jinja"), force=True)
    assert verify(pack).ok
    assert not (pack / "model.sig").exists()
    assert any("sign it again" in note for note in result.notes)
    rollback_template(pack)
    assert {name: (pack / name).read_bytes() for name in before} == before


def test_a_statement_alone_is_enough_to_rebuild(pack: Path, request_: BuildRequest, tmp_path: Path) -> None:
    alone = tmp_path / "alone.json"
    alone.write_bytes((pack / "provenance.json").read_bytes())
    request = RebuildRequest(alone, request_.source, request_.imatrix, golden=request_.golden)
    assert rebuild_pack(request).identical
    write_tiny(Path(request_.source), STOCK, {**ORIGIN, "llama.context_length": MetaValue.uint32(64)})
    found = rebuild_pack(request)
    assert found.difference is not None
    assert "in the statement" in found.difference.problem
    assert any("other source" in cause for cause in found.causes)


def test_the_statement_in_a_pack_finds_the_files_there(pack: Path, request_: BuildRequest) -> None:
    assert rebuild_pack(RebuildRequest(pack / "provenance.json", request_.source, request_.imatrix)).identical


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [("source", "name it with --source"), ("imatrix", "with --imatrix"), ("golden", "with --golden")],
)
def test_what_a_statement_does_not_hold_must_be_named(
    pack: Path, request_: BuildRequest, tmp_path: Path, missing: str, sentence: str
) -> None:
    alone = (pack / "provenance.json").rename(tmp_path / "alone.json")
    request = RebuildRequest(alone, request_.source, request_.imatrix, golden=request_.golden)
    with pytest.raises(WrongUse, match=sentence):
        rebuild_pack(replace(request, **{missing: None}))


@pytest.mark.parametrize("text", ["{}", "[]", '{"predicateType": "https://slsa.dev/provenance/v1"}'])
def test_what_is_no_statement_cannot_be_rebuilt(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(BadInput):
        rebuild_pack(RebuildRequest(tmp_path / "x.json"))


def test_a_statement_with_a_hole_is_one_sentence(pack: Path) -> None:
    edit("provenance.json", lambda said: definition(said).pop("externalParameters"))(pack)
    result = CliRunner().invoke(app, ["rebuild", str(pack / "provenance.json")])
    assert (result.exit_code, "lacks what a build needs" in result.output) == (2, True)


def test_differences_are_named_by_their_place() -> None:
    said = {"a": [{"name": "x", "v": 1}, {"name": "y", "v": True}], "b": 1, "d": [1, 2]}
    wanted = {"a": [{"name": "y", "v": 1}, {"name": "x", "v": 1}], "c": 1, "d": [1]}
    assert list(differences(said, wanted)) == [
        "says 'True' for a/y/v and the manifest '1'",
        "lacks c",
        "has 2 items in d and not 1",
        "has b, which is not in the manifest",
    ]
