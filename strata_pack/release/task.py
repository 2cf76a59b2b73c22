"""A task is one node of a release for a worker: a function of JSON and paths, whose result is on disk.

A worker that gets a node which another one finished meanwhile returns that result; a killed worker leaves
the node's journal. Only the JSON of a result is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strata_pack.progress import Progress
from strata_pack.release.results import FileRecord, Result, Results


@dataclass(frozen=True)
class Task:
    """A node that is ready: its inputs are results, or sentences about why there is none.

    ``source`` is the release's source as text, ``out`` its folder, ``threads`` how many cores the worker may use
    (``None``: all).
    """

    release: str
    node: str
    kind: str
    key: str
    source: str
    out: str
    settings: Mapping[str, Any]
    paths: Mapping[str, Any]
    inputs: Mapping[str, Result | str]
    threads: int | None = None
    others: tuple[Task, ...] = ()
    """Packs to build together, in one pass over the source."""

    @property
    def together(self) -> tuple[Task, ...]:
        """This task and the others."""
        return (self, *self.others)

    @property
    def label(self) -> str:
        return f"{self.release} {self.node}"

    @property
    def pack(self) -> str:
        """The name of the node's pack."""
        return self.node.partition(":")[2]

    def result(self, node: str) -> Result:
        """Return the result of a node that this one needs."""
        value = self.inputs[node]
        assert not isinstance(value, str), f"{node} failed and {self.node} is not soft"
        return value


@dataclass(frozen=True)
class NodeOutput:
    """Output of a node: its files, and its data as JSON."""

    files: Sequence[FileRecord] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


NodeFunction = Callable[[Task, Results, Progress], NodeOutput]
