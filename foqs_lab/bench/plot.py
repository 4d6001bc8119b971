"""A plot of what `foqs bench --json` has printed: a bar for each system and workload, as SVG."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from foqs_lab.bench.report import Document, Spread, columns, number, spread, systems

_WIDTH = 860
_LEFT = 200
_RIGHT = 100
_ROW = 26
_HEAD = 40
_TITLE = 36
_FOOT = 40
_FOQS, _OTHER, _INK = "#4393c3", "#c5cad1", "#1f2328"
_TITLE_TEXT = "Items enqueued, dequeued and acked each second"


def svg(document: Document) -> str:
    """One panel for each workload, with its own scale. A line over a bar goes from the lowest to the highest round."""
    panels = [(title, list(_bars(document, name))) for name, title in columns(document).items()]
    height = sum(_HEAD + _ROW * len(bars) for _, bars in panels) + _TITLE + _FOOT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
        ' font-family="Helvetica, Arial, sans-serif" font-size="14" role="img">',
        f"<title>{_TITLE_TEXT}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    lines.append(f'<text x="16" y="28" font-size="17" font-weight="bold" fill="{_INK}">{_TITLE_TEXT}</text>')
    top = _TITLE
    for title, bars in panels:
        lines += _panel(title, bars, top)
        top += _HEAD + _ROW * len(bars)
    lines.append(f'<text x="16" y="{top + 20}" font-size="12" fill="{_INK}">{escape(_foot(document))}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _foot(document: Document) -> str:
    rounds = document["plan"]["rounds"]
    return (
        f"Median of {rounds} interleaved rounds, with the lowest and the highest. "
        f"{document['machine']['cores']} cores; foqs on {document['database']} {document['version']}."
    )


def _bars(document: Document, workload: str) -> Iterator[tuple[str, Spread, bool]]:
    """Name, rate, and whether it is foqs; the fastest first."""
    found = []
    for system in systems(document):
        rate = spread(document, f"{system.figures.get(workload)}_items_per_s")
        if rate is not None:
            found.append((system.title, rate, system.own))
    yield from sorted(found, key=lambda bar: -bar[1].median)


def _panel(title: str, bars: list[tuple[str, Spread, bool]], top: int) -> Iterator[str]:
    scale = (_WIDTH - _LEFT - _RIGHT) / max(rate.high for _, rate, _ in bars)
    yield f'<text x="16" y="{top + 26}" font-weight="bold" fill="{_INK}">{escape(title)}</text>'
    for at, (name, rate, own) in enumerate(bars):
        y = top + _HEAD + at * _ROW
        weight = ' font-weight="bold"' if own else ""
        low, high = _LEFT + rate.low * scale, _LEFT + rate.high * scale
        label = f'<text x="{_LEFT - 10}" y="{y + 14}" text-anchor="end" fill="{_INK}"{weight}>{escape(name)}</text>'
        colour = _FOQS if own else _OTHER
        yield label
        yield f'<rect x="{_LEFT}" y="{y}" width="{rate.median * scale:.1f}" height="{_ROW - 8}" fill="{colour}"/>'
        yield f'<path d="M{low:.1f} {y + 9}H{high:.1f}M{low:.1f} {y + 5}v8M{high:.1f} {y + 5}v8" stroke="{_INK}"/>'
        yield f'<text x="{high + 8:.1f}" y="{y + 14}" fill="{_INK}"{weight}>{number(rate.median)}</text>'
