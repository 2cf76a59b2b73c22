"""Defines the result model, a ``Report`` of ``Check``s, and its outputs: terminal, JSON, JUnit XML, SARIF, HTML."""

from strata_pack.doors import door

TYPE_CHECKING = False
if TYPE_CHECKING:
    from strata_pack.report.machine import junit as junit
    from strata_pack.report.machine import sarif as sarif
    from strata_pack.report.machine import schema as schema
    from strata_pack.report.machine import to_json as to_json
    from strata_pack.report.model import Chart as Chart
    from strata_pack.report.model import Check as Check
    from strata_pack.report.model import Point as Point
    from strata_pack.report.model import Report as Report
    from strata_pack.report.model import Scatter as Scatter
    from strata_pack.report.model import Status as Status
    from strata_pack.report.model import Table as Table
    from strata_pack.report.page import html as html
    from strata_pack.report.picture import standalone as standalone
    from strata_pack.report.screen import terminal as terminal

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "report.machine": ("junit", "sarif", "schema", "to_json"),
        "report.model": ("Chart", "Check", "Point", "Report", "Scatter", "Status", "Table"),
        "report.page": ("html",),
        "report.picture": ("standalone",),
        "report.screen": ("terminal",),
    },
)
