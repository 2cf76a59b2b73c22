"""Which part of a release is spread over workers tensor by tensor, and the graph with a node for every tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from strata_pack.errors import WrongUse
from strata_pack.progress import Progress
from strata_pack.release.board import Board
from strata_pack.release.crew import Crew
from strata_pack.release.graph import Graph, Node, make_graph
from strata_pack.release.run import TENSOR, Outcome, held, run_releases
from strata_pack.release.source import brought_model
from strata_pack.release.split import close_plan, prepare, read_plan, split_folder
from strata_pack.release.work import Task


def run_spread(board: Board, crew: Crew, progress: Progress) -> Outcome:
    """Make everything that the board lacks, tensors of packs as nodes of their own; errors as ``run_releases``."""
    while True:
        with held(board.release):
            part = spread(board, progress)
        try:
            outcome = run_releases([part], crew, progress)
        finally:
            close_plan()
        if outcome.exit_code or board.graph.keys() <= part.graph.keys() or not outcome.count("made"):
            return outcome
        board = Board(board.release, board.source, board.facts)


def spread(board: Board, progress: Progress) -> Board:
    """Return the board of the same release whose packs' tensors are nodes of their own.

    Packs that wait for something that is made of the whole source (a matrix, a searched recipe) are left for a later
    board: this one makes what they wait for. Raises ``WrongUse`` for a source that is no safetensors checkpoint.
    """
    if board.source["format"] != "safetensors":
        raise WrongUse("is no safetensors checkpoint", where=board.release.source, remedy="run without --split-tensors")
    fetched = board.found.get("fetch")
    todo = [node for node in board.graph if node.startswith("pack:") and board.states[node] != "done"]
    now = [node for node in todo if _can_be_planned(board, node)]
    if not now:
        return board
    model = None if fetched is None else brought_model(board.release.source, board.release.out, fetched)
    if model is None and board.source["commit"] is None:
        # A source on this disk has nothing to fetch: its hash can be computed first.
        return _narrowed(board, lambda node: node.kind == "fetch")
    tasks = [_task(board, node) for node in now]
    identity = prepare(board.release.source, board.source["commit"], model, tasks, progress)
    plan = read_plan(board.release.out)
    graph = _with_tensors(board, identity, len(plan["groups"]), now, fetching=plan["fetch"])
    if now == todo:
        return Board(board.release, board.source, board.facts, None, graph)
    return Board(board.release, board.source, board.facts, lambda node: _is_early(node, now), graph)


def _can_be_planned(board: Board, node: str) -> bool:
    """Return whether everything but the source itself that a pack needs is there."""
    return all(need == "fetch" or need in board.found for need in board.graph[node].needs)


def _task(board: Board, node: str) -> Task:
    wanted = board.graph[node]
    inputs = {need: board.found[need] for need in wanted.needs if need != "fetch"}
    return Task(
        board.release.name, node, wanted.kind, "", board.release.source, str(board.release.out),
        dict(wanted.settings), dict(wanted.paths), inputs,
    )  # fmt: skip


def _is_early(node: Node, now: list[str]) -> bool:
    return node.id in now or node.kind in ("fetch", "convert", "imatrix", "recipe", TENSOR)


def _narrowed(board: Board, wanted: Callable[[Node], bool]) -> Board:
    return Board(board.release, board.source, board.facts, wanted, board.graph)


def _with_tensors(board: Board, identity: str, groups: int, packs: list[str], *, fetching: bool) -> Graph:
    """Return the graph with a node for each group of tensors, before what is made of them."""
    root = str(split_folder(board.release.out))
    nodes: dict[str, Node] = {
        f"{TENSOR}:{number}": Node(f"{TENSOR}:{number}", TENSOR, (), {"plan": identity, "group": number})
        for number in range(groups)
    }
    tensors = tuple(nodes)
    whole: Mapping[str, Node] = make_graph(board.release, board.source, board.facts)
    for id, node in whole.items():
        if id == "fetch" and fetching:
            node = replace(node, after=tensors, paths={**node.paths, "split": root})
        elif id in packs:
            ready = {"ready": f"{root}/out/{id.partition(':')[2]}.gguf"}
            node = replace(node, after=tensors, paths={**node.paths, **ready, **({"split": root} if fetching else {})})
        nodes[id] = node
    return nodes
