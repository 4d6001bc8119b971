"""Counts the tenants of topics for a scrape, and decides which of them have series of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from heapq import heappush, heappushpop, nlargest

from foqs.counters import OTHER
from foqs.engine.state import State
from foqs.fairness.keys import TopicKey

MOST_OF_TOPIC = 50
"""Tenants of one topic with series of their own."""
_TENANTS = 64  # between two looks at the clock
_REST = (OTHER, OTHER)

Labels = tuple[str, str, str]
_Ranked = tuple[int, float, str, float]  # its ready items, its service, its name and its weight


class TenantCounts:
    """Of one tenant or several. `served`: what they were given since the last scrape, in the units of their topics."""

    __slots__ = ("ready", "served", "weight")

    def __init__(self) -> None:
        self.ready = 0
        self.weight = self.served = 0.0

    def add(self, ready: int, weight: float, served: float) -> None:
        self.ready += ready
        self.weight += weight
        self.served += served


class TopicTenants:
    """One topic's. `most` has those with the most ready items, in no order; `rest` counts further tenants that
    have ready items or were given some, None if there is no further one."""

    __slots__ = ("most", "rest")

    def __init__(self) -> None:
        self.most: list[_Ranked] = []
        self.rest: TenantCounts | None = None

    def add(self, name: str, ready: int, weight: float, served: float) -> None:
        one = (ready, served, name, weight)
        if name != OTHER:
            if len(self.most) < MOST_OF_TOPIC:
                heappush(self.most, one)
                return
            one = heappushpop(self.most, one)
        ready, served, _, weight = one
        if self.rest is None:
            self.rest = TenantCounts()
        if ready or served:
            self.rest.add(ready, weight, served)


class TenantSeries:
    """Of one host, over all scrapes."""

    def __init__(self, most: int) -> None:
        """`most`: tenants of all topics with series of their own."""
        self._most = most
        self._served: dict[Labels, float] = {}

    def rows(self, topics: Mapping[TopicKey, TopicTenants]) -> dict[str, list[tuple[Labels, float]]]:
        """Return the rows of a scrape: for the tenants with the most ready items, for the rest of each of their
        topics, and for all further ones. A series that ends for a while begins again at 0, as Prometheus expects."""
        ranked = ((one, key) for key, topic in topics.items() for one in topic.most)
        chosen = {(*key, one[2]) for one, key in nlargest(self._most, ranked)}
        named = {labels[:2] for labels in chosen}
        shown: dict[Labels, TenantCounts] = {}
        for key, topic in topics.items():
            rest = (*(key if key in named else _REST), OTHER)
            for ready, served, name, weight in topic.most:
                labels = (*key, name)
                if labels in chosen:
                    shown.setdefault(labels, TenantCounts()).add(ready, weight, served)
                elif ready or served:
                    shown.setdefault(rest, TenantCounts()).add(ready, weight, served)
            if topic.rest is not None:
                shown.setdefault(rest, TenantCounts()).add(topic.rest.ready, topic.rest.weight, topic.rest.served)
        self._served = {labels: self._served.get(labels, 0.0) + one.served for labels, one in shown.items()}
        return {
            "foqs_tenant_served_total": list(self._served.items()),
            "foqs_tenant_weight": [(labels, one.weight) for labels, one in shown.items()],
            "foqs_tenant_ready_items": [(labels, one.ready) for labels, one in shown.items()],
        }


async def count_tenants(state: State, rest: Callable[[], Awaitable[None]]) -> dict[TopicKey, TopicTenants]:
    """Count the tenants of all topics where they take turns. `rest` yields to the event loop if it is time."""
    found: dict[TopicKey, TopicTenants] = {}
    for key, topic in list(state.topics.in_turns.items()):
        assert topic.turns is not None, "the topic's tenants take turns"
        counts, namespace = TopicTenants(), state.policies.namespace(key[0])
        for at, tenant in enumerate(list(topic.turns.tenants.values())):
            if not at % _TENANTS:
                await rest()
            ready = sum([flow.ready for flow in tenant.flows.values()])
            weight = namespace.weight(key[1], tenant.name, tenant.given_weight)
            counts.add(tenant.name, ready, weight, tenant.newly_served())
        found[key] = counts
    return found
