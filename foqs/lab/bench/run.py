"""Runs interleaved rounds of every workload and computes medians with their spread, and ratios.

Compared workloads alternate within a round, because the speed of a machine drifts. A ratio is the median of the ratios
of all rounds.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from foqs.lab.bench import rivals
from foqs.lab.bench.raw import raw_bound
from foqs.lab.bench.rig import Rig
from foqs.lab.bench.workloads import Shape, cycle, drain, enqueue_only, latency

Step = Callable[[str], None]
"""Called with the name of the next measurement, for a progress bar."""


@dataclass(slots=True)
class Plan:
    rounds: int
    shape: Shape
    single: Shape
    backlog: int
    delayed: int
    latency_rounds: int
    workloads: tuple[str, ...]
    limit: bool
    compare: bool

    def steps(self) -> int:
        """How many measurements there will be."""
        each = {"cycle": 1, "single": 1, "enqueue": 1, "drain": 2, "latency": 1}
        count = sum(each[name] for name in self.workloads) + self.limit
        return self.rounds * (count + 3 * self.compare)


@dataclass(slots=True)
class Figures:
    """All values of all rounds, by name; units in the names."""

    database: str
    version: str
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)

    def ratio(self, name: str, over: str) -> list[float]:
        return [a / b for a, b in zip(self.values[name], self.values[over], strict=True)]

    def as_json(self) -> dict[str, Any]:
        return {
            "database": self.database,
            "version": self.version,
            "python": platform.python_version(),
            "median": {name: median(values) for name, values in self.values.items()},
            "rounds": self.values,
        }


def measure(rig: Rig, plan: Plan, step: Step) -> Figures:
    figures = Figures(rig.database, rig.version)
    rig.start_host()
    for _ in range(plan.rounds):
        if plan.limit:
            step("raw bound")
            figures.add("raw_items_per_s", raw_bound(rig.urls, plan.shape.items, plan.shape.payload_bytes))
        if "cycle" in plan.workloads:
            step("full cycle, batches")
            figures.add("cycle_items_per_s", cycle(rig, plan.shape))
        if "single" in plan.workloads:
            step("full cycle, single items")
            figures.add("single_items_per_s", cycle(rig, plan.single))
        if "enqueue" in plan.workloads:
            step("enqueue only")
            figures.add("enqueue_items_per_s", enqueue_only(rig, plan.shape))
        if plan.compare:
            _compare(rig, plan, figures, step)
        if "latency" in plan.workloads:
            step("latency")
            _latency(rig, plan, figures)
        if "drain" in plan.workloads:
            _drain(rig, plan, figures, step)
    _ratios(plan, figures)
    return figures


def _compare(rig: Rig, plan: Plan, figures: Figures, step: Step) -> None:
    if rig.database != "sqlite":
        step("SKIP LOCKED, batches")
        figures.add("skip_locked_items_per_s", rivals.skip_locked(rig.urls[0], plan.shape))
        step("SKIP LOCKED, single items")
        figures.add("skip_locked_single_items_per_s", rivals.skip_locked(rig.urls[0], plan.single))
    step("beanstalkd, single items")
    figures.add("beanstalkd_items_per_s", rivals.beanstalkd(plan.single))


def _latency(rig: Rig, plan: Plan, figures: Figures) -> None:
    found = latency(rig, plan.latency_rounds)
    for name, (p50, p99) in (
        ("commit", found.commit),
        ("enqueue", found.enqueue),
        ("delivery", found.delivery),
    ):
        figures.add(f"{name}_p50_ms", p50)
        figures.add(f"{name}_p99_ms", p99)


def _drain(rig: Rig, plan: Plan, figures: Figures, step: Step) -> None:
    shape = Shape(plan.backlog, plan.shape.batch, plan.shape.producers, plan.shape.consumers)
    step(f"drain {plan.backlog:,}")
    plain = drain(rig, shape)
    figures.add("drain_items_per_s", plain.rate)
    figures.add("drain_first_over_last_tenth", plain.tenths[0] / plain.tenths[-1])
    step(f"drain {plan.backlog:,} beside {plan.delayed:,} delayed")
    beside = drain(rig, shape, plan.delayed)
    figures.add("drain_beside_delayed_items_per_s", beside.rate)
    figures.add("drain_beside_over_plain", beside.rate / plain.rate)
    figures.add("host_peak_rss_bytes", float(max(plain.rss_bytes, beside.rss_bytes)))


def _ratios(plan: Plan, figures: Figures) -> None:
    pairs = [
        ("cycle_over_raw", "cycle_items_per_s", "raw_items_per_s"),
        ("single_over_raw", "single_items_per_s", "raw_items_per_s"),
        ("single_over_beanstalkd", "single_items_per_s", "beanstalkd_items_per_s"),
        ("cycle_over_skip_locked", "cycle_items_per_s", "skip_locked_items_per_s"),
        ("single_over_skip_locked", "single_items_per_s", "skip_locked_single_items_per_s"),
        ("enqueue_over_commit_p50", "enqueue_p50_ms", "commit_p50_ms"),
        ("delivery_over_commit_p50", "delivery_p50_ms", "commit_p50_ms"),
        ("enqueue_p99_over_commit_p50", "enqueue_p99_ms", "commit_p50_ms"),
        ("delivery_p99_over_commit_p50", "delivery_p99_ms", "commit_p50_ms"),
    ]
    for name, over, under in pairs:
        if over in figures.values and under in figures.values:
            figures.values[name] = figures.ratio(over, under)


def show(figures: Figures, console: Console) -> None:
    """Prints every figure's median, minimum and maximum over the rounds."""
    table = Table(title=f"foqs bench on {figures.database} {figures.version}, Python {platform.python_version()}")
    table.add_column("figure")
    for column in ("median", "min", "max"):
        table.add_column(column, justify="right")
    for name, values in figures.values.items():
        table.add_row(name, *(_number(name, value) for value in (median(values), min(values), max(values))))
    console.print(table)


def _number(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return f"{value / 1e6:,.0f} MB"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
