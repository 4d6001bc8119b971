"""Counts parked items by throttle key for a scrape, and decides which keys have series of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from heapq import nlargest

from foqs.bounds import THROTTLE
from foqs.counters import OTHER
from foqs.engine.concurrency import AnyGate
from foqs.engine.throttling import Throttling
from foqs.limits.lease_slots import ShardSlots
from foqs.limits.throttle_key import ThrottleKey

_FLOWS = 64  # or keys, between two looks at the clock
_REST = (OTHER, OTHER)

Labels = tuple[str, str]
"""(namespace, throttle key)."""


COUNTERS = ("shadow_held", "overage", "reclaimed")
"""Of a key, since it is in use here."""
_NONE = (0, 0, 0)


class KeyCounts:
    """Of one throttle key or several. `tokens`: those that wait here for deliveries. `taken`: live leases here.
    `counters` has the values of `COUNTERS`."""

    __slots__ = ("counters", "flows", "items", "taken", "tokens", "wait_ms")

    def __init__(
        self, flows: int = 0, items: int = 0, wait_ms: int = 0, tokens: int = 0, taken: int = 0,
        counters: tuple[int, ...] = _NONE,
    ) -> None:  # fmt: skip
        self.flows = flows
        self.items = items
        self.wait_ms = wait_ms
        self.tokens = tokens
        self.taken = taken
        self.counters = counters

    def add(self, other: KeyCounts, counters: tuple[int, ...]) -> None:
        """Add the counts of another key, but these in place of its counters."""
        self.flows += other.flows
        self.items += other.items
        self.wait_ms = max(self.wait_ms, other.wait_ms)
        self.tokens += other.tokens
        self.taken += other.taken
        self.counters = _sum(self.counters, counters)


class ThrottleSeries:
    """Of one host, over all scrapes."""

    def __init__(self, most: int) -> None:
        """`most`: throttle keys with series of their own."""
        self._most = most
        self._counted: dict[Labels, tuple[int, ...]] = {}  # what each key had at the last scrape
        self._totals: dict[Labels, tuple[int, ...]] = {}

    def rows(self, keys: Mapping[Labels, KeyCounts]) -> dict[str, list[tuple[Labels, float]]]:
        """Return the rows of a scrape: for the keys with the most parked items, and for the rest together."""
        chosen = set(
            nlargest(self._most, (key for key in keys if key != _REST), key=lambda key: (keys[key].items, key))
        )
        shown: dict[Labels, KeyCounts] = {}
        for key, counts in keys.items():
            before = self._counted.get(key, _NONE)  # more than now if the key was forgotten since
            grown = [now - (then if then <= now else 0) for now, then in zip(counts.counters, before, strict=True)]
            shown.setdefault(key if key in chosen else _REST, KeyCounts()).add(counts, tuple(grown))
        self._counted = {key: counts.counters for key, counts in keys.items() if any(counts.counters)}
        self._totals = {key: _sum(self._totals.get(key, _NONE), counts.counters) for key, counts in shown.items()}
        counters = {
            f"foqs_throttle_{name}_total": [(key, float(total[at])) for key, total in self._totals.items()]
            for at, name in enumerate(COUNTERS)
        }
        return {
            "foqs_throttle_parked_items": [(key, counts.items) for key, counts in shown.items()],
            "foqs_throttle_parked_flows": [(key, counts.flows) for key, counts in shown.items()],
            "foqs_throttle_longest_wait_seconds": [(key, counts.wait_ms / 1000) for key, counts in shown.items()],
            "foqs_throttle_tokens_held": [(key, counts.tokens) for key, counts in shown.items()],
            "foqs_throttle_slots_taken": [(key, counts.taken) for key, counts in shown.items()],
            **counters,
        }


async def count_keys(
    throttling: Throttling, rest: Callable[[], Awaitable[None]], now_ms: int
) -> dict[Labels, KeyCounts]:
    """Count the parked flows of each throttle key in use, and its leases. `now_ms` is monotonic; `rest` yields to the
    event loop if it is time."""
    found: dict[Labels, KeyCounts] = {}
    flows, limits = 0, throttling.concurrency
    gates: list[AnyGate] = [*throttling.keys.values(), *limits.all_gates()]
    for at, gate in enumerate(gates):
        if not at % _FLOWS:
            await rest()
        counts = found.setdefault((gate.bounded[0], gate.name), KeyCounts())
        if isinstance(gate, ShardSlots):
            counts.taken += gate.leased
            counts.counters = _sum(counts.counters, (0, gate.overage, gate.reclaimed))
        elif isinstance(gate, ThrottleKey):
            counts.tokens += gate.allowance.held(now_ms)
            counts.counters = _sum(counts.counters, (gate.shadow_held, 0, 0))
        for _, parking in list(gate.parked()):
            since_ms = parking.since_ms()
            if since_ms is not None:
                counts.wait_ms = max(counts.wait_ms, now_ms - since_ms)
            for flow in parking:
                flows += 1
                if not flows % _FLOWS:
                    await rest()
                if flow.parked is gate:  # else it woke since the walk began
                    counts.flows += 1
                    counts.items += flow.ready
    for (ns, key), past in limits.all_past():
        counts = found.setdefault((ns, key[len(THROTTLE) :]), KeyCounts())
        counts.counters = _sum(counts.counters, (0, past.overage, past.reclaimed))
    return found


def _sum(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([a + b for a, b in zip(one, other, strict=True)])
