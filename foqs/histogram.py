"""Counts of values by size: plain integers that one thread changes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)
ROWS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0)


class Histogram:
    """`counts[i]` values were at most `bounds[i]` and above the bound before; the last ones were above all bounds.
    `total` is their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` rise."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> Histogram:
        """Return the current counts."""
        copied = Histogram(self.bounds)
        copied.counts, copied.total = self.counts.copy(), self.total
        return copied

    def __repr__(self) -> str:
        return f"Histogram({sum(self.counts)} values, together {self.total:g})"
