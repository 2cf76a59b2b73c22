"""Defines the result of a check as values: a ``Report`` of ``Check``s, which every output format reads.

This module does no I/O and does not depend on any output format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict, cast

Status = Literal["passed", "failed", "skipped", "error"]

STATUSES: tuple[Status, ...] = ("failed", "error", "skipped", "passed")
"""All statuses, those that need attention first."""

EXIT_CODES: Mapping[Status, int] = {"failed": 1, "error": 3, "skipped": 0, "passed": 0}
"""The exit code for each status: a difference was found, or the environment failed."""


class TableDict(TypedDict):
    """A ``Table`` as JSON."""

    headers: list[str]
    rows: list[list[str | int | float]]


class ChartDict(TypedDict):
    """A ``Chart`` as JSON."""

    title: str
    x_label: str
    y_label: str
    x: list[str]
    series: dict[str, list[float]]


class PointDict(TypedDict):
    """A ``Point`` as JSON."""

    name: str
    x: float
    y: float
    marked: bool


class ScatterDict(TypedDict):
    """A ``Scatter`` as JSON."""

    title: str
    x_label: str
    y_label: str
    points: list[PointDict]


class CheckDict(TypedDict):
    """A ``Check`` as JSON; optional keys without a value are absent."""

    id: str
    title: str
    status: Status
    detail: str
    seconds: float
    where: NotRequired[str]
    prompt: NotRequired[str]
    expected: NotRequired[str]
    got: NotRequired[str]
    log: NotRequired[str]
    repeat: NotRequired[str]
    table: NotRequired[TableDict]
    chart: NotRequired[ChartDict | ScatterDict]
    data: NotRequired[Mapping[str, Any]]
    links: NotRequired[Mapping[str, str]]


class ReportDict(TypedDict):
    """A ``Report`` as JSON, as ``report.schema.json`` describes it."""

    format: str
    version: int
    title: str
    status: Status
    started: str | None
    seconds: float
    counts: dict[Status, int]
    facts: dict[str, str]
    checks: list[CheckDict]


@dataclass(frozen=True)
class Table:
    """A table of figures of a check. Every row has as many cells as there are headers."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str | int | float, ...], ...]

    def to_dict(self) -> TableDict:
        return {"headers": list(self.headers), "rows": [list(row) for row in self.rows]}


@dataclass(frozen=True)
class Chart:
    """Several series of numbers over the same x values."""

    title: str
    x_label: str
    y_label: str
    x: tuple[str, ...]
    series: Mapping[str, tuple[float, ...]]

    def to_dict(self) -> ChartDict:
        return {
            "title": self.title,
            "x_label": self.x_label,
            "y_label": self.y_label,
            "x": list(self.x),
            "series": {name: list(values) for name, values in self.series.items()},
        }


@dataclass(frozen=True)
class Point:
    """A labelled point; a line joins the ``marked`` ones."""

    name: str
    x: float
    y: float
    marked: bool = False


@dataclass(frozen=True)
class Scatter:
    """A scatter plot; both axes start at 0, or the y axis is logarithmic if ``log_y`` is set."""

    title: str
    x_label: str
    y_label: str
    points: tuple[Point, ...]
    log_y: bool = False

    def to_dict(self) -> ScatterDict:
        points: list[PointDict] = [{"name": p.name, "x": p.x, "y": p.y, "marked": p.marked} for p in self.points]
        return {"title": self.title, "x_label": self.x_label, "y_label": self.y_label, "points": points}


@dataclass(frozen=True)
class Check:
    """The result of one check.

    ``id`` is stable across runs and unique in a report; ``detail`` is one sentence about the result. The status
    ``failed`` means that a difference was found, ``error`` that the check could not be made; ``detail`` says why.
    ``repeat`` is the command that repeats this check; ``where`` names the file or URL concerned; ``data`` is JSON;
    ``links`` maps link texts to paths of files relative to the report.
    """

    id: str
    title: str
    status: Status
    detail: str = ""
    seconds: float = 0.0
    where: str | None = None
    prompt: str | None = None
    expected: str | None = None
    got: str | None = None
    log: str | None = None
    repeat: str | None = None
    table: Table | None = None
    chart: Chart | Scatter | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> CheckDict:
        """Return the check as JSON; keys without a value are left out."""
        optional = {
            "where": self.where,
            "prompt": self.prompt,
            "expected": self.expected,
            "got": self.got,
            "log": self.log,
            "repeat": self.repeat,
            "table": self.table.to_dict() if self.table else None,
            "chart": self.chart.to_dict() if self.chart else None,
            "data": dict(self.data) or None,
            "links": dict(self.links) or None,
        }
        required: CheckDict = {
            "id": self.id,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "seconds": round(self.seconds, 3),
        }
        return cast(CheckDict, {**required, **{key: value for key, value in optional.items() if value is not None}})


@dataclass(frozen=True)
class Report:
    """All checks of one run. ``facts`` describe what was checked (runtime, model, template); ``started`` is ISO
    8601, UTC."""

    title: str
    checks: tuple[Check, ...]
    facts: Mapping[str, str] = field(default_factory=dict)
    started: str | None = None
    seconds: float = 0.0

    def count(self, status: Status) -> int:
        """Return how many checks have ``status``."""
        return sum(check.status == status for check in self.checks)

    @property
    def status(self) -> Status:
        """The worst status: ``failed``, else ``error``, else ``passed`` (or ``skipped`` if nothing was checked)."""
        if self.count("failed"):
            return "failed"
        if self.count("error"):
            return "error"
        return "passed" if self.count("passed") else "skipped"

    @property
    def ok(self) -> bool:
        """Whether no check has the status ``failed`` or ``error``."""
        return self.status in ("passed", "skipped")

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 0, 1 (a check failed) or 3 (a check could not be made)."""
        return EXIT_CODES[self.status]

    @property
    def summary(self) -> str:
        """The counts as text: ``"2 failed, 11 passed"``."""
        parts = [f"{self.count(status)} {status}" for status in STATUSES if self.count(status)]
        return ", ".join(parts) or "nothing checked"

    def to_dict(self) -> ReportDict:
        """Return the report as the JSON object that ``report.schema.json`` describes."""
        return {
            "format": "strata-pack report",
            "version": 1,
            "title": self.title,
            "status": self.status,
            "started": self.started,
            "seconds": round(self.seconds, 3),
            "counts": {status: self.count(status) for status in STATUSES},
            "facts": dict(self.facts),
            "checks": [check.to_dict() for check in self.checks],
        }
