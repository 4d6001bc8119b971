"""Batches of items with a feature, over batches of plain items on the same host: what the feature costs its items."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from statistics import median
from typing import Any

from rich.console import Console

from foqs.client import Client
from foqs_lab.bench import load
from foqs_lab.bench.clients import SHAPES, Measured, PythonClient, Run, measure
from foqs_lab.bench.kinds import EVENTS, SETTINGS, Kind, keeping, topic_of
from foqs_lab.bench.load import Load
from foqs_lab.bench.machine import table
from foqs_lab.bench.rig import Rig

_KEEP_MS = 60_000
_BATCHES = 100
_PARTS = ("host", "database", "clients")


@dataclass(frozen=True, slots=True)
class Runs:
    """Each round of each kind of items. The kinds alternate within a round."""

    items: int
    runs: dict[Kind, list[Measured]]

    @property
    def first(self) -> Kind:
        return next(iter(self.runs))

    def over_first(self, kind: Kind) -> list[float]:
        """Return the rate over that of the first kind in each round."""
        pairs = zip(self.runs[kind], self.runs[self.first], strict=True)
        return [one.items_per_s / first.items_per_s for one, first in pairs]

    def as_json(self) -> dict[str, Any]:
        return {
            kind: {
                "items_per_s": [one.items_per_s for one in runs],
                f"over_{self.first}": self.over_first(kind),
                "cpu_us": [one.cpu_us for one in runs],
            }
            for kind, runs in self.runs.items()
        }

    def show(self, console: Console) -> None:
        """Print the median of each figure, and the spread of the ratios."""
        parts = [part for part in _PARTS if part in self.runs[self.first][0].cpu_us]  # SQLite is in the host
        columns = ("items/s", f"over {self.first}", "min to max", *(f"{part} us" for part in parts))
        shown = table(f"foqs-lab bench features, {self.items:,} items in batches of 100", "items", *columns)
        for kind, runs in self.runs.items():
            ratios = self.over_first(kind)
            cpu = [f"{median(one.cpu_us[part] for one in runs):.1f}" for part in parts]
            rate, spread = median(one.items_per_s for one in runs), f"{min(ratios):.2f} to {max(ratios):.2f}"
            shown.add_row(kind, f"{rate:,.0f}", f"{median(ratios):.2f}", spread, *cpu)
        console.print(shown)


def measure_features(
    rig: Rig, rounds: int, items: int, step: Callable[[str], None], kinds: Sequence[Kind], *, backlog: bool
) -> Runs:
    """Enqueue, dequeue and ack items of each kind; of a `backlog`, only dequeues and acks are measured, after a restart
    of the host. A first round, which is not counted, warms the host."""
    rig.start_host()
    with Client(f"127.0.0.1:{rig.port}", SETTINGS.ns, timeout_ms=60_000) as client:
        client.put_settings({**SETTINGS.entries, **keeping(_KEEP_MS), **EVENTS})
    runs: dict[Kind, list[Measured]] = {kind: [] for kind in kinds}
    numbers = count()
    for number in range(-1, rounds):
        for kind in kinds if number % 2 else reversed(kinds):
            step(f"{kind}, round {number + 1} of {rounds}")
            measured = _measured(rig, kind, items if number >= 0 else 2_000, numbers, backlog=backlog)
            if number >= 0:
                runs[kind].append(measured)
    return Runs(items, runs)


def _measured(rig: Rig, kind: Kind, items: int, numbers: Iterator[int], *, backlog: bool) -> Measured:
    shape = replace(SHAPES["cycle"], items=items)
    part = Load(rig.port, topic_of(kind, next(numbers)), items, shape.producers, shape.batch, kind=kind)
    part = replace(part, payload_bytes=shape.payload_bytes, seed=time.monotonic_ns())
    if kind in (Kind.BATCH, Kind.BATCHES):
        with Client(f"127.0.0.1:{rig.port}", SETTINGS.ns) as client:
            part = replace(part, batches=[client.create_batch() for _ in range(_BATCHES)])
    works = [load.produce, load.consume]
    if backlog:
        load.produce(part)
        rig.restart_host()
        works, part = [load.consume], replace(part, port=rig.port)
    measured = measure([PythonClient(partial(_loading, work, part)) for work in works], items, rig.servers())
    if part.batches:
        with Client(f"127.0.0.1:{rig.port}", SETTINGS.ns) as client:
            for batch in part.batches:
                client.close_batch(batch)
    return measured


def _loading(work: Callable[[Load], object], part: Load) -> Run:
    def run() -> list[float]:
        work(part)
        return []

    return run
