"""How long it takes to decide which host serves which shard, and how good that is. Needs no server."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from rich.console import Console

from foqs.shardmgr.assignment import Situation, balance, imbalance, place_orphans
from foqs_lab.bench.machine import table


@dataclass(slots=True)
class Case:
    """`took_ms` is one value a round. `changed`: shards that were given to a host or moved; `needed`: the fewest that
    would do, where that is known. `imbalance`: of the heaviest and the lightest host, in mean loads."""

    name: str
    changed: int = 0
    needed: int | None = None
    imbalance: float = 0.0
    took_ms: list[float] = field(default_factory=list)

    def measure(self, decide: Callable[[Situation], dict[int, str]], situation: Situation) -> dict[int, str]:
        began = time.perf_counter()
        hosts = decide(situation)
        self.took_ms.append(1000 * (time.perf_counter() - began))
        self.changed = sum(situation.current.get(shard) != host for shard, host in hosts.items())
        self.imbalance = imbalance(hosts, situation.loads, situation.takers)
        return hosts

    def as_json(self) -> dict[str, Any]:
        return {
            "changed": self.changed,
            "needed": self.needed,
            "imbalance": self.imbalance,
            "median_ms": median(self.took_ms),
            "rounds_ms": self.took_ms,
        }


@dataclass(frozen=True, slots=True)
class Cases:
    shards: int
    hosts: int
    cases: list[Case]

    def as_json(self) -> dict[str, Any]:
        return {
            "shards": self.shards,
            "hosts": self.hosts,
            "cases": {case.name: case.as_json() for case in self.cases},
        }

    def show(self, console: Console) -> None:
        """Print a line for each case: the median time with its spread, and the decision."""
        title = f"foqs-lab bench assignment, {self.shards:,} shards on {self.hosts:,} hosts"
        shown = table(title, "case", "median ms", "min", "max", "shards given", "needed", "imbalance")
        for case in self.cases:
            times = (f"{value:,.1f}" for value in (median(case.took_ms), min(case.took_ms), max(case.took_ms)))
            needed = "" if case.needed is None else f"{case.needed:,}"
            shown.add_row(case.name, *times, f"{case.changed:,}", needed, f"{case.imbalance:.3f}")
        console.print(shown)


def measure(shards: int, hosts: int, rounds: int) -> Cases:
    """Every round decides the same: a fresh cluster of equal shards, one of its hosts joins, one leaves, and loads that
    turn out to differ."""
    names = [f"host-{n:05}" for n in range(hosts)]
    nothing = Situation(dict.fromkeys(range(1, shards + 1), 1.0), {}, names)
    rng = random.Random(1)
    loads = {shard: rng.uniform(0.5, 1.5) for shard in nothing.loads}
    fresh = Case("fresh", needed=shards)
    joins = Case("one host joins", needed=shards // (hosts + 1))
    leaves = Case("one host leaves")
    differ = Case("loads differ")
    for _ in range(rounds):
        even = replace(nothing, current=fresh.measure(place_orphans, nothing))
        joins.measure(balance, replace(even, takers=[*names, "host-new"]))
        if hosts > 1:
            leaves.needed = Counter(even.current.values())[names[0]]
            leaves.measure(place_orphans, replace(even, takers=names[1:]))
        differ.measure(balance, replace(even, loads=loads))
    return Cases(shards, hosts, [case for case in (fresh, joins, leaves, differ) if case.took_ms])
