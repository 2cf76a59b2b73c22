"""A worker's part of a split run: fetch the bytes of one group of tensors and write them into every pack's file."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from strata_pack.files import disk_errors
from strata_pack.llama.quantizer import Quantizer
from strata_pack.progress import Progress
from strata_pack.release.results import Results
from strata_pack.release.source import first_weights
from strata_pack.release.split_plan import Group, model_from, part_of, planned, read_plan, split_folder
from strata_pack.release.task import NodeOutput, Task
from strata_pack.weights.convert.convert import SafetensorsSource
from strata_pack.weights.gguf.file import align
from strata_pack.weights.hub.connection import connect
from strata_pack.weights.hub.ranges import RangeFetcher
from strata_pack.weights.hub.state import read_fetch_record
from strata_pack.weights.quantize.plan import QuantPlan
from strata_pack.weights.quantize.rows import Pipeline, RowTarget, TensorJob, usable_cores
from strata_pack.weights.quantize.run import output_headers


class _Opened:
    """An open plan of a split run in one worker: source, packs' plans and files, and the Hub client."""

    def __init__(self, out: Path) -> None:
        plan = read_plan(out)
        root = split_folder(out)
        self.stack = ExitStack()
        self.groups = [
            Group(tuple(names), tuple((name, start, stop) for name, start, stop in ranges))
            for names, ranges in plan["groups"]
        ]
        self.model = model_from(plan["model"])
        self.fetcher: RangeFetcher | None = None
        self.holes: dict[str, int] = {}
        if plan["fetch"]:
            record = read_fetch_record(root.parent / "source" / self.model.root.name)
            assert record is not None, "the plan was made after the fetch had begun"
            self.fetcher = self.stack.enter_context(RangeFetcher(connect(), record.tree))
            self.holes = {name: self._open(self.model.root / name) for name in self.model.weights.files}
        tasks = [Task(**value) for value in plan["packs"]]
        self.source = SafetensorsSource.open(first_weights(self.model), part=part_of(tasks[0]))
        self.stack.callback(self.source.close)
        self.plans: list[QuantPlan] = []
        self.files: list[int] = []
        self.places: list[dict[str, int]] = []
        for task in tasks:
            made, keys = planned(task, self.model, self.source)
            (header,) = output_headers(made, keys)
            self.plans.append(made)
            self.files.append(self._open(root / "out" / f"{task.pack}.gguf"))
            at, places = len(header), {}
            for tensor in made.tensors:
                places[tensor.name] = at
                at += align(tensor.nbytes, made.alignment)
            self.places.append(places)

    def _open(self, path: Path) -> int:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.stack.callback(os.close, descriptor)
        return descriptor


_held: list[tuple[tuple[str, str], _Opened]] = []
_holding = threading.Lock()


def _opened(out: str, identity: str) -> _Opened:
    """Return the open plan ``identity``, cached per worker because a huge checkpoint's headers take seconds to read."""
    with _holding:
        if not _held or _held[0][0] != (out, identity):
            _close()
            _held.append(((out, identity), _Opened(Path(out))))
        return _held[0][1]


def close_plan() -> None:
    """Close the files and the connections that this process holds for a split run."""
    with _holding:
        _close()


def _close() -> None:
    while _held:
        _held.pop()[1].stack.close()


def tensor(task: Task, results: Results, progress: Progress) -> NodeOutput:  # noqa: ARG001
    """Fetch the stored bytes of one group of tensors, and write the tensors into every pack's file."""
    opened = _opened(task.out, task.settings["plan"])
    group = opened.groups[task.settings["group"]]
    with disk_errors(split_folder(Path(task.out))):
        if opened.fetcher is not None:
            for name, start, stop in group.ranges:
                opened.fetcher.fetch(name, start, stop, opened.holes[name])
            for name in {name for name, _, _ in group.ranges}:
                os.fsync(opened.holes[name])
        _write(opened, group, task.threads)
    return NodeOutput(
        (), {"tensors": len(group.tensors), "bytes": sum(stop - start for _, start, stop in group.ranges)}
    )


def _write(opened: _Opened, group: Group, threads: int | None) -> None:
    if not group.tensors or not opened.plans:
        return
    quantizer = Quantizer.load("auto")
    with Pipeline(
        quantizer,
        threads or usable_cores(),
        outputs=len(opened.plans),
        allow_nonfinite=False,
        where=opened.source.label,
    ) as pipeline:
        for _ in pipeline.run(_jobs(opened, group)):
            pass
    for descriptor in opened.files:
        os.fsync(descriptor)


def _jobs(opened: _Opened, group: Group) -> Iterator[TensorJob]:
    by_name = [{one.name: one for one in plan.tensors} for plan in opened.plans]
    for name in group.tensors:
        source = by_name[0][name].source
        targets = {}
        for number, plan in enumerate(opened.plans):
            planned = by_name[number][name]
            weights = plan.imatrix.importances(source) if planned.weighted and plan.imatrix else None
            targets[number] = RowTarget(planned, weights, _writer(opened.files[number], opened.places[number][name]))
        yield TensorJob(source, opened.plans[0].source.rows(source), targets)


def _writer(descriptor: int, begin: int) -> Any:
    def write(start: int, data: Any) -> None:
        left, at = memoryview(data), begin + start
        while left:
            written = os.pwrite(descriptor, left, at)
            left, at = left[written:], at + written

    return write
