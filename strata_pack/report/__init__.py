"""Defines one result model, a ``Report`` of ``Check``s, and its outputs: terminal, JSON, JUnit XML, SARIF, HTML."""

from strata_pack.report.machine import junit, sarif, schema, to_json
from strata_pack.report.model import Chart, Check, Point, Report, Scatter, Status, Table
from strata_pack.report.page import html
from strata_pack.report.scatter import standalone
from strata_pack.report.screen import terminal

__all__ = [
    "Chart",
    "Check",
    "Point",
    "Report",
    "Scatter",
    "Status",
    "Table",
    "html",
    "junit",
    "sarif",
    "schema",
    "standalone",
    "terminal",
    "to_json",
]
