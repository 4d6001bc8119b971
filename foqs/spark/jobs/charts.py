"""Small charts as inline SVG: no script, no external resource, and text for screen readers."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from foqs.spark.jobs.words import number, short_number

_WIDTH, _HEIGHT = 460, 190
_TOP, _BOTTOM = 20, 24


def bars(title: str, labels: Sequence[str], counts: Sequence[int], colour: str) -> str:
    """Draw a histogram; a screen reader reads `title`. `colour` is a class of the page."""
    highest = max(counts, default=0) or 1
    step = _WIDTH / max(len(counts), 1)
    room = _HEIGHT - _TOP - _BOTTOM
    floor = _HEIGHT - _BOTTOM
    # A label needs about 46 units: with more bars, only every second or third has a label.
    every = max(1, -(-46 // int(max(step, 1))))
    drawn = [f'<line class="axis" x1="0" x2="{_WIDTH}" y1="{floor}" y2="{floor}"/>']
    for position, (label, count) in enumerate(zip(labels, counts, strict=True)):
        height = _height(count, highest, room)
        left, middle = position * step, (position + 0.5) * step
        drawn.append(
            f'<g><title>{escape(label)}: {number(count)}</title><rect class="{colour}" x="{left + step * 0.12:.1f}" '
            f'y="{floor - height:.1f}" width="{step * 0.76:.1f}" height="{height:.1f}" rx="1.5"/></g>'
        )
        if count and step >= 22:
            drawn.append(_text(middle, floor - height - 5, short_number(count), "value"))
        if position % every == 0:
            drawn.append(_text(middle, _HEIGHT - 7, label, "label"))
    return _svg(title, _WIDTH, _HEIGHT, drawn, "chart")


def split(title: str, parts: Sequence[tuple[str, int]], whole: int, width: int = 100, height: int = 10) -> str:
    """Draw the parts of `whole` in one bar: pairs of a class and a count."""
    drawn, left = [f'<rect class="empty" x="0" y="0" width="{width}" height="{height}"/>'], 0.0
    for colour, count in parts:
        part = width * count / whole if whole else 0.0
        if count:
            part = max(part, 1.0)  # a small part stays visible
            drawn.append(f'<rect class="{colour}" x="{left:.1f}" y="0" width="{part:.1f}" height="{height}"/>')
        left += part
    return _svg(title, width, height, drawn, "spark")


def spark(title: str, counts: Sequence[int], colour: str, width: int = 72, height: int = 20) -> str:
    """Draw a histogram as small as a word."""
    highest = max(counts, default=0) or 1
    step = width / max(len(counts), 1)
    drawn = [f'<line class="axis" x1="0" x2="{width}" y1="{height - 0.5}" y2="{height - 0.5}"/>']
    for position, count in enumerate(counts):
        if tall := _height(count, highest, height - 1):
            drawn.append(
                f'<rect class="{colour}" x="{position * step + 0.5:.1f}" y="{height - 1 - tall:.1f}" '
                f'width="{step - 1:.1f}" height="{tall:.1f}"/>'
            )
    return _svg(title, width, height, drawn, "spark")


def _height(count: int, highest: int, room: float) -> float:
    """Return a height; a count above 0 is always visible."""
    return max(1.5, room * count / highest) if count else 0.0


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(words)}</text>'


def _svg(title: str, width: int, height: int, drawn: Sequence[str], kind: str) -> str:
    fit = "xMidYMid" if kind == "chart" else "none"
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'preserveAspectRatio="{fit}" role="img" aria-label="{escape(title)}">{"".join(drawn)}</svg>'
    )
