"""The tenants of a topic with the most ready items, and the sums of all further ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappush, heappushpop
from typing import NamedTuple

from foqs.engine import turns
from foqs.engine.state import State
from foqs.fairness.keys import TopicKey

MOST_TENANTS = 1_000
"""Tenants that are reported by name."""
_FLOWS = 250
"""Flows that a count looks at in one turn of the event loop."""


class TenantCounts(NamedTuple):
    """Of one tenant, or sums of several. `parked`: ready items that wait for throttles. `weight`: of several tenants,
    the sum over those with ready items that wait for none. `served`: what they were given, in the unit of the topic."""

    ready: int = 0
    parked: int = 0
    weight: int = 0
    served: float = 0.0

    @property
    def turn_weight(self) -> int:
        """The weight that takes part in the turns now."""
        return self.weight if self.ready > self.parked else 0


class MostReady:
    """Up to `most` tenants by name, those with the most ready items. `rest` has the sums of further ones."""

    def __init__(self, most: int) -> None:
        self.rest = TenantCounts()
        self._most = most
        self._heap: list[tuple[int, str, TenantCounts]] = []

    def add(self, name: str, counts: TenantCounts) -> None:
        """Add a tenant, which was not added before."""
        one = (counts.ready, name, counts)
        if len(self._heap) < self._most:
            heappush(self._heap, one)
        else:
            self.add_rest(heappushpop(self._heap, one)[2])

    def add_rest(self, counts: TenantCounts) -> None:
        """Add tenants that have no names here."""
        rest = self.rest
        self.rest = TenantCounts(
            rest.ready + counts.ready,
            rest.parked + counts.parked,
            rest.weight + counts.turn_weight,
            rest.served + counts.served,
        )

    def named(self) -> list[tuple[str, TenantCounts]]:
        """Return the tenants with names: the most ready items first."""
        return [(name, counts) for _, name, counts in sorted(self._heap, key=lambda one: (-one[0], one[1]))]


def most_ready(tenants: Iterable[tuple[str, TenantCounts]], most: int) -> MostReady:
    found = MostReady(most)
    for name, counts in tenants:
        found.add(name, counts)
    return found


def of_topic(state: State, key: TopicKey, done: Callable[[MostReady], None]) -> None:
    """Count the tenants of a topic. It has none if its tenants take no turns."""
    turns.begin(state, _count(state, key, done))


def _count(state: State, key: TopicKey, done: Callable[[MostReady], None]) -> Iterator[None]:
    found, looked = MostReady(MOST_TENANTS), 0
    topic, namespace = state.topics.get(key), state.policies.namespace(key[0])
    tenants = [] if topic is None or topic.turns is None else list(topic.turns.tenants.values())
    for tenant in tenants:
        ready = parked = 0
        for flow in list(tenant.flows.values()):
            items = flow.ready
            ready += items
            parked += items if flow.parked is not None else 0
            looked += 1
            if looked % _FLOWS == 0:
                yield
        weight = namespace.weight(key[1], tenant.name, tenant.given_weight)
        found.add(tenant.name, TenantCounts(ready, parked, weight, tenant.served))
    done(found)
