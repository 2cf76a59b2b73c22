"""verify finds every way in which a pack can differ from its manifest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strata_pack.errors import BadInput
from strata_pack.pack.build import build_pack
from strata_pack.pack.paths import MANIFEST, TEMPLATE
from strata_pack.pack.request import BuildRequest
from strata_pack.pack.verification import verify
from strata_pack.weights.quantize.recipes import make_recipe
from tests.pack.tiny_gguf import STOCK, write_tiny
from tests.pack.tiny_pack import CASES


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    (tmp_path / "golden.json").write_text(json.dumps(CASES))
    source = write_tiny(tmp_path / "tiny.gguf", STOCK)
    request = BuildRequest(
        str(source), tmp_path / "pack", make_recipe("Q8_0"), template="keep", golden=tmp_path / "golden.json"
    )
    return build_pack(request).path


def edit(**changes: Any) -> Callable[[Path], None]:
    """Return a function that changes the manifest; dots in a key lead downward (written as two underscores)."""

    def change(pack: Path) -> None:
        manifest = json.loads((pack / MANIFEST).read_text())
        for key, value in changes.items():
            *path, last = key.split("__")
            place = manifest
            for part in path:
                place = place[part]
            place[last] = value
        (pack / MANIFEST).write_text(json.dumps(manifest))

    return change


def flip_last_byte(pack: Path) -> None:
    path = next((pack / "model").glob("*.gguf"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def link_manifest(pack: Path) -> None:
    outside = (pack / MANIFEST).rename(pack.with_name("elsewhere.json"))
    (pack / MANIFEST).symlink_to(outside)


def truncate(pack: Path) -> None:
    path = next((pack / "model").glob("*.gguf"))
    path.write_bytes(path.read_bytes()[:-40])


def longer(pack: Path) -> None:
    with next((pack / "model").glob("*.gguf")).open("ab") as file:
        file.write(b"\0" * 64)


def link_out(pack: Path) -> None:
    (pack / TEMPLATE).unlink()
    (pack / TEMPLATE).symlink_to("/etc/hostname")


ATTESTATIONS = {"provenance", "sbom"}
"""Checks that an edited manifest fails too: the attestations know it by its hash."""

DAMAGES: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "other template file": (lambda p: (p / TEMPLATE).write_text("{{ 1 }}"), {"sizes", "hashes", "template"}),
    "missing template file": (lambda p: (p / TEMPLATE).unlink(), {"files", "template"}),
    "template that does not compile": (
        lambda p: (p / TEMPLATE).write_text("{% if %}"),
        {"sizes", "hashes", "template"},
    ),
    "link in place of a file": (link_out, {"files", "sizes", "hashes", "template"}),
    "link in place of the manifest": (link_manifest, {"files"}),
    "tokenizer's configuration without an end": (
        lambda p: (p / "tokenizer/tokenizer_config.json").write_text('{"a":' + "[" * 100_000),
        {"files", "template"},
    ),
    "path that no file can have": (
        edit(model__files=["model/\ud800"]),
        {"files", "gguf", "tensors", "facts", "loads", "template", "tokenizer"},
    ),
    "weight changed": (flip_last_byte, {"hashes"}),
    "model truncated": (
        truncate,
        {"sizes", "hashes", "gguf", "tensors", "facts", "loads", "template", "tokenizer"},
    ),
    "model with a tail": (longer, {"sizes", "hashes", "gguf"}),
    "file not listed": (lambda p: (p / "model/notes.txt").write_text("!"), {"files"}),
    "second model": (lambda p: (p / "model/other.gguf").write_text("!"), {"files", "gguf"}),
    "golden cases changed": (lambda p: (p / "golden/chat_golden.json").write_text("[]"), {"sizes", "hashes", "golden"}),
    "other template in the manifest": (edit(template__sha256="0" * 64), {"template"}),
    "other number of weights": (edit(model__parameters=1), {"tensors"}),
    "other tensors": (edit(model__tensors={"x": "F32"}), {"tensors", "facts"}),
    "manifest without a field": (edit(model={}), {"manifest"}),
    "path that climbs out": (edit(model__files=["../x.gguf"]), {"manifest"}),
    "manifest of another version": (edit(version=2), {"manifest"}),
    "manifest that is not JSON": (lambda p: (p / MANIFEST).write_text("{"), {"manifest"}),
}


def test_a_fresh_pack_passes_every_check(pack: Path) -> None:
    report = verify(pack)
    assert {check.status for check in report.checks} == {"passed"}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_by_the_checks_it_concerns(pack: Path, damage: str) -> None:
    change, concerned = DAMAGES[damage]
    before = (pack / MANIFEST).read_bytes()
    change(pack)
    report = verify(pack)
    failed = {check.id for check in report.checks if check.status == "failed"}
    edited = "manifest" not in concerned and (pack / MANIFEST).read_bytes() != before
    assert failed == concerned | (ATTESTATIONS if edited else set())


def test_reports_may_change_without_harm(pack: Path) -> None:
    (pack / "reports/golden.json").write_text("{}")
    assert verify(pack).ok


def test_a_folder_without_a_manifest_is_no_pack(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"manifest\.json is missing"):
        verify(tmp_path)


def test_a_partial_folder_says_how_to_finish_it(tmp_path: Path) -> None:
    partial = tmp_path / "p.partial"
    partial.mkdir()
    with pytest.raises(BadInput, match="run the same build again"):
        verify(partial)


FACTS: dict[str, Any] = {
    "model__architecture": "qwen3",
    "model__bits_per_weight": 4.5,
    "model__name": "other",
    "model__parameters": 1,
    "recipe__preset": "Q4_K_M",
    "recipe__options": {"rules": [{"tensors": "ffn_up", "layers": [], "type": "F16"}]},
    "recipe__options__pure": "yes",
    "recipe__options__output": "Q4_0",
    "recipe__options__embedding": "F16",
    "recipe__text": 'base = "Q8_0"\n[[rule]]\ntensors = "ffn"\ntype = "F16"\n',
    "quantizer__library": "ggml",
    "quantizer__version": "0.0",
    "quantizer__probe_hash": "0" * 64,
    "template__id": "qwen3.8-flash-next",
    "template__origin": "shipped",
    "golden__cases": 2,
    "golden__engines__jinja2__passed": 7,
    "source__kind": "hub",
    "source__repo": "org/name",
    "source__commit": "0" * 40,
    "request__template": "auto 1",
    "request__name": "mine",
}


@pytest.mark.parametrize("key", FACTS)
def test_a_fact_that_the_files_contradict_is_named(pack: Path, key: str) -> None:
    edit(**{key: FACTS[key]})(pack)
    report = verify(pack)
    assert not report.ok, key
    assert {check.id for check in report.checks if check.status == "failed"} & {"facts", "golden", "tensors"}


def test_a_pack_of_a_model_that_no_loader_takes_fails(pack: Path) -> None:
    path = next((pack / "model").glob("*.gguf"))
    data = path.read_bytes()
    key = b"llama.context_length"
    at = data.index(key) + len(key) + 4
    path.write_bytes(data[:at] + bytes(4) + data[at + 4 :])
    failed = {check.id: check.detail for check in verify(pack).checks if check.status == "failed"}
    assert failed["loads"] == "llama.context_length is 0 and must be above 0"
