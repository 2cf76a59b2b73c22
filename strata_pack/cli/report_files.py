"""Writes report files: checks before long work that they can be written; a failed write does not lose the result."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strata_pack.cli.output import Out
from strata_pack.errors import EnvironmentFailure, StrataError, WrongUse
from strata_pack.files import disk_errors, write_atomic
from strata_pack.outputs import check_outputs

if TYPE_CHECKING:
    from strata_pack.report import Report

PANEL = "The report"

HtmlFile = Annotated[
    Path | None, typer.Option("--html", help="Write the report as a web page.", metavar="FILE", rich_help_panel=PANEL)
]
SvgFile = Annotated[
    Path | None,
    typer.Option("--svg", help="Write the chart as an SVG for a model card.", metavar="FILE", rich_help_panel=PANEL),
]
JunitFile = Annotated[
    Path | None, typer.Option("--junit", help="Write the report as JUnit XML.", metavar="FILE", rich_help_panel=PANEL)
]
SarifFile = Annotated[
    Path | None, typer.Option("--sarif", help="Write the report as SARIF.", metavar="FILE", rich_help_panel=PANEL)
]


def try_file(path: Path) -> None:
    """Raise ``WrongUse`` or ``EnvironmentFailure`` if no file can be written at ``path``; keeps no trial file."""
    if path.is_dir():
        raise WrongUse("is a folder, not a file", where=path)
    try:
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(prefix=f".{path.name}.", suffix=".try", dir=path.parent):
                pass
    except OSError as error:
        raise WrongUse(f"cannot be written ({error.strerror})", where=path, remedy="name another file") from error


def write_late(path: Path | None, make: Callable[[], bytes], out: Out) -> int:
    """Write what ``make`` returns to ``path``, if one is given; return 0 or, if writing fails, exit code 3."""
    try:
        if path is not None:
            write_atomic(path, make())
    except (StrataError, OSError) as error:
        out.error(f"strata-pack: the report could not be written: {error}")
        return EnvironmentFailure.exit_code
    return 0


@dataclass(frozen=True)
class ReportFiles:
    """The report files that the user asked for, by format; ``None`` for those not wanted."""

    html: Path | None = None
    junit: Path | None = None
    sarif: Path | None = None
    svg: Path | None = None

    def try_all(self, *inputs: Path | str | None) -> None:
        """Raise if one of the files cannot be written or would destroy one of ``inputs``."""
        check_outputs((self.html, self.junit, self.sarif, self.svg), inputs)
        for path in (self.html, self.junit, self.sarif, self.svg):
            if path is not None:
                try_file(path)

    def write(self, report: Report, out: Out) -> int:
        """Write every requested file; return 0 or, if writing failed (which is reported), exit code 3."""
        from strata_pack.report import html, junit, sarif

        writers: tuple[tuple[Path | None, Callable[[Report], bytes]], ...] = (
            *((self.html, html), (self.junit, junit), (self.sarif, sarif)),
        )
        return max(write_late(path, partial(written, report), out) for path, written in writers)
