"""Draws a scatter plot as inline SVG; a line joins the marked points.

In a page the colours come from the page's style sheet.
"""

from __future__ import annotations

import math

from strata_pack.report.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, nice_ceiling, svg_text
from strata_pack.report.model import Scatter

STEPS = 4
"""Number of grid lines of a linear axis."""


def scatter_svg(scatter: Scatter, style: str = "") -> str:
    """Return the plot as one ``<svg>`` element, with a title for screen readers."""
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    right = nice_ceiling(max((point.x for point in scatter.points), default=0))
    ticks = _log_ticks(scatter) if scatter.log_y else _linear_ticks(scatter)
    low, high = ticks[0], ticks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        share = math.log(max(y, low) / low) / math.log(high / low) if scatter.log_y else y / high
        return LEFT + width * x / right, TOP + height * (1 - share)

    parts = [
        f'<svg class="chart" role="img" viewBox="0 0 {WIDTH} {HEIGHT}" xmlns="http://www.w3.org/2000/svg">',
        f"<title>{svg_text(scatter.title)}</title>",
        f"<style>{style}</style>" if style else "",
    ]
    for tick in ticks:
        _, y = place(0, tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for step in range(STEPS + 1):
        x = LEFT + width * step / STEPS
        label = f"{right * step / STEPS:g}"
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{label}</text>')
    marked = sorted((point.x, point.y) for point in scatter.points if point.marked)
    line = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in marked)
    parts.append(f'<polyline class="front" fill="none" stroke="currentColor" points="{line}"/>')
    for point in scatter.points:
        x, y = place(point.x, point.y)
        label = svg_text(f"{point.name}: {point.x:g}, {point.y:g}")
        kind = "point marked" if point.marked else "point"
        parts.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{label}</title></circle>')
        anchor, shift = ("end", -7) if x > LEFT + width * 0.8 else ("start", 7)
        name = svg_text(point.name)
        parts.append(f'<text class="label" x="{x + shift:.1f}" y="{y - 5:.1f}" text-anchor="{anchor}">{name}</text>')
    parts.append(f'<text class="axis" x="{LEFT}" y="14">{svg_text(scatter.y_label)}</text>')
    parts.append(
        f'<text class="axis" x="{LEFT + width / 2:.1f}" y="{HEIGHT - 6}" text-anchor="middle">'
        f"{svg_text(scatter.x_label)}</text>"
    )
    return "".join([*parts, "</svg>"])


def _linear_ticks(scatter: Scatter) -> list[float]:
    top = nice_ceiling(max((point.y for point in scatter.points), default=0))
    return [top * step / STEPS for step in range(STEPS + 1)]


def _log_ticks(scatter: Scatter) -> list[float]:
    """Return the powers of ten around all points above 0."""
    values = [point.y for point in scatter.points if point.y > 0] or [1.0]
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]
