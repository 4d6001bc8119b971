"""Counts of topics, tenants and throttle keys for a scrape, and the choice of names with series of their own.

A host has a bounded number of series. The topics and tenants with the most ready items have their own, and the throttle
keys with the most parked items. The rest shares one series.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import dataclass, field
from heapq import heappush, heappushpop, nlargest

from foqs.bounds import THROTTLE
from foqs.counters import OTHER, TopicEvents
from foqs.engine.concurrency import AnyGate
from foqs.engine.state import State
from foqs.engine.throttling import Throttling
from foqs.fairness.keys import TopicKey
from foqs.limits.lease_slots import ShardSlots
from foqs.limits.throttle_key import ThrottleKey

_REST = (OTHER, OTHER)
MOST_OF_TOPIC = 50
"""Tenants of one topic with series of their own."""
COUNTERS = ("shadow_held", "overage", "reclaimed")
"""Counters of a throttle key, since this host uses it."""
_NONE = (0, 0, 0)
_AT_ONCE = 64  # tenants, flows or keys between two looks at the clock

TenantLabels = tuple[str, str, str]
KeyLabels = tuple[str, str]
"""(namespace, throttle key)."""
_Ranked = tuple[int, float, str, float]  # a tenant's ready items, service, name and weight


PAUSED, DEAD = "paused", "dead"
"""Why ready items wait without a fault of the consumers: a pause holds them, or they are in a dead-letter topic."""


@dataclass(slots=True)
class Held:
    """Ready items that wait for an operator. `oldest_ms` is the time of the oldest one."""

    ready: int
    oldest_ms: int


@dataclass(slots=True)
class TopicCounts:
    """Counts of one topic or several. `oldest_ms` is the time of the oldest ready item; None if no item is ready. Both
    leave out ready items that are `held`, by the reason; None if there are none."""

    ready: int = 0
    leased: int = 0
    total: int = 0
    oldest_ms: int | None = None
    held: dict[str, Held] | None = None

    @property
    def all_ready(self) -> int:
        return self.ready + (sum([one.ready for one in self.held.values()]) if self.held else 0)

    def add(self, ready: int, leased: int, total: int, oldest_ms: int | None, why: str = "") -> None:
        """Add the items of a lane. `why` its ready items are held; "": they are not."""
        self.leased += leased
        self.total += total
        if why:
            if oldest_ms is not None:
                self.hold(why, ready, oldest_ms)
            return
        self.ready += ready
        if oldest_ms is not None and (self.oldest_ms is None or oldest_ms < self.oldest_ms):
            self.oldest_ms = oldest_ms

    def hold(self, why: str, ready: int, oldest_ms: int) -> None:
        """Add ready items that are held."""
        held = self.held = {} if self.held is None else self.held
        one = held.setdefault(why, Held(0, oldest_ms))
        one.ready += ready
        one.oldest_ms = min(one.oldest_ms, oldest_ms)

    def are_dead(self) -> None:
        """The topic takes dead letters: all ready items that no pause holds are held."""
        if self.oldest_ms is not None:
            self.hold(DEAD, self.ready, self.oldest_ms)
        self.ready, self.oldest_ms = 0, None

    def merge(self, other: TopicCounts) -> None:
        self.add(other.ready, other.leased, other.total, other.oldest_ms)
        for why, one in (other.held or {}).items():
            self.hold(why, one.ready, one.oldest_ms)


def topic_rows(
    topics: Mapping[TopicKey, TopicCounts], most: int, now_ms: int
) -> dict[str, list[tuple[tuple[str, ...], float]]]:
    """Return the rows of the topics: one set for each of the `most` with most ready items, and one for the rest."""
    chosen = nlargest(most, (key for key in topics if key != _REST), key=lambda key: (topics[key].all_ready, key))
    shown = {key: topics[key] for key in chosen}
    if len(shown) < len(topics):
        rest = shown[_REST] = TopicCounts()
        for key, counts in topics.items():
            if key == _REST or key not in shown:
                rest.merge(counts)
    items: list[tuple[tuple[str, ...], float]] = []
    ages: list[tuple[tuple[str, ...], float]] = []
    for key, counts in shown.items():
        items.append(((*key, "ready", ""), counts.ready))
        items.append(((*key, "leased", ""), counts.leased))
        items.append(((*key, "delayed", ""), max(0, counts.total - counts.all_ready - counts.leased)))
        age_ms = 0 if counts.oldest_ms is None else max(0, now_ms - counts.oldest_ms)
        ages.append(((*key, ""), age_ms / 1000))
        for why, held in (counts.held or {}).items():
            items.append(((*key, "ready", why), held.ready))
            ages.append(((*key, why), max(0, now_ms - held.oldest_ms) / 1000))
    together: list[tuple[tuple[str, ...], float]] = [((), len(topics))]
    return {"foqs_topic_items": items, "foqs_topic_oldest_ready_age_seconds": ages, "foqs_topics": together}


def hung_rows(hung: Mapping[TopicKey, int], most: int) -> dict[str, list[tuple[TopicKey, float]]]:
    """Return the rows of the topics with handlers that hang: the `most` with most of them, and the rest together."""
    chosen = nlargest(most, (key for key in hung if key != _REST), key=lambda key: (hung[key], key))
    shown = {key: float(hung[key]) for key in chosen}
    if len(shown) < len(hung):
        shown[_REST] = float(sum([handlers for key, handlers in hung.items() if key not in shown]))
    return {"foqs_topic_hung_handlers": list(shown.items())}


_IDLE_SCRAPES = 10
"""A topic that counted nothing in this number of scrapes gives its series to another one."""


class TopicSeries:
    """Counters of topics of one host, over all scrapes. `most` topics have series of their own, and keep them while
    they count; the rest shares one, which never goes back. A topic without events for some scrapes gives way to one
    with events; its next series begins at 0, as Prometheus expects."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._own: dict[TopicKey, TopicEvents] = {}
        self._idle: dict[TopicKey, int] = {}  # scrapes without an event
        self._rest: TopicEvents | None = None
        self._new: dict[TopicKey, TopicEvents] = {}

    def add(self, key: TopicKey, events: TopicEvents) -> None:
        """Count the events of a topic since the last scrape. At once, as the topic has forgotten them."""
        if key in self._own:
            self._own[key] = self._own[key].plus(events)
            self._idle[key] = 0 if any(events) else self._idle[key] + 1
        elif any(events):
            self._new[key] = self._new.get(key, TopicEvents()).plus(events)  # the scrape before may have been cut off

    def add_rest(self, events: TopicEvents) -> None:
        """Count events of topics that are gone."""
        if any(events):
            self._rest = events if self._rest is None else self._rest.plus(events)

    def rows(self, living: Container[TopicKey]) -> dict[str, list[tuple[TopicKey, float]]]:
        """Return the rows of a scrape. `living` are the topics that exist."""
        for key in [key for key in self._own if key not in living]:
            del self._own[key], self._idle[key]
        new, self._new = self._new, {}
        new_rest = [new.pop(_REST)] if _REST in new else []
        ranked = nlargest(self._most, new, key=lambda key: (sum(new[key]), key))
        idle = [key for key, scrapes in self._idle.items() if scrapes >= _IDLE_SCRAPES]
        room = self._most - len(self._own)
        for key in idle[: max(0, len(ranked) - room)]:
            del self._own[key], self._idle[key]
        for key in ranked[: self._most - len(self._own)]:
            self._own[key], self._idle[key] = new.pop(key), 0
        for events in [*new_rest, *new.values()]:
            self.add_rest(events)
        shown = dict(self._own) if self._rest is None else {**self._own, _REST: self._rest}
        return {
            f"foqs_topic_{name}_total": [(key, float(events[at])) for key, events in shown.items()]
            for at, name in enumerate(TopicEvents._fields)
        }


