"""Charts of figures over commits as static SVG: a line for each series, the quartiles of each
point, marks on what became slower or faster. Without a script; colours are classes of the page's
style, so that they fit light, dark and paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from weft.ir.dataclass import dataclass

#: Pixels of a chart and of what is around its plot.
WIDTH, HEIGHT = 520.0, 210.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 12.0, 24.0, 52.0
#: Labels below the plot at most: of more columns some have none.
MOST_LABELS = 18
#: Series that look different; of more than that some look the same.
STYLES = 6
#: From so large a quotient of the greatest figure and the least the axis is logarithmic.
_WIDE = 12.0
#: The least height of the plot as a share of its figures: less than that is not worth seeing.
_LEAST = 0.2


@dataclass(frozen=True)
class Point:
    """A figure. at: its column. low, middle, high: quartiles. mark: "slower", "faster" or "". told:
    what a reader is told who points at it."""

    at: int
    low: float
    middle: float
    high: float
    mark: str
    told: str


@dataclass(frozen=True)
class Series:
    """Points of one machine, in the order of their columns."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Chart:
    """unit: of the figures. labels: of the columns."""

    unit: str
    labels: Sequence[str]
    series: Sequence[Series]


class _Axis:
    """Where figures stand: between `low` and `high`, from below to above."""

    def __init__(self, figures: Sequence[float]) -> None:
        least, most = min(figures), max(figures)
        self.is_log = least > 0 and most / least >= _WIDE
        if self.is_log:
            self.low, self.high = least / 1.15, most * 1.15
            return
        middle, half = (least + most) / 2, (most - least) / 2 * 1.15
        half = max(half, abs(middle) * _LEAST / 2) or 1.0
        self.low, self.high = (
            max(0.0, middle - half) if least >= 0 else middle - half,
            middle + half,
        )

    def place(self, figure: float) -> float:
        """The y of a figure."""
        low, high, at = self.low, self.high, figure
        if self.is_log:
            low, high, at = math.log(low), math.log(high), math.log(figure)
        return HEIGHT - BOTTOM - (at - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def ticks(self) -> list[float]:
        """Round figures, about four."""
        if self.is_log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found = [s * 10.0**p for p in powers for s in (1, 2, 5)]
            found = [t for t in found if self.low <= t <= self.high]
            return found[:: max(1, len(found) // 5)]
        raw = (self.high - self.low) / 4
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= raw * 0.999)
        first = math.ceil(self.low / step)
        return [n * step for n in range(first, math.floor(self.high / step) + 1)]


def draw(chart: Chart, title: str) -> str:
    """The SVG of a chart; "" if it has no points. title: for those who hear it."""
    figures = [f for s in chart.series for p in s.points for f in (p.low, p.middle, p.high)]
    if not figures:
        return ""
    axis = _Axis(figures)
    inner = "".join(
        [*_grid(axis, chart.unit), *_columns(chart.labels)]
        + [_series(s, i, axis, len(chart.labels)) for i, s in enumerate(chart.series) if s.points]
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" width="{WIDTH:g}" '
        f'height="{HEIGHT:g}" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" '
        f'aria-label="{escape(f"{title}, {chart.unit}", quote=True)}">{inner}</svg>'
    )


def _x(column: int, columns: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (column + 0.5) / columns


def _grid(axis: _Axis, unit: str) -> list[str]:
    lines = [f'<text x="4" y="14">{escape(unit)}{" (logarithmic)" * axis.is_log}</text>']
    for tick in axis.ticks():
        y = axis.place(tick)
        lines.append(
            f'<path class="grid" d="M{LEFT:g} {y:.1f}H{WIDTH - RIGHT:g}"/>'
            f'<text x="{LEFT - 6:g}" y="{y + 4:.1f}" text-anchor="end">{_short(tick)}</text>'
        )
    return lines


def _short(figure: float) -> str:
    """At most four digits where that is exact."""
    return f"{figure:,.0f}" if abs(figure) >= 1000 else f"{figure:.4g}"


def _columns(labels: Sequence[str]) -> list[str]:
    every = -(-len(labels) // MOST_LABELS)
    y, lines = HEIGHT - BOTTOM + 14, []
    for column, label in enumerate(labels):
        if (len(labels) - 1 - column) % every:  # the newest always has one
            continue
        x = _x(column, len(labels))
        lines.append(
            f'<text x="{x:.1f}" y="{y:g}" text-anchor="end" '
            f'transform="rotate(-32 {x:.1f} {y:g})">{escape(label)}</text>'
        )
    return lines


def _series(series: Series, number: int, axis: _Axis, columns: int) -> str:
    places = [(_x(p.at, columns), axis.place(p.middle), p) for p in series.points]
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y, _ in places)
    return (
        f'<g class="s{number % STYLES}"><path class="line" d="M{line}"/>'
        + "".join(_point(x, y, p, axis) for x, y, p in places)
        + "</g>"
    )


def _point(x: float, y: float, point: Point, axis: _Axis) -> str:
    low, high = axis.place(point.low), axis.place(point.high)
    span = f"{_digits(point.middle)} ({_digits(point.low)} to {_digits(point.high)})"
    told = escape(f"{point.told}\n{span}{f', {point.mark}' * bool(point.mark)}")
    return (
        f'<g class="point {point.mark}"><title>{told}</title>'
        f'<path class="spread" d="M{x:.1f} {low:.1f}V{high:.1f}M{x - 3:.1f} {low:.1f}h6M'
        f'{x - 3:.1f} {high:.1f}h6"/><circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
        f"{_mark(x, min(y, high), max(y, low), point.mark)}</g>"
    )


def _mark(x: float, top: float, bottom: float, mark: str) -> str:
    """A triangle: above and pointing up for what is slower, below and pointing down for faster."""
    if mark == "slower":
        return f'<path class="mark" d="M{x:.1f} {top - 14:.1f}l5 9h-10z"/>'
    if mark == "faster":
        return f'<path class="mark" d="M{x:.1f} {bottom + 14:.1f}l5 -9h-10z"/>'
    return ""


def _digits(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 1000 else f"{figure:.3g}"
