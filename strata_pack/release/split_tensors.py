"""Choose the packs that are split over workers by tensor, and make the graph with a node per tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from strata_pack.errors import WrongUse
from strata_pack.progress import Progress
from strata_pack.release.executor import Executor
from strata_pack.release.graph import Graph, Node, make_graph
from strata_pack.release.run import TENSOR, Outcome, release_lock, run_releases
from strata_pack.release.schedule import Schedule
from strata_pack.release.source import brought_model
from strata_pack.release.split_plan import prepare, read_plan, split_folder
from strata_pack.release.split_worker import close_plan
from strata_pack.release.task import Task


def run_split(schedule: Schedule, executor: Executor, progress: Progress) -> Outcome:
    """Make every missing node, with packs' tensors as nodes of their own. Raises as ``run_releases``."""
    while True:
        with release_lock(schedule.release):
            part = split_schedule(schedule, progress)
        try:
            outcome = run_releases([part], executor, progress)
        finally:
            close_plan()
        if outcome.exit_code or schedule.graph.keys() <= part.graph.keys() or not outcome.count("made"):
            return outcome
        schedule = Schedule(schedule.release, schedule.source, schedule.versions)


def split_schedule(schedule: Schedule, progress: Progress) -> Schedule:
    """Return the schedule of the same release whose packs' tensors are nodes of their own.

    Packs that wait for a result of the whole source (a matrix, a searched recipe) are left for a later
    schedule: this one makes what they wait for. Raises ``WrongUse`` for a source that is no safetensors checkpoint.
    """
    if schedule.source["format"] != "safetensors":
        raise WrongUse(
            "is no safetensors checkpoint", where=schedule.release.source, remedy="run without --split-tensors"
        )
    fetched = schedule.found.get("fetch")
    todo = [node for node in schedule.graph if node.startswith("pack:") and schedule.states[node] != "done"]
    now = [node for node in todo if _can_be_planned(schedule, node)]
    if not now:
        return schedule
    model = None if fetched is None else brought_model(schedule.release.source, schedule.release.out, fetched)
    if model is None and schedule.source["commit"] is None:
        # A local source needs no fetch, so its hash can be computed first.
        return _narrowed(schedule, lambda node: node.kind == "fetch")
    tasks = [_task(schedule, node) for node in now]
    identity = prepare(schedule.release.source, schedule.source["commit"], model, tasks, progress)
    plan = read_plan(schedule.release.out)
    graph = _with_tensors(schedule, identity, len(plan["groups"]), now, fetching=plan["fetch"])
    if now == todo:
        return Schedule(schedule.release, schedule.source, schedule.versions, None, graph)
    return Schedule(schedule.release, schedule.source, schedule.versions, lambda node: _is_early(node, now), graph)


def _can_be_planned(schedule: Schedule, node: str) -> bool:
    """Return whether every input of a pack except the source is done."""
    return all(need == "fetch" or need in schedule.found for need in schedule.graph[node].needs)


def _task(schedule: Schedule, node: str) -> Task:
    wanted = schedule.graph[node]
    inputs = {need: schedule.found[need] for need in wanted.needs if need != "fetch"}
    return Task(
        schedule.release.name, node, wanted.kind, "", schedule.release.source, str(schedule.release.out),
        dict(wanted.settings), dict(wanted.paths), inputs,
    )  # fmt: skip


def _is_early(node: Node, now: list[str]) -> bool:
    return node.id in now or node.kind in ("fetch", "convert", "imatrix", "recipe", TENSOR)


def _narrowed(schedule: Schedule, wanted: Callable[[Node], bool]) -> Schedule:
    return Schedule(schedule.release, schedule.source, schedule.versions, wanted, schedule.graph)


def _with_tensors(schedule: Schedule, identity: str, groups: int, packs: list[str], *, fetching: bool) -> Graph:
    """Return the graph with a node for each group of tensors, ordered before the packs."""
    root = str(split_folder(schedule.release.out))
    nodes: dict[str, Node] = {
        f"{TENSOR}:{number}": Node(f"{TENSOR}:{number}", TENSOR, (), {"plan": identity, "group": number})
        for number in range(groups)
    }
    tensors = tuple(nodes)
    whole: Mapping[str, Node] = make_graph(schedule.release, schedule.source, schedule.versions)
    for id, node in whole.items():
        if id == "fetch" and fetching:
            node = replace(node, after=tensors, paths={**node.paths, "split": root})
        elif id in packs:
            ready = {"ready": f"{root}/out/{id.partition(':')[2]}.gguf"}
            node = replace(node, after=tensors, paths={**node.paths, **ready, **({"split": root} if fetching else {})})
        nodes[id] = node
    return nodes