@dataclass(slots=True)
class TenantCounts:
    """Counts of one tenant or several. `served`: their service since the last scrape, in the units of their topics."""

    ready: int = 0
    weight: float = 0.0
    served: float = 0.0

    def add(self, ready: int, weight: float, served: float) -> None:
        self.ready += ready
        self.weight += weight
        self.served += served


@dataclass(slots=True)
class TopicTenants:
    """Tenants of one topic. `most` has the tenants with the most ready items, in no order. `rest` counts further
    tenants with ready items or service; None if there is no further tenant."""

    most: list[_Ranked] = field(default_factory=list)
    rest: TenantCounts | None = None

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
    """Series of the tenants of one host, over all scrapes."""

    def __init__(self, most: int) -> None:
        """`most`: tenants of all topics with series of their own."""
        self._most = most
        self._served: dict[TenantLabels, float] = {}

    def rows(self, topics: Mapping[TopicKey, TopicTenants]) -> dict[str, list[tuple[TenantLabels, float]]]:
        """Return the rows of a scrape: for the tenants with the most ready items, for the rest of each of their
        topics, and for all further ones. A series that ends for a while begins again at 0, as Prometheus expects."""
        ranked = ((one, key) for key, topic in topics.items() for one in topic.most)
        chosen = {(*key, one[2]) for one, key in nlargest(self._most, ranked)}
        named = {labels[:2] for labels in chosen}
        shown: dict[TenantLabels, TenantCounts] = {}
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
            if not at % _AT_ONCE:
                await rest()
            ready = sum([flow.ready for flow in tenant.flows.values()])
            weight = namespace.weight(key[1], tenant.name, tenant.given_weight)
            counts.add(tenant.name, ready, weight, tenant.newly_served())
        found[key] = counts
    return found


