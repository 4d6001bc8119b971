"""Tables and a plot of what `foqs-lab bench compare --json` has printed: all systems side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from statistics import median
from typing import Any

from foqs_lab.bench.clients import Shape
from foqs_lab.bench.machine import LOUD_CORES
from foqs_lab.bench.rivals import RIVALS
from foqs_lab.bench.rounds import COMPARED, figure_of

Document = Mapping[str, Any]

AIMS: Mapping[str, tuple[str, float]] = {
    "cycle_over_raw": (">=", 0.5),
    "single_over_raw": (">=", 0.095),
    "cycle_over_graphile_worker": (">=", 2.5),
    "cycle_over_pgmq": (">=", 1.3),
    "callers_over_skip_locked": (">=", 1.7),
    "callers_over_bullmq": (">=", 1.0),
    "enqueue_over_commit_p50": ("<=", 1.8),
    "delivery_over_commit_p50": ("<=", 2.5),
}
"""Ratios that docs/why/figures.md must show."""
_PARTS = ("host", "database", "clients")


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure of all rounds."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{number(self.median)} ({number(self.low)} to {number(self.high)})"


@dataclass(frozen=True, slots=True)
class System:
    """A row: its figures begin with the names in `figures`, by workload."""

    title: str
    version: str
    figures: Mapping[str, str]
    own: bool = False


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2g}" if abs(value) < 10 else f"{value:.0f}"


def spread(document: Document, name: str) -> Spread | None:
    values = document["rounds"].get(name)
    return Spread(median(values), min(values), max(values)) if values else None


def columns(document: Document) -> dict[str, str]:
    """Return the headings of the workloads that were measured."""
    shapes = {name: Shape(**shape) for name, shape in document["plan"]["shapes"].items()}
    return {name: _heading(name, shapes[name]) for name in COMPARED if f"{name}_items_per_s" in document["rounds"]}


def _heading(workload: str, shape: Shape) -> str:
    if workload == "cycle":
        return f"batches of {shape.batch}"
    if workload == "single":
        return f"single calls, {shape.producers + shape.consumers} connections"
    return f"{shape.producers} synchronous callers"


def systems(document: Document) -> list[System]:
    """Return foqs first, then every rival that was measured."""
    found = [
        System("foqs", "", {name: name for name in COMPARED}, own=True),
        System("foqs, lean client", "", {"callers": "callers_lean"}, own=True),
    ]
    for name, version in document["versions"].items():
        found.append(System(RIVALS[name].title, version, {work: figure_of(name, work) for work in COMPARED}))
    measured = document["rounds"]
    return [each for each in found if any(f"{name}_items_per_s" in measured for name in each.figures.values())]


def markdown(document: Document) -> str:
    """Rates, processor time and ratios, each a table, and the rivals that are missing."""
    parts = ["\n".join(_rates(document)), "\n".join(_processor_time(document)), "\n".join(_ratios(document))]
    cores = document["cores_of_other_processes"]
    loud = f"{sum(one > LOUD_CORES for one in cores)} of {len(cores)} rounds"
    parts.append(f"Other processes used up to {max(cores):.2f} cores in a round; more than {LOUD_CORES} in {loud}.")
    parts += [f"Not measured: {name} ({reason})." for name, reason in document["missing"].items()]
    return "\n\n".join(parts) + "\n"


def _rates(document: Document) -> Iterator[str]:
    headings = columns(document)
    yield _row(["cycles a second", *headings.values(), "an enqueue's p50 among the callers, ms"])
    yield _row(["---"] * (len(headings) + 2))
    raw = spread(document, "raw_items_per_s")
    if raw is not None:
        yield _row(["raw bound", str(raw), *[""] * len(headings)])
    for system in systems(document):
        rates = [spread(document, f"{system.figures.get(name)}_items_per_s") for name in headings]
        enqueue = spread(document, f"{system.figures['callers']}_enqueue_p50_ms")
        title = f"{system.title} ({system.version})" if system.version else system.title
        yield _row([title, *(_cell(value) for value in (*rates, enqueue))])


def _processor_time(document: Document) -> Iterator[str]:
    headings = columns(document)
    yield _row(["processor time, us an item", *headings.values()])
    yield _row(["---"] * (len(headings) + 1))
    for system in systems(document):
        cells = [_cell(spread(document, f"{system.figures.get(name)}_cpu_us")) for name in headings]
        yield _row([system.title, *cells])
        for part in _PARTS:
            cells = [_cell(spread(document, f"{system.figures.get(name)}_{part}_cpu_us")) for name in headings]
            if any(cells):
                yield _row([f"{system.title}: {part}", *cells])


def _ratios(document: Document) -> Iterator[str]:
    yield _row(["ratio within a round", "median", "min to max", "aim"])
    yield _row(["---"] * 4)
    for name in document["rounds"]:
        found = spread(document, name)
        if "_over_" in name and found is not None:
            yield _row(
                [f"`{name}`", _ratio(found.median), f"{_ratio(found.low)} to {_ratio(found.high)}", _aim(name, found)]
            )


def _aim(name: str, found: Spread) -> str:
    if name not in AIMS:
        return ""
    sign, aim = AIMS[name]
    reached = found.median >= aim if sign == ">=" else found.median <= aim
    return f"{sign} {aim:g}" + ("" if reached else ": missed")


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value < 0.2 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _cell(value: Spread | None) -> str:
    return "" if value is None else str(value)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("  ", " ")


# ------------------------------------------------------------------------------------- the plot

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
    """Yield the name, the rate, and True for foqs; the fastest first."""
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
