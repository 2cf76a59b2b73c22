"""One node of a release, done by whoever gets it: a function of JSON and paths, with its result on the disk.

A worker that is given a node which somebody has finished meanwhile finds that result; one that is killed leaves what
the node's own journal keeps. Nothing of a result travels but the JSON.
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
    """Packs to be built in the same go, from one reading of the source."""

    @property
    def together(self) -> tuple[Task, ...]:
        """This task and the others."""
        return (self, *self.others)

    @property
    def label(self) -> str:
        return f"{self.release} {self.node}"

    @property
    def pack(self) -> str:
        """The name of the pack it is about."""
        return self.node.partition(":")[2]

    def result(self, node: str) -> Result:
        """Return the result of a node that this one needs."""
        value = self.inputs[node]
        assert not isinstance(value, str), f"{node} failed and {self.node} is not soft"
        return value


@dataclass(frozen=True)
class NodeOutput:
    """What a node has made: its files and what to say of them as JSON."""

    files: Sequence[FileRecord] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


NodeFunction = Callable[[Task, Results, Progress], NodeOutput]