@dataclass(slots=True)
class KeyCounts:
    """Counts of one throttle key or several. `tokens` wait here for deliveries. `taken`: live leases here.
    `counters` has the values of `COUNTERS`."""

    flows: int = 0
    items: int = 0
    wait_ms: int = 0
    tokens: int = 0
    taken: int = 0
    counters: tuple[int, ...] = _NONE

    def add(self, other: KeyCounts, counters: tuple[int, ...]) -> None:
        """Add the counts of another key, but these in place of its counters."""
        self.flows += other.flows
        self.items += other.items
        self.wait_ms = max(self.wait_ms, other.wait_ms)
        self.tokens += other.tokens
        self.taken += other.taken
        self.counters = _sum(self.counters, counters)


class ThrottleSeries:
    """Series of the throttle keys of one host, over all scrapes."""

    def __init__(self, most: int) -> None:
        """`most`: throttle keys with series of their own."""
        self._most = most
        self._counted: dict[KeyLabels, tuple[int, ...]] = {}  # what each key had at the last scrape
        self._totals: dict[KeyLabels, tuple[int, ...]] = {}

    def rows(self, keys: Mapping[KeyLabels, KeyCounts]) -> dict[str, list[tuple[KeyLabels, float]]]:
        """Return the rows of a scrape: for the keys with the most parked items, and for the rest together."""
        chosen = set(
            nlargest(self._most, (key for key in keys if key != _REST), key=lambda key: (keys[key].items, key))
        )
        shown: dict[KeyLabels, KeyCounts] = {}
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
) -> dict[KeyLabels, KeyCounts]:
    """Count the parked flows of each throttle key in use, and its leases. `now_ms` is monotonic; `rest` yields to the
    event loop if it is time."""
    found: dict[KeyLabels, KeyCounts] = {}
    flows, limits = 0, throttling.concurrency
    gates: list[AnyGate] = [*throttling.keys.values(), *limits.all_gates()]
    for at, gate in enumerate(gates):
        if not at % _AT_ONCE:
            await rest()
        counts = found.setdefault((gate.bounded[0], gate.name), KeyCounts())
        if isinstance(gate, ShardSlots):
            counts.taken += gate.leased
            counts.counters = _sum(counts.counters, (0, gate.overage, gate.reclaimed))
        elif isinstance(gate, ThrottleKey):
            counts.tokens += gate.allowance.good(now_ms)
            counts.counters = _sum(counts.counters, (gate.shadow_held, 0, 0))
        for _, parking in list(gate.parked()):
            since_ms = parking.since_ms()
            if since_ms is not None:
                counts.wait_ms = max(counts.wait_ms, now_ms - since_ms)
            for flow in parking:
                flows += 1
                if not flows % _AT_ONCE:
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
