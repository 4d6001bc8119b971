"""The geometry of a line chart, and the table of its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from math import ceil

MOST_POINTS = 360
MOST_ROWS = 12
WIDTH, HEIGHT = 640, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 612, 12, 194
"""The edges of the plot, in units of the SVG."""
_LABEL_WIDTH = 80
_DASHES = ("none", "8 3", "3 2", "10 3 2 3", "14 4", "1 4")
"""Lines differ by more than their colours."""


@dataclass(frozen=True, slots=True)
class Line:
    """`colour` is a class of the style; `points` are (x, y)."""

    name: str
    colour: str
    dash: str
    points: tuple[tuple[float, float], ...]
    total: int


@dataclass(frozen=True, slots=True)
class Plot:
    """`levels` are (y, count) of the horizontal lines, `marks` (x, label) of the labels below the plot.

    `rows` are (label, sums of each series) of equal numbers of points in order, except the last, which may have fewer.
    """

    lines: tuple[Line, ...]
    levels: tuple[tuple[float, int], ...]
    marks: tuple[tuple[float, str], ...]
    rows: tuple[tuple[str, tuple[int, ...]], ...]


def plot(labels: Sequence[str], series: Sequence[tuple[str, str, Sequence[int]]]) -> Plot:
    """Return the chart of `series`: (name, class of the style, a count for each of `labels`).

    Raises ValueError for more than MOST_POINTS labels, or another number of counts than of labels.
    """
    points = len(labels)
    if points > MOST_POINTS or any(len(counts) != points for _, _, counts in series):
        raise ValueError(f"a line chart has at most {MOST_POINTS} labels, and a count of each series for each of them")
    top = _top(max((max(counts, default=0) for _, _, counts in series), default=0))

    def x(position: int) -> float:
        return LEFT + (RIGHT - LEFT) * (position / (points - 1) if points > 1 else 0.5)

    def y(count: int) -> float:
        return BOTTOM - (BOTTOM - TOP) * count / top

    apart = ceil(points / ((RIGHT - LEFT) // _LABEL_WIDTH)) or 1
    step = ceil(points / MOST_ROWS) or 1
    return Plot(
        tuple(
            Line(name, colour, dash, tuple((x(at), y(count)) for at, count in enumerate(counts)), sum(counts))
            for (name, colour, counts), dash in zip(series, cycle(_DASHES), strict=False)
        ),
        tuple((y(count), count) for count in (0, top // 2, top)),
        tuple((x(at), labels[at]) for at in range(0, points, apart)),
        tuple(
            (labels[at], tuple(sum(counts[at : at + step]) for _, _, counts in series)) for at in range(0, points, step)
        ),
    )


def _top(highest: int) -> int:
    """Return an even number for the upper edge of the plot."""
    highest = max(highest, 2)
    power: int = 10 ** (len(str(highest)) - 1)
    return next(top for factor in (1, 2, 4, 6, 8, 10) if (top := factor * power) >= highest)
