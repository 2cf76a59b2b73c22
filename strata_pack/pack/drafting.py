"""Decides whether a server uses speculative decoding with the model's own draft head (MTP), and says why not.

A draft head is the block after the trunk, counted by ``<architecture>.nextn_predict_layers`` in the header. The server
drafts a few tokens with it and verifies them in one batch with the trunk, so the output is that of the trunk.
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
"""The values of ``serve --spec``; "auto" drafts if model and runtime support it."""

FOREIGN: Mapping[str, str] = {"eagle3": "EAGLE-3", "dflash": "DFlash"}
"""Kinds of separate draft models, which are not supported."""

BLIND_DRAFTING = ("qwen4exp",)
"""Architectures whose server aborts at an image while it drafts (llama.cpp: "MTP requires token input")."""


@dataclass(frozen=True)
class Drafting:
    """Whether to draft. ``reason`` says why a model with a draft head is served without it, else ""."""

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
    """Return whether a server of ``runtime`` drafts with the head of ``model``; ``sees``: it also has a projector.

    Raises ``WrongUse`` for unsupported kinds of draft models, ``BadInput`` if "mtp" is requested for a model without a
    draft head, ``EnvironmentFailure`` if it is requested of a runtime without support.
    """
    if wanted in FOREIGN:
        raise WrongUse(
            f"--spec {wanted}: {FOREIGN[wanted]} draft models are not supported",
            remedy="use mtp, the model's own draft head",
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
                remedy="choose another one with --runtime; `strata-pack runtime list` shows the available ones",
            )
        return Drafting(False, f"the runtime {runtime.name} cannot draft with it")
    if sees and architecture_of(model) in BLIND_DRAFTING:
        return Drafting(False, "llama.cpp cannot draft and see images with this model; --no-mmproj drafts instead")
    return Drafting(True)
