"""Runs interleaved rounds of every workload and computes medians with their spread, and ratios.

Compared workloads alternate within a round, because the speed of a machine drifts. A ratio is the median of the ratios
of all rounds.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from foqs_lab.bench import callers
from foqs_lab.bench.clients import SHAPES, Measured, Shape
from foqs_lab.bench.machine import LOUD_CORES, OtherProcesses, marked
from foqs_lab.bench.raw import raw_bound
from foqs_lab.bench.rig import Rig
from foqs_lab.bench.rivals import Rival, Rivals
from foqs_lab.bench.rivals.beanstalkd import Beanstalkd
from foqs_lab.bench.workloads import called, cycle, drain, enqueue_only, latency

Step = Callable[[str], None]
"""Called with the name of the next measurement, for a progress bar."""

COMPARED = ("cycle", "single", "callers")
"""The workloads that rivals run too."""
_TITLES = {"cycle": "batches", "single": "single items", "callers": "synchronous callers"}
_STEPS = {"callers": 2, "drain": 2}


@dataclass(frozen=True, slots=True)
class Plan:
    """The shape of each workload. `limit`: measure the raw bound too."""

    rounds: int
    shapes: Mapping[str, Shape]
    limit: bool = False

    def steps(self, rivals: Rivals) -> int:
        """Return the number of measurements."""
        count = sum(_STEPS.get(name, 1) for name in self.shapes) + self.limit
        count += sum(_takes(rival, name) for rival in rivals.running for name in self.compared())
        return self.rounds * count

    def compared(self) -> list[str]:
        return [name for name in COMPARED if name in self.shapes]


@dataclass(slots=True)
class Figures:
    """All values of all rounds, by name; units in the names. `versions` and `missing` are of rivals, by name.

    `cores`: what other processes used in each round.
    """

    database: str
    version: str
    plan: dict[str, Any] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)
    cores: list[float] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)

    def add_run(self, name: str, run: Measured, *, parts: bool) -> None:
        """Add the rate, the processor time (also of each part of the system) and the time of an enqueue."""
        self.add(f"{name}_items_per_s", run.items_per_s)
        self.add(f"{name}_cpu_us", sum(run.cpu_us.values()))
        for part, used_us in run.cpu_us.items() if parts else ():
            self.add(f"{name}_{part}_cpu_us", used_us)
        if run.enqueue_p50_ms is not None:
            self.add(f"{name}_enqueue_p50_ms", run.enqueue_p50_ms)

    def drop(self, prefix: str) -> None:
        self.values = {name: values for name, values in self.values.items() if not name.startswith(prefix)}

    def ratio(self, name: str, over: str) -> list[float]:
        return [a / b for a, b in zip(self.values[name], self.values[over], strict=True)]

    def as_json(self) -> dict[str, Any]:
        return {
            "database": self.database,
            "version": self.version,
            "python": platform.python_version(),
            "machine": {"system": platform.platform(), "cores": os.cpu_count()},
            "plan": self.plan,
            "versions": self.versions,
            "missing": self.missing,
            "median": {name: median(values) for name, values in self.values.items()},
            "rounds": self.values,
            "cores_of_other_processes": self.cores,
        }


def measure(rig: Rig, plan: Plan, rivals: Rivals, step: Step) -> Figures:
    versions = {rival.name: rival.version for rival in rivals.running}
    figures = Figures(rig.database, rig.version, asdict(plan), versions=versions, missing=dict(rivals.missing))
    rig.start_host()
    meter = OtherProcesses()
    for _ in range(plan.rounds):
        _round(rig, plan, rivals, figures, step)
        figures.cores.append(meter.cores())
    _ratios(figures)
    return figures


def _round(rig: Rig, plan: Plan, rivals: Rivals, figures: Figures, step: Step) -> None:
    if plan.limit:
        step("raw bound")
        batches = plan.shapes.get("cycle", SHAPES["cycle"])
        figures.add("raw_items_per_s", raw_bound(rig.urls, batches.items, batches.payload_bytes))
    for workload in plan.compared():
        _foqs(rig, plan, workload, figures, step)
        for rival in list(rivals.running):
            if _takes(rival, workload):
                _rival(rival, rivals, plan, workload, figures, step)
    if "enqueue" in plan.shapes:
        step("enqueue only")
        figures.add("enqueue_items_per_s", enqueue_only(rig, plan.shapes["enqueue"]))
    if "latency" in plan.shapes:
        step("latency")
        _latency(rig, plan, figures)
    if "drain" in plan.shapes:
        _drain(rig, plan.shapes["drain"], figures, step)


def _foqs(rig: Rig, plan: Plan, workload: str, figures: Figures, step: Step) -> None:
    step(f"foqs, {_TITLES[workload]}")
    shape = plan.shapes[workload]
    if workload != "callers":
        figures.add_run(workload, cycle(rig, shape), parts=True)
        return
    figures.add_run(workload, called(rig, shape, callers.library), parts=True)
    step("foqs, synchronous callers without the client library")
    figures.add_run("callers_lean", called(rig, shape, callers.lean), parts=True)


def _takes(rival: Rival, workload: str) -> bool:
    return workload != "cycle" or rival.has_batches


def _rival(rival: Rival, rivals: Rivals, plan: Plan, workload: str, figures: Figures, step: Step) -> None:
    """A rival that fails is left out from then on, with all of its figures."""
    step(f"{rival.title}, {_TITLES[workload]}")
    run = rival.measure_callers if workload == "callers" else rival.measure_pair
    try:
        measured = run(plan.shapes[workload])
    except RuntimeError as error:
        rivals.running.remove(rival)
        figures.missing[rival.name] = str(error)
        figures.drop(rival.name)
    else:
        figures.add_run(figure_of(rival.name, workload), measured, parts=False)


def figure_of(rival: str, workload: str) -> str:
    """Begins the names of a rival's figures. The bare name is of batches, or of single items if it has no batches."""
    bare = "single" if rival == Beanstalkd.name else "cycle"
    return rival if workload == bare else f"{rival}_{workload}"


