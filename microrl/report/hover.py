"""The values of a figure that are shown under the pointer: `title` elements of its SVG, which browsers show without a script."""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from microrl.report.completions import spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_BANDS = 40
"""Places of a figure at which values are shown: more would make the page large, and too narrow to be hit."""
POINTS_AN_INCH = 72
Series = tuple[str, Sequence[Any], Sequence[float]]
"""Name, places (numbers, or names of categories) and values."""
_series: WeakKeyDictionary[Axes, list[Series]] = WeakKeyDictionary()


def show(axes: Axes, name: str, places: Sequence[Any], values: Sequence[float]) -> None:
    """Show these values under the pointer, at their places along the horizontal axis, after `name` unless it is empty."""
    if len(values):
        _series.setdefault(axes, []).append((name, places, values))


def bands(drawn: Figure) -> str:
    """Invisible SVG rectangles over the figure, each with the values of its place as title; empty if no values are known."""
    rectangles = [band for axes in drawn.axes for band in _bands(drawn, axes)]
    return f'<g class="hover">{"".join(rectangles)}</g>' if rectangles else ""


def _bands(drawn: Figure, axes: Axes) -> list[str]:
    points = [
        (_across(drawn, axes, place), place, name, value)
        for name, places, values in _series.get(axes, ())
        for place, value in zip(places, values)
    ]
    every = sorted({x for x, *_ in points})
    if not every:
        return []
    chosen = spread(every, MAX_BANDS)
    scale = POINTS_AN_INCH / drawn.dpi
    box, height = axes.bbox, drawn.get_figheight() * POINTS_AN_INCH
    edges = [box.x0 * scale, *((left + right) / 2 for left, right in itertools.pairwise(chosen)), box.x1 * scale]
    rectangles = []
    for left, x, right in zip(edges, chosen, edges[1:]):
        # Runs differ in where they have values: each shows its nearest within the band.
        nearest: dict[str, tuple[float, Any, float]] = {}
        for at, place, name, value in points:
            if left <= at <= right and (name not in nearest or abs(at - x) < nearest[name][0]):
                nearest[name] = (abs(at - x), place, value)
        here = min(nearest.values(), default=None)
        if here is None or right <= left:
            continue
        lines = [f"{axes.get_xlabel()} {_text(here[1])}", *(f"{name} {_text(v)}".strip() for name, (_, _, v) in nearest.items())]
        title = html.escape("\n".join(lines))
        rectangles.append(
            f'<rect x="{left:.1f}" y="{height - box.y1 * scale:.1f}" width="{right - left:.1f}" '
            f'height="{box.height * scale:.1f}" fill="none" pointer-events="all"><title>{title}</title></rect>'
        )
    return rectangles


def _across(drawn: Figure, axes: Axes, place: Any) -> float:
    """Where a place of the horizontal axis is, in points from the left."""
    x = float(axes.convert_xunits(place))
    return float(axes.get_xaxis_transform().transform((x, 0.0))[0]) * POINTS_AN_INCH / drawn.dpi


def _text(value: Any) -> str:
    if not isinstance(value, int | float):
        return str(value)
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
