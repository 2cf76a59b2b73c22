"""The function of each kind of node, and how a task runs: return the stored result, or make it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import monotonic

from strata_pack.errors import StrataError
from strata_pack.progress import Progress, Silent
from strata_pack.release import build_nodes, document_nodes, gates, publish_node, report_page, split_worker
from strata_pack.release.results import Result, Results
from strata_pack.release.schedule import Failure
from strata_pack.release.task import NodeFunction, Task

NODE_FUNCTIONS: Mapping[str, NodeFunction] = {
    "fetch": build_nodes.fetch,
    "convert": build_nodes.convert,
    "imatrix": build_nodes.imatrix,
    "recipe": build_nodes.recipe,
    "pack": build_nodes.pack,
    "tensor": split_worker.tensor,
    "verify": gates.verify_pack,
    "golden": gates.golden,
    "smoke": gates.smoke,
    "logits": gates.logits,
    "kl": gates.kl,
    "calls": gates.calls,
    "gates": gates.judge,
    "report": report_page.report,
    "provenance": document_nodes.provenance,
    "card": document_nodes.card,
    "publish": publish_node.publish,
}


def run_node(task: Task, progress: Progress | None = None) -> Result:
    """Return the stored result of ``task``, or make it. Raises what the node's function raises."""
    results = Results(Path(task.out))
    with results.node_lock(task.node):
        found = results.find(task.node, task.key)
        # Publishing always looks at the target; files that are there are not sent again.
        if found is not None and task.kind != "publish":
            return found
        started = monotonic()
        made = NODE_FUNCTIONS[task.kind](task, results, progress or Silent())
        return results.store(task.node, task.key, made.files, made.data, monotonic() - started)


def run_task(task: Task, progress: Progress) -> Result | Failure:
    """Run ``task`` and return its result, or its failure."""
    try:
        return run_node(task, progress)
    except (StrataError, OSError) as error:
        return Failure.of(error)


def run_tasks(task: Task, progress: Progress) -> list[Result | Failure]:
    """Run ``task`` and the tasks batched with it; return each result or failure, in order.

    Packs are built in one pass over the source. If that fails, each is built alone, so one bad pack stops no other.
    """
    if task.others:
        try:
            build_nodes.build_together(task.together, progress)
        except (StrataError, OSError) as error:
            progress.note(f"{task.label}: {error}; building one pack after the other")
    return [run_task(one, progress) for one in task.together]
