"""Draws a plot: as part of a page, or as an SVG file with its own colours for a model card or a README."""

from __future__ import annotations

from strata_pack.report.chart import svg
from strata_pack.report.model import Chart, Scatter
from strata_pack.report.scatter import scatter_svg

STYLE = (
    "svg{font:12px system-ui,sans-serif;background:#fff}.grid{stroke:#ddd}.front{fill:none;stroke:#0b6e99}"
    ".point{fill:#8a8f98}.marked,.series0{fill:#0b6e99}.series1{fill:#c9722b}.series2{fill:#4a8f5a}"
    ".series3{fill:#8a5fb0}.tick,.axis,.label,.value,.legend{fill:#333}"
)


def drawing(plot: Chart | Scatter, style: str = "") -> str:
    """Return the plot as one ``<svg>`` element."""
    return scatter_svg(plot, style) if isinstance(plot, Scatter) else svg(plot, style)


def standalone(plot: Chart | Scatter) -> bytes:
    """Return the plot as a separate SVG file with its own colours."""
    return (drawing(plot, STYLE) + "\n").encode()
