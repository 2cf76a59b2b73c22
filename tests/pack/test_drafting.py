"""Drafting with a model's own head: on where everything for it is there, and in words why not."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGUFValueType

from strata_pack.errors import BadInput, EnvironmentFailure, WrongUse
from strata_pack.gateway.command import run
from strata_pack.gateway.options import ServeOptions
from strata_pack.llama.runtimes import MTP, Runtime, can_draft
from strata_pack.pack.drafting import Drafting, Spec, draft_layers, plan_drafting
from strata_pack.weights.gguf.file import MetaValue
from tests.pack.tiny_gguf import write_tiny

EMBEDDED = Runtime("embedded", "embedded")


def headed(folder: Path, architecture: str = "llama", layers: int = 1) -> Path:
    head = {
        "general.architecture": MetaValue.string(architecture),
        f"{architecture}.nextn_predict_layers": MetaValue(GGUFValueType.UINT32, layers),
    }
    return write_tiny(folder / "model.gguf", extra=head)


def binary(folder: Path, told: str) -> Runtime:
    path = folder / "llama-server"
    path.write_text(f"#!/bin/sh\necho '{told}'\n", encoding="utf-8")
    path.chmod(0o755)
    return Runtime("llama-server", "binary", path=path)


@pytest.mark.parametrize("wanted", ["auto", "mtp"])
def test_model_with_a_draft_head_is_served_with_it(wanted: Spec, tmp_path: Path) -> None:
    assert draft_layers(headed(tmp_path)) == 1
    assert plan_drafting(headed(tmp_path), EMBEDDED, wanted, sees=True) == Drafting(True)


def test_drafting_can_be_off(tmp_path: Path) -> None:
    assert plan_drafting(headed(tmp_path), EMBEDDED, "off", sees=False) == Drafting(False)


def test_model_without_a_draft_head_is_served_without_a_word(tmp_path: Path) -> None:
    assert plan_drafting(write_tiny(tmp_path / "x.gguf"), EMBEDDED, "auto", sees=False) == Drafting(False)
    assert plan_drafting(headed(tmp_path, layers=0), EMBEDDED, "auto", sees=False) == Drafting(False)


def test_draft_head_that_is_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no draft head"):
        plan_drafting(write_tiny(tmp_path / "x.gguf"), EMBEDDED, "mtp", sees=False)


@pytest.mark.parametrize("wanted", ["auto", "mtp"])
def test_flash_next_never_drafts_and_sees_at_once(wanted: Spec, tmp_path: Path) -> None:
    model = headed(tmp_path, "qwen4exp")
    plan = plan_drafting(model, EMBEDDED, wanted, sees=True)
    assert not plan.on
    assert "--no-mmproj" in plan.reason
    assert plan_drafting(model, EMBEDDED, wanted, sees=False).on


@pytest.mark.parametrize(("wanted", "name"), [("eagle3", "EAGLE-3"), ("dflash", "DFlash")])
def test_draft_models_of_others_are_refused_by_name(wanted: Spec, name: str, tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match=name):
        plan_drafting(headed(tmp_path), EMBEDDED, wanted, sees=False)


def test_binary_says_whether_it_drafts(tmp_path: Path) -> None:
    assert can_draft(binary(tmp_path, f"--spec-type none,{MTP}"))


def test_binary_that_cannot_draft_serves_without(tmp_path: Path) -> None:
    older = binary(tmp_path, "--draft-max N")
    assert "cannot draft" in plan_drafting(headed(tmp_path), older, "auto", sees=False).reason
    with pytest.raises(EnvironmentFailure, match="cannot draft"):
        plan_drafting(headed(tmp_path), older, "mtp", sees=False)
    assert not can_draft(Runtime("llama-server", "binary", path=tmp_path / "gone"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"server_arguments": ("--spec-type", "draft-mtp")}, "--spec-type is set by the gateway"),
        ({"server_arguments": ("--mmproj", "x")}, "--mmproj is set by the gateway"),
        ({"spec": "eagle3"}, "EAGLE-3"),
    ],
)
def test_serve_refuses_what_is_not_drafted_with(options: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match=words):
        run(ServeOptions((headed(tmp_path),), None, port=0, **options), lambda *_: None, lambda _: None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("architecture", "name"), [("eagle3", "EAGLE-3"), ("dflash", "DFlash")])
def test_serve_refuses_draft_models_of_others_by_name(architecture: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=name):
        run(ServeOptions((headed(tmp_path, architecture),), None, port=0), lambda *_: None, lambda _: None)


def test_serve_refuses_the_projector_of_another_model_before_it_starts_anything(tmp_path: Path) -> None:
    eyes = {
        "general.type": MetaValue.string("mmproj"),
        "clip.vision.projection_dim": MetaValue(GGUFValueType.UINT32, 7),
    }
    projector = write_tiny(tmp_path / "mmproj.gguf", extra=eyes)
    with pytest.raises(BadInput, match="projector of another model"):
        run(ServeOptions((headed(tmp_path),), None, port=0, mmproj=projector), lambda *_: None, lambda _: None)
