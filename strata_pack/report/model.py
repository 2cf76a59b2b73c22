"""Defines the result of a check as values: a ``Report`` of ``Check``s, which every output format reads.

Nothing here knows how it will be shown, and nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict, cast

Status = Literal["passed", "failed", "skipped", "error"]

STATUSES: tuple[Status, ...] = ("failed", "error", "skipped", "passed")
"""All of them, the ones that need a person first."""

EXIT_CODES: Mapping[Status, int] = {"failed": 1, "error": 3, "skipped": 0, "passed": 0}
"""What a status means for the exit code of a command: a difference found, or the environment's fault."""


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
    """A ``Check`` as JSON; keys of what it does not have are missing."""

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
    """Figures that belong to a check. Every row has as many cells as there are headers."""

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
    """One thing with two figures; ``marked`` ones are joined by a line."""

    name: str
    x: float
    y: float
    marked: bool = False


@dataclass(frozen=True)
class Scatter:
    """Points in two dimensions, both axes from 0 or, where ``log_y`` is set, y by powers of ten."""

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
    """One thing that was checked.

    ``id`` is stable over runs and unique in a report; ``detail`` is one sentence about what was seen. ``failed`` means
    a difference was found, ``error`` that the check could not be made; both say why in ``detail``. ``repeat`` is the
    command that makes this check again; ``where`` names the file or URL concerned; ``data`` is JSON; ``links`` are
    files by what to call them, relative to where the report lies.
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
        """Return the check as JSON; what it does not have is left out."""
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
    """All checks of one run. ``facts`` say on what: runtime, model, template; ``started`` is ISO 8601, UTC."""

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
        """Whether no check failed and none could not be made."""
        return self.status in ("passed", "skipped")

    @property
    def exit_code(self) -> int:
        """The exit code of a command that ran this: 0, 1 (a check failed) or 3 (one could not be made)."""
        return EXIT_CODES[self.status]

    @property
    def summary(self) -> str:
        """The counts as words: ``"2 failed, 11 passed"``."""
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
