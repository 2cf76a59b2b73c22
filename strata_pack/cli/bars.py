"""Progress for people: rich bars on a terminal, a plain line now and then when the output is piped."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichProgress
from rich.progress import Task as RichTask
from rich.text import Text

from strata_pack.progress import Progress, Silent, Task

PLAIN_INTERVAL = 5.0
"""Seconds between two plain lines of one task."""


class _Amount(ProgressColumn):
    """Bytes as sizes, anything else as "3/9 name"."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = DownloadColumn()
        self._count = MofNCompleteColumn()

    def render(self, task: RichTask) -> Text:
        return self._bytes.render(task) if task.fields["unit"] == "bytes" else self._count.render(task)


class _Rate(TransferSpeedColumn):
    def render(self, task: RichTask) -> Text:
        return super().render(task) if task.fields["unit"] == "bytes" else Text("")


class _BarTask:
    def __init__(self, rich: RichProgress, task_id: TaskID) -> None:
        self._rich = rich
        self._id = task_id

    def advance(self, amount: int) -> None:
        self._rich.advance(self._id, amount)

    def done(self) -> None:
        self._rich.stop_task(self._id)


class _Bars:
    def __init__(self, rich: RichProgress) -> None:
        self._rich = rich

    def task(self, label: str, total: int | None = None, unit: str = "bytes") -> Task:
        return _BarTask(self._rich, self._rich.add_task(label, total=total, unit=unit))

    def note(self, text: str) -> None:
        self._rich.console.print(text, highlight=False, markup=False)


class _LineTask:
    def __init__(self, label: str, total: int | None, unit: str) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._amount = 0
        self._start = self._last = time.monotonic()

    def _print(self, end: str) -> None:
        seconds = max(time.monotonic() - self._start, 1e-9)
        scale, unit = (1e6, "MB") if self._unit == "bytes" else (1, self._unit)
        total = "" if self._total is None else f" of {self._total / scale:.0f}"
        done, rate = self._amount / scale, self._amount / scale / seconds
        print(f"{self._label}: {done:.0f}{total} {unit}, {rate:.1f} {unit}/s{end}", file=sys.stderr, flush=True)

    def advance(self, amount: int) -> None:
        self._amount += amount
        if time.monotonic() - self._last >= PLAIN_INTERVAL:
            self._last = time.monotonic()
            self._print("")

    def done(self) -> None:
        self._print(", done")


class _Lines:
    def task(self, label: str, total: int | None = None, unit: str = "bytes") -> Task:
        return _LineTask(label, total, unit)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


@contextmanager
def open_progress(*, quiet: bool) -> Iterator[Progress]:
    """Yield the ``Progress`` that fits stderr."""
    if quiet:
        yield Silent()
    elif not sys.stderr.isatty():
        yield _Lines()
    else:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            _Amount(),
            _Rate(),
            TimeRemainingColumn(),
        )
        with RichProgress(*columns, console=Console(stderr=True)) as rich:
            yield _Bars(rich)
