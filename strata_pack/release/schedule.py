"""The state of a release: each node done, ready, waiting for others, or failed.

``plan`` and ``status`` print the schedule, ``run`` advances it: a node that ends makes others ready.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from strata_pack.errors import EnvironmentFailure, StrataError
from strata_pack.release.graph import Graph, Node, key_of, make_graph
from strata_pack.release.lock import LockedFile, LockedPack, LockedSource
from strata_pack.release.release_file import Release
from strata_pack.release.results import Result, Results
from strata_pack.release.task import Task
from strata_pack.release.versions import Versions

State = Literal["done", "made", "ready", "waits", "running", "failed", "skipped"]
"""done: result found; made: by this run; skipped: an input failed; waits: for an input."""

SHOWN = 12
"""Most nodes that a "waits for" sentence names."""
ENDED: frozenset[State] = frozenset({"done", "made", "failed", "skipped"})


@dataclass(frozen=True)
class Failure:
    """Why a node failed: the message and the exit code of its error."""

    sentence: str
    exit_code: int

    @classmethod
    def of(cls, error: StrataError | OSError) -> Failure:
        if isinstance(error, StrataError):
            return cls(str(error), error.exit_code)
        where = error.filename2 or error.filename
        return cls(str(error) if where is None else f"{where}: {error.strerror}", EnvironmentFailure.exit_code)


class Schedule:
    """The state of every node of one release.

    ``wanted`` are the kinds of nodes to make; nodes that none of them needs are left out.
    """

    def __init__(
        self,
        release: Release,
        source: LockedSource,
        versions: Versions,
        wanted: Callable[[Node], bool] | None = None,
        graph: Graph | None = None,
    ) -> None:
        self.release, self.source, self.versions = release, source, versions
        whole = graph or make_graph(release, source, versions)
        self.graph: Graph = _only(whole, wanted or (lambda node: node.kind != "publish"))
        self.results = Results(release.out)
        self.states: dict[str, State] = dict.fromkeys(self.graph, "waits")
        self.found: dict[str, Result] = {}
        self.failures: dict[str, Failure] = {}
        for node in self.graph:
            self._look(node)

    def ready(self) -> list[str]:
        """Return the nodes that can be made now, in the order of the graph."""
        return [node for node, state in self.states.items() if state == "ready"]

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do or under way."""
        return all(state in ENDED for state in self.states.values())

    def task(self, node: str, threads: int | None = None) -> Task:
        """Return the task of ``node``, which must be ready."""
        wanted = self.graph[node]
        return Task(
            release=self.release.name,
            node=node,
            kind=wanted.kind,
            key=key_of(wanted, self._inputs(wanted)),
            source=self.release.source,
            out=str(self.release.out),
            settings=wanted.settings,
            paths=wanted.paths,
            inputs=self._inputs(wanted),
            threads=threads,
        )

    def start(self, node: str) -> None:
        """Mark the node as running."""
        self.states[node] = "running"

    def requeue(self, node: str) -> None:
        """Mark the node as ready again."""
        self.states[node] = "ready"

    def finish(self, node: str, outcome: Result | Failure) -> None:
        """Store how the node ended, and update the nodes that need it."""
        if isinstance(outcome, Failure):
            self.states[node], self.failures[node] = "failed", outcome
        else:
            self.states[node], self.found[node] = "made", outcome
        for other in self.graph:
            if self.states[other] == "waits":
                self._look(other)

    def reason(self, node: str) -> str:
        """Return why a node is not done: its failure, or what it waits for."""
        if node in self.failures:
            return self.failures[node].sentence
        wanted = self.graph[node]
        lacking = [need for need in (*wanted.needs, *wanted.after) if self.states[need] not in ("done", "made")]
        more = f" and {len(lacking) - SHOWN} more" if len(lacking) > SHOWN else ""
        return f"after {', '.join(lacking[:SHOWN])}{more}" if lacking else ""

    def locked_packs(self) -> dict[str, LockedPack]:
        """Return the lock file's entries of the packs that exist."""
        packs = {}
        for pack in self.release.packs:
            built, judged = self.found.get(f"pack:{pack.name}"), self.found.get(f"gates:{pack.name}")
            if built is not None:
                files = [
                    LockedFile(path=one["path"].partition("/")[2], size=one["size"], sha256=one["sha256"])
                    for one in built["files"]
                ]
                passed = judged is not None and bool(judged["data"]["passed"])
                packs[pack.name] = LockedPack(passed=passed, files=files)
        return packs

    def _inputs(self, node: Node) -> dict[str, Result | str]:
        return {need: self.found[need] if need in self.found else self.reason(need) for need in node.needs}

    def _look(self, id: str) -> None:
        """Compute the state of a waiting node from its inputs."""
        node = self.graph[id]
        needs = [self.states[need] for need in (*node.needs, *node.after)]
        if not all(state in ENDED for state in needs):
            return
        if any(state in ("failed", "skipped") for state in needs) and not node.soft:
            self.states[id] = "skipped"
            return
        result = self.results.find(id, key_of(node, self._inputs(node)))
        if result is None:
            self.states[id] = "ready"
        else:
            self.states[id], self.found[id] = "done", result


def _only(graph: Mapping[str, Node], wanted: Callable[[Node], bool]) -> dict[str, Node]:
    """Return the wanted nodes and all that they need, in the order of the graph."""

    def needed(id: str) -> Iterator[str]:
        yield id
        for need in (*graph[id].needs, *graph[id].after):
            yield from needed(need)

    kept = {name for id, node in graph.items() if wanted(node) for name in needed(id)}
    return {id: node for id, node in graph.items() if id in kept}
