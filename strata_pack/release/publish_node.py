"""The node that publishes the packs that pass their gates to their targets (``strata_pack.publish``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata_pack.errors import CheckFailed, WrongUse
from strata_pack.progress import Progress
from strata_pack.release.document_nodes import passing_packs
from strata_pack.release.release_file import Release
from strata_pack.release.results import Results
from strata_pack.release.schedule import Schedule
from strata_pack.release.task import NodeOutput, Task

if TYPE_CHECKING:
    from strata_pack.publish import Published
    from strata_pack.publish.publishing import PublishedDict


def check_key(release: Release) -> None:
    """Raise ``WrongUse`` for a key that cannot sign, before hours of building."""
    from strata_pack.publish import read_private_key

    if release.publish is not None and release.publish.sign is not None:
        read_private_key(release.publish.sign)


def publish(task: Task, results: Results, progress: Progress) -> NodeOutput:
    """Publish every pack that passed and note the others. Raises ``CheckFailed`` if none passed."""
    by_target, held = passing_packs(task)
    for pack in held:
        progress.note(f"{pack}: does not pass its gates, so it is not published")
    if not by_target:
        raise _nothing(task)
    sent = [
        _send(task, results.out, packs, target, progress, dry_run=False).to_dict()
        for target, packs in by_target.items()
    ]
    return NodeOutput((), {"published": by_target, "held_back": held, "targets": sent})


def _nothing(task: Task) -> CheckFailed:
    return CheckFailed("no pack passes its gates, so nothing is published", where=task.release)


def publish_dry_run(schedule: Schedule, progress: Progress) -> list[PublishedDict]:
    """Return what publishing would send, by target. Raises ``WrongUse`` if a node is not made yet."""
    if schedule.states["publish"] in ("waits", "skipped"):
        raise WrongUse(
            f"not everything is made yet ({schedule.reason('publish')})",
            where=schedule.release.path,
            remedy="run `strata-pack release run` first",
        )
    task = schedule.task("publish")
    by_target, held = passing_packs(task)
    for pack in held:
        progress.note(f"{pack}: does not pass its gates, so it would not be published")
    if not by_target:
        raise _nothing(task)
    return [
        _send(task, schedule.results.out, packs, target, progress, dry_run=True).to_dict()
        for target, packs in by_target.items()
    ]


def _card(task: Task) -> Mapping[str, Any]:
    """Return the card's facts. Raises ``CheckFailed`` if the card could not be made."""
    made = task.inputs["card"]
    if isinstance(made, str):
        raise CheckFailed(f"its card could not be made ({made})", where=task.release)
    return made["data"]


def _send(task: Task, out: Path, packs: list[str], target: str, progress: Progress, *, dry_run: bool) -> Published:
    from strata_pack.publish import Figures, PublishOptions
    from strata_pack.publish import publish as publish_packs

    key, figures = task.paths.get("key"), _card(task)["figures"]
    options = PublishOptions(
        accept_licence=bool(task.paths.get("accept_licence")),
        figures={pack: Figures(**figures[pack]) for pack in packs},
    )
    return publish_packs(
        [out / pack for pack in packs],
        target,
        key=None if key is None else Path(key),
        dry_run=dry_run,
        options=options,
        progress=progress,
    )
