"""Whether a server may guess ahead with the model's own draft head (MTP), and in words why not.

A draft head is the block that follows the trunk, with ``<architecture>.nextn_predict_layers`` in the header. The server
drafts a few tokens with it and checks them all at once with the trunk, so the text stays that of the trunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from strata_pack.errors import BadInput, EnvironmentFailure, WrongUse
from strata_pack.llama.runtimes import Runtime, can_draft
from strata_pack.weights.gguf.file import GgufFile

Spec = Literal["auto", "mtp", "off", "eagle3", "dflash"]
"""What ``serve --spec`` takes; "auto" drafts where everything for it is there."""

FOREIGN: Mapping[str, str] = {"eagle3": "EAGLE-3", "dflash": "DFlash"}
"""Draft models of other repositories, which are not run."""

BLIND_DRAFTING = ("qwen4exp",)
"""Architectures whose server aborts at an image while it drafts (llama.cpp: "MTP requires token input")."""


@dataclass(frozen=True)
class Drafting:
    """Whether to draft. ``reason`` says why a model with a draft head is served without it, "" else."""

    on: bool
    reason: str = ""


def draft_layers(model: Path) -> int:
    """Return the blocks of the model's draft head, 0 for a model without one."""
    with GgufFile.open(model) as file:
        found = file.metadata.get(f"{file.text('general.architecture')}.nextn_predict_layers")
        return int(found.value) if found is not None and isinstance(found.value, int) else 0


def architecture_of(model: Path) -> str:
    """Return ``general.architecture`` of a model."""
    with GgufFile.open(model) as file:
        return file.text("general.architecture") or ""


def plan_drafting(model: Path, runtime: Runtime, wanted: Spec, *, sees: bool) -> Drafting:
    """Return whether a server of ``runtime`` drafts with the head of ``model``; ``sees``: it has a projector too.

    Raises ``WrongUse`` for draft models that are not run, ``BadInput`` where "mtp" is wanted of a model without a
    draft head, ``EnvironmentFailure`` where it is wanted of a runtime that cannot.
    """
    if wanted in FOREIGN:
        raise WrongUse(
            f"--spec {wanted}: {FOREIGN[wanted]} draft models are not run", remedy="use mtp, the model's own draft head"
        )
    if wanted == "off":
        return Drafting(False)
    if not draft_layers(model):
        if wanted == "mtp":
            raise BadInput(
                "has no draft head (MTP)", where=model, remedy="leave --spec out, or build it without --no-mtp"
            )
        return Drafting(False)
    if not can_draft(runtime):
        if wanted == "mtp":
            raise EnvironmentFailure(
                f"the runtime {runtime.name} cannot draft with a draft head (MTP)",
                remedy="choose another one with --runtime; `strata-pack runtime list` shows those there are",
            )
        return Drafting(False, f"the runtime {runtime.name} cannot draft with it")
    if sees and architecture_of(model) in BLIND_DRAFTING:
        return Drafting(False, "llama.cpp cannot draft and see images with this model; --no-mmproj drafts instead")
    return Drafting(True)
