"""Which function makes which kind of node, and how a task is done: found made, or made now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import monotonic

from strata_pack.errors import StrataError
from strata_pack.progress import Progress, Silent
from strata_pack.release import gates, making, page, publishing, split
from strata_pack.release.board import Failure
from strata_pack.release.results import Result, Results
from strata_pack.release.work import Maker, Task

KINDS: Mapping[str, Maker] = {
    "fetch": making.fetch,
    "convert": making.convert,
    "imatrix": making.imatrix,
    "recipe": making.recipe,
    "pack": making.pack,
    "tensor": split.tensor,
    "verify": gates.verify_pack,
    "golden": gates.golden,
    "smoke": gates.smoke,
    "logits": gates.logits,
    "kl": gates.kl,
    "calls": gates.calls,
    "gates": gates.judge,
    "report": page.report,
    "publish": publishing.publish,
}


def perform(task: Task, progress: Progress | None = None) -> Result:
    """Make what ``task`` asks for, or find it made, and return it. Raises what the work raises."""
    results = Results(Path(task.out))
    with results.making(task.node):
        found = results.find(task.node, task.key)
        # Who asks to publish wants to know what is there now; what is there is not sent again.
        if found is not None and task.kind != "publish":
            return found
        started = monotonic()
        made = KINDS[task.kind](task, results, progress or Silent())
        return results.store(task.node, task.key, made.files, made.data, monotonic() - started)


def outcome_of(task: Task, progress: Progress) -> Result | Failure:
    """Perform ``task`` and return how it ended: a result, or the sentence of what went wrong."""
    try:
        return perform(task, progress)
    except StrataError as error:
        return Failure.of(error)
    except OSError as error:
        return Failure(str(error), 3)


def outcomes_of(task: Task, progress: Progress) -> list[Result | Failure]:
    """Perform ``task`` and the others that it brings; return how each ended, in order.

    Packs are built from one reading. If that fails, each is tried alone, so that one that is wrong stops no other.
    """
    if task.others:
        try:
            making.build_together(task.together, progress)
        except (StrataError, OSError) as error:
            progress.note(f"{task.label}: {error}; building one pack after the other")
    return [outcome_of(one, progress) for one in task.together]
