"""Draws a bar chart of a few series as inline SVG in the page's colours; every bar has its value as a title."""

from __future__ import annotations

import math
from html import escape

from strata_pack.errors import escaped
from strata_pack.report.model import Chart

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 40, 44
LETTER = 6.2
"""Approximate width of a letter of a label."""
LONGEST = 28
"""Letters of a label that are shown."""
SLANT = 35
"""Degrees by which labels are turned that would overlap."""
NARROW = 14
"""Width of a bar below which its value is only in its title."""
COLOURS = 4
"""Number of series with their own colour in the style sheet: ``.series0`` to ``.series3``."""


def nice_ceiling(value: float) -> float:
    """Return the smallest value of the form 1, 2, 2.5 or 5 times a power of ten that is at least ``value``."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1.0, 2.0, 2.5, 5.0, 10.0) if step * power >= value * (1 - 1e-9))


def svg(chart: Chart, style: str = "") -> str:
    """Return the chart as one ``<svg>`` element, with a title for screen readers."""
    slot = (WIDTH - LEFT - RIGHT) / max(len(chart.x), 1)
    labels = [_short(label) for label in chart.x]
    widest = LETTER * max(map(len, labels), default=0)
    turned = widest > slot
    height = HEIGHT + (round(widest * math.sin(math.radians(SLANT))) if turned else 0)
    parts = [
        f'<svg class="chart" role="img" viewBox="0 0 {WIDTH} {height}" xmlns="http://www.w3.org/2000/svg">',
        f"<title>{svg_text(chart.title)}</title>",
        f"<style>{style}</style>" if style else "",
        *_bars(chart, slot),
    ]
    for place, label in enumerate(labels):
        x, y = LEFT + slot * (place + 0.5), HEIGHT - BOTTOM + 18
        turn = f'text-anchor="end" transform="rotate(-{SLANT} {x:.1f} {y})"' if turned else 'text-anchor="middle"'
        parts.append(f'<text class="tick" x="{x:.1f}" y="{y}" {turn}>{svg_text(label)}</text>')
    parts.append(f'<text class="axis" x="{LEFT}" y="14">{svg_text(chart.y_label)}</text>')
    parts.append(
        f'<text class="axis" x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" y="{height - 6}" text-anchor="middle">'
        f"{svg_text(chart.x_label)}</text>"
    )
    return "".join([*parts, *_legend(chart), "</svg>"])


def _bars(chart: Chart, slot: float) -> list[str]:
    """Return the grid and the bars."""
    values = [value for series in chart.series.values() for value in series]
    top = nice_ceiling(max(values, default=0))
    plot_height = HEIGHT - TOP - BOTTOM
    parts = []
    for step in range(5):
        y = TOP + plot_height * step / 4
        label = f"{top * (4 - step) / 4:,.10g}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
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
            if bar < NARROW:
                continue
            parts.append(
                f'<text class="value" x="{x + bar * 0.46:.1f}" y="{y - 4:.1f}" text-anchor="middle">{value:,g}</text>'
            )
    return parts


def _legend(chart: Chart) -> list[str]:
    parts = []
    x = float(WIDTH - RIGHT)
    for number, name in reversed(list(enumerate(map(_short, chart.series)))):
        x -= 7.2 * len(name) + 26
        parts.append(f'<rect class="series{number % COLOURS}" x="{x:.1f}" y="4" width="12" height="12"/>')
        parts.append(f'<text class="legend" x="{x + 17:.1f}" y="14">{svg_text(name)}</text>')
    return parts


def _short(label: str) -> str:
    return label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…"


def svg_text(text: str) -> str:
    """Return ``text`` for an SVG: without the control characters and broken bytes that XML does not allow."""
    return escape(escaped(text))
