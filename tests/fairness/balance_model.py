"""Hosts that share their deliveries by start-time fair queueing, the messages between them, and the due of each
tenant. Pure."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappush, heapreplace
from itertools import combinations
from typing import Protocol

from foqs.fairness.balance import BEAT_MS, Balance, Share

TICK_MS = 50
_BEAT_TICKS = BEAT_MS // TICK_MS
_MOST_LOST = 3
ITEM = 1_000


@dataclass(frozen=True)
class Case:
    """`capacities`: deliveries per second of each host. `placement`: the hosts that have items of each tenant."""

    capacities: tuple[int, ...]
    weights: tuple[int, ...]
    placement: tuple[frozenset[int], ...]

    def tenants(self, host: int) -> list[int]:
        return [tenant for tenant, hosts in enumerate(self.placement) if host in hosts]


def due(case: Case) -> dict[int, float]:
    """Return the weighted max-min rates, from the definition: of all sets of tenants, the one whose hosts give it the
    least by weight gets all of those hosts; then the other tenants share the other hosts."""
    rates: dict[int, float] = {}
    placement = dict(enumerate(case.placement))
    while placement:
        sets = [part for size in range(1, len(placement) + 1) for part in combinations(placement, size)]
        hosts = {part: frozenset[int]().union(*(placement[tenant] for tenant in part)) for part in sets}

        def level(part: tuple[int, ...], hosts: Mapping[tuple[int, ...], frozenset[int]] = hosts) -> float:
            return sum(case.capacities[host] for host in hosts[part]) / sum(case.weights[tenant] for tenant in part)

        part = min(sets, key=lambda part: (level(part), -len(part)))
        rates.update((tenant, level(part) * case.weights[tenant]) for tenant in part)
        placement = {tenant: at - hosts[part] for tenant, at in placement.items() if tenant not in part}
    return rates


class Host:
    """Every tenant here has items at all times, those of `later` from that time in ms on. `factors` multiply the
    weights; `delivered` counts items."""

    def __init__(self, case: Case, number: int, later: Mapping[int, int]) -> None:
        self._a_tick = case.capacities[number] * TICK_MS / 1_000
        self._owed = 0.0
        self._turn = 0
        self.weights = {tenant: case.weights[tenant] for tenant in case.tenants(number)}
        self.factors: Mapping[str, float] = {}
        self._later = {tenant: at_ms for tenant, at_ms in later.items() if tenant in self.weights}
        self.delivered = {tenant: 0 for tenant in self.weights if tenant not in later}
        self.heap = [(0.0, 0, tenant) for tenant in self.delivered]

    def begin(self, now_ms: int) -> None:
        for tenant in [tenant for tenant, at_ms in self._later.items() if at_ms <= now_ms]:
            del self._later[tenant]
            self.delivered[tenant] = 0
            heappush(self.heap, (self.heap[0][0] if self.heap else 0.0, self._turn, tenant))

    def deliver(self) -> None:
        self._owed += self._a_tick if self.heap else 0.0
        while self._owed >= 1:
            self._owed -= 1
            start, _, tenant = self.heap[0]
            self._turn += 1
            self.delivered[tenant] += 1
            weight = self.weights[tenant] * self.factors.get(str(tenant), 1.0)
            heapreplace(self.heap, (start + 1 / weight, self._turn, tenant))

    def weigh(self, weights: Sequence[int]) -> None:
        """The tenants have other weights from now on: their debts have another length."""
        now = self.heap[0][0] if self.heap else 0.0
        before, self.weights = self.weights, {tenant: weights[tenant] for tenant in self.weights}
        self.heap = [(now + (at - now) * before[who] / self.weights[who], turn, who) for at, turn, who in self.heap]
        heapify(self.heap)

    def push_back(self, service: Mapping[int, int]) -> None:
        """The naive way: count deliveries of other hosts as turns that the tenants had here."""
        heap = [(start + service.get(who, 0) / self.weights[who], turn, who) for start, turn, who in self.heap]
        heapify(heap)
        self.heap = heap


class Way(Protocol):
    """How one host takes account of the other hosts."""

    def heard(self, by: int, delivered: Mapping[int, int], now_ms: int) -> None: ...
    def beat(self, now_ms: int) -> None: ...


class Balanced:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._balance = Balance()

    def heard(self, by: int, delivered: Mapping[int, int], now_ms: int) -> None:
        self._balance.heard(str(by), [(str(who), served * ITEM) for who, served in delivered.items()], now_ms)

    def beat(self, now_ms: int) -> None:
        host = self._host
        shares = [Share(str(who), host.weights[who], served * ITEM, True) for who, served in host.delivered.items()]
        self._balance.step(shares, ITEM, now_ms)
        host.factors = self._balance.factors


class Naive:
    """Adds deliveries of the other hosts to the tenants' virtual starts."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._known: dict[int, Mapping[int, int]] = {}

    def heard(self, by: int, delivered: Mapping[int, int], now_ms: int) -> None:
        before = self._known.get(by, {})
        self._known[by] = dict(delivered)
        self._host.push_back({who: served - before.get(who, 0) for who, served in delivered.items()})

    def beat(self, now_ms: int) -> None:
        """All is done when a message arrives."""


class Alone(Naive):
    """Listens to no other host."""

    def heard(self, by: int, delivered: Mapping[int, int], now_ms: int) -> None:
        pass


def run(
    case: Case,
    way: type[Balanced] | type[Naive],
    seconds: int,
    lost: float,
    rng: random.Random,
    later: Mapping[int, int] | None = None,
    weights: Mapping[int, Sequence[int]] | None = None,
) -> list[list[int]]:
    """Return how many items of each tenant all hosts had delivered after each half second. The hosts' beats are not
    at the same time. A message is lost with the probability `lost`, but not four in a row: hosts still hear each
    other. `later` says after how many milliseconds its tenants have items; the rest have some from the start.
    `weights`: the weights of all tenants from a time in ms on."""
    hosts = [Host(case, number, later or {}) for number in range(len(case.capacities))]
    ways: list[Way] = [way(host) for host in hosts]
    phases = [rng.randrange(_BEAT_TICKS) for _ in hosts]
    counts: list[list[int]] = []
    lost_before: Counter[tuple[int, int]] = Counter()
    for tick in range(seconds * 1_000 // TICK_MS):
        if tick % _BEAT_TICKS == 0:
            counts.append([sum(host.delivered.get(who, 0) for host in hosts) for who in range(len(case.weights))])
        for host in hosts:
            if weights and tick * TICK_MS in weights:
                host.weigh(weights[tick * TICK_MS])
            host.begin(tick * TICK_MS)
            host.deliver()
        for number, phase in enumerate(phases):
            if tick % _BEAT_TICKS == phase:
                now_ms = tick * TICK_MS
                ways[number].beat(now_ms)
                for other, way_there in enumerate(ways):
                    if other == number:
                        continue
                    if rng.random() < lost and lost_before[number, other] < _MOST_LOST:
                        lost_before[number, other] += 1
                    else:
                        lost_before[number, other] = 0
                        way_there.heard(number, hosts[number].delivered, now_ms)
    return counts


def worst(case: Case, counts: Sequence[Sequence[int]], after_s: int, stretch_s: int) -> float:
    """Return the largest part of its due that a tenant got too much or too little, in any stretch of this length that
    begins `after_s` or later."""
    rates, half_seconds = due(case), 2 * stretch_s
    return max(
        abs((later[who] - before[who]) / stretch_s / rate - 1)
        for before, later in zip(counts[2 * after_s :], counts[2 * after_s + half_seconds :], strict=False)
        for who, rate in rates.items()
    )