def _latency(rig: Rig, plan: Plan, figures: Figures) -> None:
    found = latency(rig, plan.shapes["latency"].items)
    for name, (p50, p99) in (
        ("commit", found.commit),
        ("enqueue", found.enqueue),
        ("delivery", found.delivery),
    ):
        figures.add(f"{name}_p50_ms", p50)
        figures.add(f"{name}_p99_ms", p99)


def _drain(rig: Rig, shape: Shape, figures: Figures, step: Step) -> None:
    step(f"drain {shape.items:,}")
    plain = drain(rig, replace(shape, delayed=0))
    figures.add("drain_items_per_s", plain.rate)
    figures.add("drain_first_over_last_tenth", plain.tenths[0] / plain.tenths[-1])
    step(f"drain {shape.items:,} beside {shape.delayed:,} delayed")
    beside = drain(rig, shape)
    figures.add("drain_beside_delayed_items_per_s", beside.rate)
    figures.add("drain_beside_over_plain", beside.rate / plain.rate)
    figures.add("host_peak_rss_bytes", float(max(plain.rss_bytes, beside.rss_bytes)))


def _ratios(figures: Figures) -> None:
    pairs = [
        *((f"{name}_over_raw", f"{name}_items_per_s", "raw_items_per_s") for name in (*COMPARED, "callers_lean")),
        *(
            (f"{name}_over_{rival}", f"{name}_items_per_s", f"{figure_of(rival, workload)}_items_per_s")
            for rival in figures.versions
            for name, workload in (*zip(COMPARED, COMPARED, strict=True), ("callers_lean", "callers"))
        ),
        ("enqueue_over_commit_p50", "enqueue_p50_ms", "commit_p50_ms"),
        ("delivery_over_commit_p50", "delivery_p50_ms", "commit_p50_ms"),
        ("enqueue_p99_over_commit_p50", "enqueue_p99_ms", "commit_p50_ms"),
        ("delivery_p99_over_commit_p50", "delivery_p99_ms", "commit_p50_ms"),
    ]
    for name, over, under in pairs:
        if over in figures.values and under in figures.values:
            figures.values[name] = figures.ratio(over, under)


def show(document: Mapping[str, Any], console: Console) -> None:
    """Print the median, minimum and maximum of each figure of `Figures.as_json`.

    For each round it prints the ratios, and the cores of other processes.
    """
    title = f"foqs-lab bench on {document['database']} {document['version']}, Python {document['python']}"
    table = Table(title=title, caption=f"* other processes used more than {LOUD_CORES} cores in this round")
    table.add_column("figure")
    for column in ("median", "min", "max"):
        table.add_column(column, justify="right")
    table.add_column("rounds")
    cores = document["cores_of_other_processes"]
    for name, values in {**document["rounds"], "cores of other processes": cores}.items():
        spread = (_number(name, value) for value in (median(values), min(values), max(values)))
        rounds = marked(values, cores, partial(_number, name)) if "_over_" in name or values is cores else ""
        table.add_row(name, *spread, rounds)
    console.print(table)


def _number(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return f"{value / 1e6:,.0f} MB"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
