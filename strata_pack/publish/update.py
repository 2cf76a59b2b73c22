"""Install a newer chat template into published packs, which are downloaded if they are not local.

The template is at the end of a GGUF's header, with padding after it: the tensors keep their offsets, so a store that
deduplicates chunks (Xet) receives only a few kilobytes of each file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strata_pack.errors import CheckFailed, WrongUse
from strata_pack.pack.paths import MANIFEST
from strata_pack.pack.template.install import install_template
from strata_pack.pack.verification import verify
from strata_pack.progress import Progress, Silent
from strata_pack.publish.hub import download, look_at
from strata_pack.publish.publishing import parse_target
from strata_pack.weights.hub.connection import Hub, connect


def update_templates(
    packs: Sequence[Path],
    target: str,
    template: str,
    work: Path | None = None,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
    hub: Hub | None = None,
) -> list[Path]:
    """Install ``template`` ("auto", an id or a file) into ``packs`` and return them.

    Without ``packs``, all packs in the repository ``target`` are downloaded into ``work`` and updated. With
    ``dry_run`` nothing is installed. Raises what ``install_template`` raises, ``CheckFailed`` for a pack that does not
    verify, ``WrongUse`` if there is no pack.
    """
    watcher = progress or Silent()
    found = list(packs) or bring_published(target, work, watcher, hub)
    for pack in found:
        _check(pack, watcher)
    for pack in found:
        # The pack's template matches its manifest, so no user's change is lost.
        result = install_template(pack, template, force=True, dry_run=dry_run, progress=watcher)
        done = "would be installed" if dry_run else "installed"
        what = f"template {str(result.after['sha256'])[:12]} {done}" if result.changed else "has this template already"
        watcher.note(f"{pack}: {what}")
    return found


def bring_published(target: str, work: Path | None, progress: Progress, hub: Hub | None = None) -> list[Path]:
    """Download every pack of the repository ``target`` into ``work``, and return their folders."""
    kind, repo = parse_target(target)
    if kind != "hub":
        raise WrongUse("no pack is given", where=target, remedy="name the packs to update")
    if work is None:
        raise WrongUse(
            "no pack is given", where=target, remedy="name the packs, or where to bring them with --work DIR"
        )
    hub = hub or connect()
    state = look_at(hub, repo)
    names = sorted(path.removesuffix(f"/{MANIFEST}") for path in state.files if path.endswith(f"/{MANIFEST}"))
    if not names or state.commit is None:
        raise WrongUse("has no pack", where=repo, remedy="publish some first")
    download(hub, repo, state.commit, names, work, progress)
    return [work / name for name in names]


def _check(pack: Path, progress: Progress) -> None:
    report = verify(pack, progress)
    if not report.ok:
        failed = next(check for check in report.checks if check.status not in ("passed", "skipped"))
        raise CheckFailed(f"does not verify ({failed.detail[:200]})", where=pack, remedy="see `strata-pack verify`")
