"""Workers of libraries of tasks, each with the same backlog of tasks that do nothing: items a second of one process."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Self

from rich.console import Console

from foqs_lab.bench.clients import Measured
from foqs_lab.bench.machine import LOUD, OtherProcesses, cpu_s, marked, table
from foqs_lab.bench.noop.tally import Tally, environment, read
from foqs_lab.bench.task_queues import FoqsCoroutines, FoqsThreads, TaskQueue, TaskQueues
from foqs_lab.servers.process import ServerProcess, wait_until

AIMS: Mapping[tuple[str, str], float] = {
    (FoqsCoroutines.name, "procrastinate"): 3.0,
    (FoqsThreads.name, "celery_threads"): 3.0,
    (FoqsThreads.name, "celery_prefork"): 3.0,
    (FoqsThreads.name, "dramatiq"): 1.0,
}
"""The least rate over that of a rival which works in the same way."""
_LOOK_S = 0.005
_START_S = 60.0
_LIMIT_OF_ITEM_S = 0.05
_STOP_MS = 30_000


class WorkerFailed(Exception):
    """The worker of a queue, or the program that stores its backlog, ended or took too long."""


@dataclass(slots=True)
class Figures:
    """The runs of each queue, by round."""

    items: int
    titles: dict[str, str]
    versions: dict[str, str]
    missing: dict[str, str]
    runs: dict[str, list[Measured]] = field(default_factory=dict)
    cores: list[float] = field(default_factory=list)

    def ratios(self) -> dict[str, list[float]]:
        """Return the rate of foqs over the rate of each other queue in each round."""
        own = [name for name in self.runs if name in (FoqsCoroutines.name, FoqsThreads.name)]
        return {
            f"{one}_over_{other}": [
                mine.items_per_s / its.items_per_s for mine, its in zip(self.runs[one], self.runs[other], strict=True)
            ]
            for one in own
            for other in self.runs
            if other not in own and (not other.endswith("_before") or other == f"{one}_before")
        }

    def as_json(self) -> dict[str, Any]:
        return {
            "python": platform.python_version(),
            "machine": {"system": platform.platform(), "cores": os.cpu_count()},
            "items": self.items,
            "versions": self.versions,
            "missing": self.missing,
            "median": {name: median(values) for name, values in self.ratios().items()},
            "ratios": self.ratios(),
            "items_per_s": {name: [run.items_per_s for run in runs] for name, runs in self.runs.items()},
            "cpu_us": {name: [run.cpu_us for run in runs] for name, runs in self.runs.items()},
            "cores_of_other_processes": self.cores,
        }

    def show(self, console: Console) -> None:
        """Print the rates and the processor time of each queue, and the ratios of each round."""
        columns = ("items/s", "min to max", "worker us", "its servers us")
        shown = table(f"foqs-lab bench tasks, {self.items:,} items", "worker", *columns)
        for name, runs in self.runs.items():
            rates = [run.items_per_s for run in runs]
            worker = median(run.cpu_us["worker"] for run in runs)
            servers = median(sum(run.cpu_us.values()) - run.cpu_us["worker"] for run in runs)
            version = f" ({self.versions[name]})" if self.versions.get(name) else ""
            spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
            shown.add_row(
                self.titles[name] + version, f"{median(rates):,.0f}", spread, f"{worker:,.0f}", f"{servers:,.0f}"
            )
        console.print(shown)
        shown = table("ratios of one round", "ratio", "median", "min", "max", "aim", caption=LOUD)
        shown.add_column("rounds")
        aims = {f"{one}_over_{other}": aim for (one, other), aim in AIMS.items()}
        for name, ratios in self.ratios().items():
            found = median(ratios)
            aim = f">= {aims[name]:g}" + (": missed" if found < aims[name] else "") if name in aims else ""
            cells = [f"{value:.2f}" for value in (found, min(ratios), max(ratios))]
            shown.add_row(name, *cells, aim, marked(ratios, self.cores, "{:.2f}".format))
        console.print(shown)


def measure(queues: TaskQueues, rounds: int, items: int, step: Callable[[str], None]) -> Figures:
    """Measure all queues in turn in each round; every second round begins with the last one. A rival that fails is left
    out from then on, with all of its figures."""
    titles = {queue.name: queue.title for queue in queues.running}
    versions = {queue.name: queue.version for queue in queues.running}
    figures = Figures(items, titles, versions, dict(queues.missing), {name: [] for name in titles})
    meter = OtherProcesses()
    for number in range(rounds):
        for queue in list(queues.running) if number % 2 == 0 else list(reversed(queues.running)):
            step(f"{queue.title}, round {number + 1} of {rounds}")
            try:
                figures.runs[queue.name].append(worked(queue, items, f"bench-{number}-{queue.name}"))
            except WorkerFailed as error:
                if queue.name.startswith("foqs"):
                    raise
                queues.running.remove(queue)
                figures.missing[queue.name] = str(error)
                del figures.runs[queue.name]
        figures.cores.append(meter.cores())
    return figures


def worked(queue: TaskQueue, items: int, topic: str) -> Measured:
    """Store a backlog of `items`, then start a worker. Return the rate between its first and its last completion, and
    the processor time in between. Raises WorkerFailed."""
    with tempfile.TemporaryDirectory(prefix="foqs-bench-") as name:
        folder = Path(name)
        tallies = folder / "tallies"
        tallies.mkdir()
        environ = {**queue.environment(), **environment(tallies), "FOQS_BENCH_QUEUE": topic}
        environ["PYTHONSAFEPATH"] = "1"  # else `python -m` prefers the packages of its working directory
        limit_s = _START_S + items * _LIMIT_OF_ITEM_S
        with _Process([queue.python, *queue.store(items)], folder / "store", environ) as storing:
            storing.wait_for_end(limit_s)
        with _Process([queue.python, *queue.work()], folder / "work", environ) as working:
            working.wait_for(lambda: read(tallies).completed > 0, _START_S)
            parts = {"worker": working.process.pid, **queue.servers()}
            before, began = {part: cpu_s(pid) for part, pid in parts.items()}, read(tallies).completed
            working.wait_for(lambda: read(tallies).completed >= items, limit_s)
            used = {part: cpu_s(pid) - before[part] for part, pid in parts.items()}
            time.sleep(_LOOK_S)
            tally = read(tallies)
    return measured(tally, items - began, used)


def measured(tally: Tally, counted: int, used_s: Mapping[str, float]) -> Measured:
    """Return the figures of a run. `used_s` is the processor time of the last `counted` items."""
    rate = (tally.completed - 1) / max(tally.last_s - tally.first_s, 1e-9)
    return Measured(rate, {part: 1e6 * seconds / max(counted, 1) for part, seconds in used_s.items()})


class _Process:
    """A program that dies with the bench. Leaving the context ends it."""

    def __init__(self, argv: Sequence[str], folder: Path, environ: Mapping[str, str]) -> None:
        folder.mkdir()
        self._argv = argv
        self.process = ServerProcess(argv, log=folder / "log", environment=environ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop(grace_ms=_STOP_MS)

    def wait_for(self, condition: Callable[[], bool], limit_s: float) -> None:
        """Raises WorkerFailed if the program ends before, or takes too long."""
        until = time.monotonic() + limit_s
        while not condition():
            if not self.process.alive or time.monotonic() > until:
                raise self._failed()
            time.sleep(_LOOK_S)

    def wait_for_end(self, limit_s: float) -> None:
        """Raises WorkerFailed if the program fails, or takes too long."""
        if not wait_until(lambda: not self.process.alive, timeout_ms=int(limit_s * 1000)):
            raise self._failed()
        if self.process.stop(grace_ms=0):
            raise self._failed()

    def _failed(self) -> WorkerFailed:
        return WorkerFailed(f"{' '.join(self._argv)} failed, or took too long:\n{self.process.log_tail()}")
