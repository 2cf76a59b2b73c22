"""The node that publishes: packs that pass their gates go to their targets, through the room ``publish``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from strata_pack.errors import CheckFailed, EnvironmentFailure
from strata_pack.progress import Progress
from strata_pack.release.board import Board
from strata_pack.release.results import Results
from strata_pack.release.work import Made, Task


def passing(task: Task) -> tuple[dict[str, list[str]], list[str]]:
    """Return the packs to publish by target, and those that are held back by their gates."""
    by_target: dict[str, list[str]] = {}
    held = []
    for pack, target in task.settings["targets"].items():
        judged = task.inputs[f"gates:{pack}"]
        if not isinstance(judged, str) and judged["data"]["passed"]:
            by_target.setdefault(target, []).append(pack)
        else:
            held.append(pack)
    return by_target, held


def publish(task: Task, results: Results, progress: Progress) -> Made:
    """Publish every pack that passed; the others are named. Raises ``CheckFailed`` if none passed."""
    by_target, held = passing(task)
    for pack in held:
        progress.note(f"{pack}: does not pass its gates, so it is not published")
    if not by_target:
        raise CheckFailed("no pack passes its gates, so nothing is published", where=task.release)
    send = publisher()
    key = task.paths.get("key")
    for target, packs in by_target.items():
        folders = [results.out / pack for pack in packs]
        send(folders, target, key=None if key is None else Path(key), dry_run=False, progress=progress)
    return Made((), {"published": by_target, "held_back": held})


def publisher() -> Callable[..., object]:
    """Return the function that publishes packs; ``EnvironmentFailure`` where this installation has none."""
    try:
        found: Callable[..., object] = importlib.import_module("strata_pack.publish").publish
    except (ImportError, AttributeError):
        raise EnvironmentFailure(
            "publishing is not available in this version", remedy="use a newer strata-pack; the packs are built"
        ) from None
    return found


def rehearse(board: Board, progress: Progress) -> None:
    """Show what publishing would send, without sending it; what is not made yet is named."""
    if board.states["publish"] in ("waits", "skipped"):
        progress.note(f"not everything is made yet ({board.why('publish')}): run `strata-pack release run` first")
        return
    task = board.task("publish")
    by_target, held = passing(task)
    for pack in held:
        progress.note(f"{pack}: does not pass its gates, so it would not be published")
    if not by_target:
        return
    send = publisher()
    key = task.paths.get("key")
    for target, packs in by_target.items():
        folders = [board.results.out / pack for pack in packs]
        send(folders, target, key=None if key is None else Path(key), dry_run=True, progress=progress)
