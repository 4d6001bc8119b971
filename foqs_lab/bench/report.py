"""Tables of what `foqs bench --json` has printed: all systems side by side, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from foqs_lab.bench.rivals import RIVALS
from foqs_lab.bench.run import COMPARED, figure_of

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
"""Ratios that docs/benchmarks.md must show."""
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
    """The headings of the workloads that were measured."""
    plan = document["plan"]
    single = plan["single"]["producers"] + plan["single"]["consumers"]
    titles = {
        "cycle": f"batches of {plan['shape']['batch']}",
        "single": f"single calls, {single} connections",
        "callers": f"{plan['callers']['producers']} synchronous callers",
    }
    return {name: title for name, title in titles.items() if f"{name}_items_per_s" in document["rounds"]}


def systems(document: Document) -> list[System]:
    """foqs first, then every rival that was measured."""
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
