"""Draws a bar chart of a few series as inline SVG in the page's colours; every bar shows its value."""

from __future__ import annotations

import math
from html import escape

from strata_pack.errors import escaped
from strata_pack.report.model import Chart

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 40, 44
COLOURS = 4
"""Number of series with their own colour in the style sheet: ``.series0`` to ``.series3``."""


def nice_ceiling(value: float) -> float:
    """Return the smallest value of the form 1, 2, 2.5 or 5 times a power of ten that is at least ``value``."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1.0, 2.0, 2.5, 5.0, 10.0) if step * power >= value * (1 - 1e-9))


def svg(chart: Chart) -> str:
    """Return the chart as one ``<svg>`` element, with a title for screen readers."""
    values = [value for series in chart.series.values() for value in series]
    top = nice_ceiling(max(values, default=0))
    plot_width, plot_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    parts = [
        f'<svg class="chart" role="img" viewBox="0 0 {WIDTH} {HEIGHT}" xmlns="http://www.w3.org/2000/svg">',
        f"<title>{svg_text(chart.title)}</title>",
    ]
    for step in range(5):
        y = TOP + plot_height * step / 4
        label = f"{top * (4 - step) / 4:,.0f}" if top >= 4 else f"{top * (4 - step) / 4:g}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    slot = plot_width / max(len(chart.x), 1)
    bar = slot * 0.8 / max(len(chart.series), 1)
    for number, (name, series) in enumerate(chart.series.items()):
        for place, value in enumerate(series):
            height = plot_height * max(value, 0) / top
            x = LEFT + slot * place + slot * 0.1 + bar * number
            y = TOP + plot_height - height
            parts.append(
                f'<rect class="series{number % COLOURS}" x="{x:.1f}" y="{y:.1f}" width="{bar * 0.92:.1f}" '
                f'height="{height:.1f}"><title>{svg_text(f"{name}, {chart.x[place]}: {value:,g}")}</title></rect>'
            )
            parts.append(
                f'<text class="value" x="{x + bar * 0.46:.1f}" y="{y - 4:.1f}" text-anchor="middle">{value:,g}</text>'
            )
    for place, label in enumerate(chart.x):
        x = LEFT + slot * (place + 0.5)
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{svg_text(label)}</text>'
        )
    parts.append(f'<text class="axis" x="{LEFT}" y="14">{svg_text(chart.y_label)}</text>')
    parts.append(
        f'<text class="axis" x="{LEFT + plot_width / 2:.1f}" y="{HEIGHT - 6}" text-anchor="middle">'
        f"{svg_text(chart.x_label)}</text>"
    )
    x = float(WIDTH - RIGHT)
    for number, name in reversed(list(enumerate(chart.series))):
        x -= 7.2 * len(name) + 26
        parts.append(f'<rect class="series{number % COLOURS}" x="{x:.1f}" y="4" width="12" height="12"/>')
        parts.append(f'<text class="legend" x="{x + 17:.1f}" y="14">{svg_text(name)}</text>')
    return "".join([*parts, "</svg>"])


def svg_text(text: str) -> str:
    """Return ``text`` for an SVG: without the control characters and broken bytes that XML does not allow."""
    return escape(escaped(text))
