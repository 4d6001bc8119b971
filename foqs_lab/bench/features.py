"""Batches of items with a feature, over batches of plain items on the same host: what the feature costs its items."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from statistics import median
from typing import Any

from rich.console import Console

from foqs.client import Client
from foqs_lab.bench import load
from foqs_lab.bench.clients import SHAPES, Measured, PythonClient, Run, measure
from foqs_lab.bench.kinds import SETTINGS, Kind, keeping, topic_of
from foqs_lab.bench.load import Load
from foqs_lab.bench.machine import table
from foqs_lab.bench.rig import Rig

_KEEP_MS = 60_000
_PARTS = ("host", "database", "clients")


@dataclass(frozen=True, slots=True)
class Runs:
    """Each round of each kind of items. The kinds alternate within a round."""

    items: int
    runs: dict[Kind, list[Measured]]

    def over_plain(self, kind: Kind) -> list[float]:
        """Return the rate over that of plain items in each round."""
        pairs = zip(self.runs[kind], self.runs[Kind.PLAIN], strict=True)
        return [one.items_per_s / plain.items_per_s for one, plain in pairs]

    def as_json(self) -> dict[str, Any]:
        return {
            kind: {
                "items_per_s": [one.items_per_s for one in runs],
                "over_plain": self.over_plain(kind),
                "cpu_us": [one.cpu_us for one in runs],
            }
            for kind, runs in self.runs.items()
        }

    def show(self, console: Console) -> None:
        """Print the median of each figure, and the spread of the ratios."""
        columns = ("items/s", "over plain", "min to max", *(f"{part} us" for part in _PARTS))
        shown = table(f"foqs-lab bench features, {self.items:,} items in batches of 100", "items", *columns)
        for kind, runs in self.runs.items():
            ratios = self.over_plain(kind)
            cpu = [f"{median(one.cpu_us[part] for one in runs):.1f}" for part in _PARTS]
            rate, spread = median(one.items_per_s for one in runs), f"{min(ratios):.2f} to {max(ratios):.2f}"
            shown.add_row(kind, f"{rate:,.0f}", f"{median(ratios):.2f}", spread, *cpu)
        console.print(shown)


def measure_features(rig: Rig, rounds: int, items: int, step: Callable[[str], None]) -> Runs:
    """Enqueue, dequeue and ack items of each kind. A first round, which is not counted, warms the host."""
    rig.start_host()
    with Client(f"127.0.0.1:{rig.port}", SETTINGS.ns, timeout_ms=60_000) as client:
        client.put_settings({**SETTINGS.entries, **keeping(_KEEP_MS)})
    runs: dict[Kind, list[Measured]] = {kind: [] for kind in Kind}
    numbers = count()
    for number in range(-1, rounds):
        for kind in (*Kind,) if number % 2 else reversed((*Kind,)):
            step(f"{kind}, round {number + 1} of {rounds}")
            measured = _cycle(rig, kind, items if number >= 0 else 2_000, numbers)
            if number >= 0:
                runs[kind].append(measured)
    return Runs(items, runs)


def _cycle(rig: Rig, kind: Kind, items: int, numbers: Iterator[int]) -> Measured:
    shape = replace(SHAPES["cycle"], items=items)
    part = Load(rig.port, topic_of(kind, next(numbers)), items, shape.producers, shape.batch, kind=kind)
    part = replace(part, payload_bytes=shape.payload_bytes, seed=time.monotonic_ns())
    clients = [PythonClient(partial(_loading, work, part)) for work in (load.produce, load.consume)]
    return measure(clients, items, rig.servers())


def _loading(work: Callable[[Load], object], part: Load) -> Run:
    def run() -> list[float]:
        work(part)
        return []

    return run
