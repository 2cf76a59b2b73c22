"""Nodes for each pack's provenance statement and bill of materials, and for each target's model card."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strata_pack.errors import CheckFailed
from strata_pack.files import disk_errors, sha256_text
from strata_pack.pack.attestations.files import attestation_files, provenance_problems, sbom_problems
from strata_pack.pack.layout import Pack
from strata_pack.progress import Progress
from strata_pack.release.results import Results, write_whole
from strata_pack.release.task import NodeOutput, Task

CARDS = "cards"
"""Folder of the cards, so that they can be read before publishing."""


def provenance(task: Task, results: Results, progress: Progress) -> NodeOutput:  # noqa: ARG001
    """Write a pack's missing provenance statement and bill of materials, and check those that exist."""
    pack = Pack.open(results.out / task.pack)
    attestations = attestation_files(pack.manifest)
    for name, data in attestations.items():
        if not (pack.path / name).exists():
            write_whole(pack.path / name, data)
    wrong = [*provenance_problems(pack.path, pack.manifest), *sbom_problems(pack.path, pack.manifest)]
    if wrong:
        raise CheckFailed("; ".join(wrong[:3]), where=pack.path, remedy="remove the file: it is made again")
    source = pack.manifest["source"]
    files = [results.record(pack.path / name) for name in attestations]
    return NodeOutput(files, {"repo": source["repo"], "commit": source["commit"]})


def card(task: Task, results: Results, progress: Progress) -> NodeOutput:  # noqa: ARG001
    """Write the card of every target from the packs that pass their gates, with what was measured of them."""
    from strata_pack.publish.card import CardFacts, Figures, card_files

    by_target, _ = passing_packs(task)
    figures = {pack: _figures(task, pack) for packs in by_target.values() for pack in packs}
    folder = results.out / CARDS
    with disk_errors(folder):
        shutil.rmtree(folder, ignore_errors=True)
    written = []
    for target, place in _places(folder, list(by_target)):
        packs = [Pack.open(results.out / pack) for pack in by_target[target]]
        measured = {pack: Figures(**figures[pack]) for pack in by_target[target]}
        repo = None if target.startswith(("dir:", "oci:")) else target
        facts = CardFacts(repo=repo, fingerprint=_fingerprint(task), figures=measured)
        for name, data in card_files(packs, facts).items():
            write_whole(place / name, data)
            written.append(results.record(place / name))
    return NodeOutput(written, {"figures": figures})


def passing_packs(task: Task) -> tuple[dict[str, list[str]], list[str]]:
    """Return the packs to publish by target, and the packs that failed their gates."""
    by_target: dict[str, list[str]] = {}
    held = []
    for pack, target in task.settings["targets"].items():
        judged = task.inputs[f"gates:{pack}"]
        if not isinstance(judged, str) and judged["data"]["passed"]:
            by_target.setdefault(target, []).append(pack)
        else:
            held.append(pack)
    return by_target, held


def _places(folder: Path, targets: list[str]) -> Iterator[tuple[str, Path]]:
    """Yield each target with the folder of its card; OCI images have no card."""
    taken: set[str] = set()
    for target in targets:
        if target.startswith("oci:"):
            continue
        name = Path(target).name if target.startswith("dir:") else target
        name = re.sub(r"[^A-Za-z0-9._-]+", "--", name)
        name = f"{name}-{sha256_text(target)[:6]}" if name in taken else name
        taken.add(name)
        yield target, folder / name


def _fingerprint(task: Task) -> str | None:
    """Return the fingerprint of the signing key if the public key file is next to it (no password is needed then)."""
    from strata_pack.publish.keys import fingerprint, read_public_key

    key = task.paths.get("key")
    public = None if key is None else Path(key).with_suffix(".pub")
    return fingerprint(read_public_key(public)) if public is not None and public.is_file() else None


def _figures(task: Task, pack: str) -> dict[str, Any]:
    """Return the measurements of a pack for the card."""
    compared, asked = task.inputs.get(f"kl:{pack}"), task.inputs.get(f"calls:{pack}")
    figures: dict[str, Any] = {}
    if compared is not None and not isinstance(compared, str):
        figures["kl_mean"] = compared["data"]["judged"]["kl_mean"]
    if asked is not None and not isinstance(asked, str):
        figures |= {"calls_right": asked["data"]["right"], "calls": asked["data"]["tasks"]}
    return figures
