"""Counts parked items by throttle key for a scrape, and decides which keys have series of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from heapq import nlargest

from foqs.counters import OTHER
from foqs.engine.throttling import Throttling

_FLOWS = 64  # or keys, between two looks at the clock
_REST = (OTHER, OTHER)

Labels = tuple[str, str]
"""(namespace, throttle key)."""


class KeyCounts:
    """Of one throttle key or several. `shadow_held`: deliveries that a shadow throttle would have held, since the key
    is in use here. `tokens`: those that wait here for deliveries."""

    __slots__ = ("flows", "items", "shadow_held", "tokens", "wait_ms")

    def __init__(self, flows: int = 0, items: int = 0, wait_ms: int = 0, tokens: int = 0, shadow_held: int = 0) -> None:
        self.flows = flows
        self.items = items
        self.wait_ms = wait_ms
        self.tokens = tokens
        self.shadow_held = shadow_held

    def add(self, other: KeyCounts, shadow_held: int) -> None:
        """Add the counts of another key, but not its `shadow_held`."""
        self.flows += other.flows
        self.items += other.items
        self.wait_ms = max(self.wait_ms, other.wait_ms)
        self.tokens += other.tokens
        self.shadow_held += shadow_held


class ThrottleSeries:
    """Of one host, over all scrapes."""

    def __init__(self, most: int) -> None:
        """`most`: throttle keys with series of their own."""
        self._most = most
        self._held: dict[Labels, int] = {}  # what each key had at the last scrape
        self._totals: dict[Labels, int] = {}

    def rows(self, keys: Mapping[Labels, KeyCounts]) -> dict[str, list[tuple[Labels, float]]]:
        """Return the rows of a scrape: for the keys with the most parked items, and for the rest together."""
        chosen = set(
            nlargest(self._most, (key for key in keys if key != _REST), key=lambda key: (keys[key].items, key))
        )
        shown: dict[Labels, KeyCounts] = {}
        for key, counts in keys.items():
            before = self._held.get(key, 0)  # more than now if the key was forgotten since
            grown = counts.shadow_held - (before if before <= counts.shadow_held else 0)
            shown.setdefault(key if key in chosen else _REST, KeyCounts()).add(counts, grown)
        self._held = {key: counts.shadow_held for key, counts in keys.items() if counts.shadow_held}
        self._totals = {key: self._totals.get(key, 0) + counts.shadow_held for key, counts in shown.items()}
        return {
            "foqs_throttle_parked_items": [(key, counts.items) for key, counts in shown.items()],
            "foqs_throttle_parked_flows": [(key, counts.flows) for key, counts in shown.items()],
            "foqs_throttle_longest_wait_seconds": [(key, counts.wait_ms / 1000) for key, counts in shown.items()],
            "foqs_throttle_tokens_held": [(key, counts.tokens) for key, counts in shown.items()],
            "foqs_throttle_shadow_held_total": list(self._totals.items()),
        }


async def count_keys(
    throttling: Throttling, rest: Callable[[], Awaitable[None]], now_ms: int
) -> dict[Labels, KeyCounts]:
    """Count the parked flows of each throttle key in use. `now_ms` is monotonic; `rest` yields to the event loop if it
    is time."""
    found: dict[Labels, KeyCounts] = {}
    flows = 0
    for at, key in enumerate(list(throttling.keys.values())):
        if not at % _FLOWS:
            await rest()
        counts = found[key.bounded[0], key.name] = KeyCounts(0, 0, 0, key.allowance.held(now_ms), key.shadow_held)
        if not (key.active or key.asleep):
            continue
        for _, parking in list(key.parked()):
            since_ms = parking.since_ms()
            if since_ms is not None:
                counts.wait_ms = max(counts.wait_ms, now_ms - since_ms)
            for flow in parking:
                flows += 1
                if not flows % _FLOWS:
                    await rest()
                if flow.parked is key:  # else it woke since the walk began
                    counts.flows += 1
                    counts.items += flow.ready
    return found
