"""Shows progress: rich bars on a terminal, plain lines at intervals where stderr is piped."""

from __future__ import annotations

import json
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

from strata_pack.errors import escaped
from strata_pack.progress import Progress, ProgressForm, ProgressTask, Silent

PLAIN_INTERVAL_SECONDS = 5.0
"""Seconds between two plain lines of one task."""

JSON_INTERVAL_SECONDS = 0.5
"""Seconds between two events of one task."""

MEASURABLE = 0.5
"""Minimum elapsed seconds before a rate is shown."""


class _Amount(ProgressColumn):
    """Shows bytes as sizes and other units as "3/9 name"."""

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

    def task(self, label: str, total: int | None = None, unit: str = "bytes") -> ProgressTask:
        return _BarTask(self._rich, self._rich.add_task(escaped(label), total=total, unit=unit))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take the bars off the terminal, for a question."""
        self._rich.stop()
        try:
            yield
        finally:
            self._rich.start()

    def note(self, text: str) -> None:
        self._rich.console.print(escaped(text, keep="\n\t"), highlight=False, markup=False)


SCALES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes"))


def amount_text(done: int, total: int | None, unit: str) -> str:
    """Return "12.3 of 98.0 MB" or "3 of 9 cases": bytes in the unit that fits the larger number."""
    if unit != "bytes":
        return f"{done} {unit}" if total is None else f"{done} of {total} {unit}"
    size, name = next((pair for pair in SCALES if max(done, total or 0) >= pair[0]), SCALES[-1])
    digits = 0 if name == "bytes" else 1
    shown = f"{done / size:.{digits}f}"
    return f"{shown} {name}" if total is None else f"{shown} of {total / size:.{digits}f} {name}"


class _LineTask:
    def __init__(self, label: str, total: int | None, unit: str) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._amount = 0
        self._start = self._last = time.monotonic()

    def _print(self, end: str) -> None:
        seconds = time.monotonic() - self._start
        rate = ""
        if self._unit == "bytes" and seconds >= MEASURABLE:
            rate = f", {amount_text(int(self._amount / seconds), None, self._unit)}/s"
        text = f"{self._label}: {amount_text(self._amount, self._total, self._unit)}{rate}{end}"
        print(escaped(text), file=sys.stderr, flush=True)

    def advance(self, amount: int) -> None:
        self._amount += amount
        if time.monotonic() - self._last >= PLAIN_INTERVAL_SECONDS:
            self._last = time.monotonic()
            self._print("")

    def done(self) -> None:
        self._print(", done")


class _Lines:
    def task(self, label: str, total: int | None = None, unit: str = "bytes") -> ProgressTask:
        return _LineTask(label, total, unit)

    def note(self, text: str) -> None:
        print(escaped(text, keep="\n\t"), file=sys.stderr, flush=True)


class _JsonTask:
    """Events of one task: ``start``, ``advance`` at most once in ``JSON_INTERVAL_SECONDS``, ``done``."""

    def __init__(self, number: int, label: str, total: int | None, unit: str) -> None:
        self._facts = {"task": number, "label": label, "total": total, "unit": unit}
        self._amount = 0
        self._last = time.monotonic()
        _event("start", self._facts)

    def advance(self, amount: int) -> None:
        self._amount += amount
        if time.monotonic() - self._last >= JSON_INTERVAL_SECONDS:
            self._last = time.monotonic()
            _event("advance", {**self._facts, "done": self._amount})

    def done(self) -> None:
        _event("done", {**self._facts, "done": self._amount})


class _JsonLines:
    def __init__(self) -> None:
        self._tasks = 0

    def task(self, label: str, total: int | None = None, unit: str = "bytes") -> ProgressTask:
        self._tasks += 1
        return _JsonTask(self._tasks, label, total, unit)

    def note(self, text: str) -> None:
        _event("note", {"text": text})


def _event(kind: str, facts: dict[str, object]) -> None:
    print(json.dumps({"event": kind, **facts}), file=sys.stderr, flush=True)


@contextmanager
def open_progress(form: ProgressForm = "auto") -> Iterator[Progress]:
    """Yield the ``Progress`` of this form; "auto" is the one that fits stderr."""
    if form == "none":
        yield Silent()
    elif form == "json":
        yield _JsonLines()
    elif form == "plain" or (form == "auto" and not sys.stderr.isatty()):
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
