"""Clients of three tenants, four throttles with a rate and one that limits leases, and what their history must not
show: a rate or a limit that was exceeded, a tenant that was starved.

What an item's tenant and throttle keys are follows from its key: the checker needs no more than the history.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from foqs.client.items import ItemSpec
from foqs_lab.crash.clients import Consumer, Producer, put
from foqs_lab.crash.history import NS_PER_MS, Ack, Answer, Delivery, Enqueue, Event, Nack, pack
from foqs_lab.crash.losses import NEVER, Losses

TOPIC = "shared"
TENANTS = {"red": 1, "green": 2, "blue": 4}
"""With their weights."""


class Rate(NamedTuple):
    per_second: float
    burst: int


THROTTLES = {"slow": Rate(10, 10), "quick": Rate(30, 30), "wide": Rate(50, 100), "other": Rate(80, 40)}
LIMITS = {"few": 3}
"""Leases that live at a time."""
_SETS = {
    ("slow",): 6, ("quick", "slow"): 6, ("quick",): 28, ("wide",): 30, ("other", "wide"): 30, ("few",): 8,
    ("few", "other"): 2,
}  # fmt: skip
"""Throttle sets, with how many items of each a producer makes at a time: two producers use nine tenths of each rate."""
_PAUSE_S = 3.0
_WAITING, _SET_WAITING, _OTHERS = 100, 20, 2_000
_NS_PER_S = 1_000_000_000
_NONE = Losses()
Group = str | tuple[str, ...]
"""A tenant with its free items, or a throttle set."""
_RIVALS: dict[Group, dict[Group, int]] = {
    **{one: {other: _WAITING for other in TENANTS if other != one} for one in TENANTS},
    **{one: {other: _SET_WAITING for other in _SETS if other != one and {*one} & {*other}} for one in _SETS},
}
"""Tenants to compare when a group gets an item, with lower bounds of their waiting items."""


def tenant_of(key: str) -> str:
    return tuple(TENANTS)[int(key.rpartition(":")[2]) % len(TENANTS)]


def throttles_of(key: str) -> tuple[str, ...]:
    """Return the throttle set of the item with this key."""
    kind, _, number = key.rpartition(":")
    if not kind.endswith(ThrottledProducer.kind):
        return ()
    at = int(number) % sum(_SETS.values())
    for keys, items in _SETS.items():
        if at < items:
            return keys
        at -= items
    raise AssertionError("a number is below the sum")


class FreeProducer(Producer):
    """Items of all tenants without throttle keys."""

    kind = "/free"

    def _spec(self, key: str) -> ItemSpec:
        return _spec(key, self._rng.randint(-5, 5))


class ThrottledProducer(Producer):
    """More items at a time than their throttles let pass, then a pause."""

    kind = "/throttled"

    def _step(self) -> None:
        if not self._progress.wait_below(2 * self._load.backlog, 0.2):
            return
        keys = [f"{self.name}{self.kind}:{self._number + n}" for n in range(sum(_SETS.values()))]
        self._number += len(keys)
        outcomes = put(self._wire, self._log, keys, [_spec(key, 0) for key in keys])
        self._progress.add(stored=[outcome for outcome in outcomes if isinstance(outcome, int)])
        self._stopping.wait(_PAUSE_S)


class TenantConsumer(Consumer):
    asked = ((TOPIC,),)


def _spec(key: str, priority: int) -> ItemSpec:
    tenant, throttles = tenant_of(key), throttles_of(key)
    body = pack(key, 50)
    return ItemSpec(
        TOPIC, body, priority=priority, fairness_key=tenant, weight=TENANTS[tenant], throttle_keys=throttles or None
    )


def settings() -> dict[str, str]:
    """Return the throttles. Slots of a shard without an owner stay taken."""
    rates = {key: {"per_second": rate.per_second, "burst": rate.burst} for key, rate in THROTTLES.items()}
    limits = {key: {"concurrency": most, "timeout_ms": 0} for key, most in LIMITS.items()}
    return {f"throttle.{key}": json.dumps(entry) for key, entry in (rates | limits).items()}


# ---------------------------------------------------------------------------------------------- the checks


def lies(events: Iterable[Event], until_ns: int, losses: Losses = _NONE) -> list[str]:
    """Every promise about tenants and throttles that was broken before `until_ns`, when the throttles were removed."""
    seen = [event for event in events if event.ended < until_ns]
    deliveries = [event for event in seen if isinstance(event, Delivery) and "/" in event.key]
    found = []
    for key, rate in THROTTLES.items():
        spans = [(event.began, event.ended) for event in deliveries if key in throttles_of(event.key)]
        over = exceeded(spans, rate)
        if over > 0:
            found.append(f"throttle {key}: {over:.1f} items more than {rate.burst} + {rate.per_second} a second")
    endings = [event for event in seen if isinstance(event, Ack | Nack)]
    for key, limit in LIMITS.items():
        most = most_at_once([event for event in deliveries if key in throttles_of(event.key)], endings, losses)
        if most > limit:
            found.append(f"throttle {key}: {most} leases lived at one time, the limit is {limit}")
    stored = [event for event in seen if isinstance(event, Enqueue) and "/" in event.key]
    gone = {event.key for event in stored if _may_be_gone(event, losses)}  # it may not wait
    stored = [event for event in stored if event.key not in gone]
    return found + list(starved(stored, [event for event in deliveries if event.key not in gone]))


def _may_be_gone(event: Enqueue, losses: Losses) -> bool:
    return any(event.began < loss.ended and event.ended > loss.began for loss in losses.of(event.id))


def exceeded(spans: Sequence[tuple[int, int]], rate: Rate) -> float:
    """Return by how many the deliveries, each somewhere between its two times (ns), exceed `rate` at least, in the
    worst interval; 0 or less if an order of events within the spans keeps it.

    For each end of an interval, in order: of all its possible beginnings, the beginning with the most deliveries
    inside, less what the rate allows since. A delivery that began at b counts for all beginnings up to b."""
    begins = sorted({began for began, _ in spans})
    place = {began: at for at, began in enumerate(begins)}
    excess = _Prefixes([rate.per_second * (began - begins[0]) / _NS_PER_S for began in begins])
    worst = -float(rate.burst)
    for began, ended in sorted(spans, key=lambda span: span[1]):
        excess.add_up_to(place[began])
        most = excess.most_up_to(bisect_right(begins, ended) - 1)
        worst = max(worst, most - rate.per_second * (ended - begins[0]) / _NS_PER_S - rate.burst)
    return worst


def most_at_once(deliveries: Iterable[Delivery], endings: Iterable[Ack | Nack], losses: Losses = _NONE) -> int:
    """Return how many leases lived at one time for certain: each from its answer until its first ack or nack was sent,
    or its time ended. A loss ends the leases of its shards, also leases that an owner gave before it noticed."""
    sent: dict[tuple[int, int], int] = {}
    for ending in endings:
        lease = (ending.id, ending.lease)
        sent[lease] = min(ending.began, sent.get(lease, ending.began))
    changes: list[tuple[int, int]] = []
    for one in deliveries:
        end = min(one.began + one.lease_ms * NS_PER_MS, sent.get((one.id, one.lease), NEVER))
        end = min([end, *(loss.ended for loss in losses.of(one.id) if one.began < loss.back)])
        changes += [(one.ended, 1), (max(end, one.ended), -1)]
    live = most = 0
    for _, change in sorted(changes):  # ends come first
        live += change
        most = max(most, live)
    return most


class _Prefixes:
    """Numbers of which a prefix grows by 1 at a time. A tree of maxima: O(log n) a step."""

    def __init__(self, values: Sequence[float]) -> None:
        size = 1
        while size < max(1, len(values)):
            size *= 2
        low = -float("inf")
        self._size = size
        self._more = [0] * (2 * size)  # of all numbers below a node
        self._max = [low] * size + [*values] + [low] * (size - len(values))
        for node in range(size - 1, 0, -1):
            self._max[node] = max(self._max[2 * node], self._max[2 * node + 1])

    def most_up_to(self, at: int) -> float:
        """Return the greatest of the numbers 0 to `at`."""
        node = self._size + at
        most = self._max[node]
        while node > 1:
            if node & 1:
                most = max(most, self._max[node - 1])
            node //= 2
            most += self._more[node]
        return most

    def add_up_to(self, at: int) -> None:
        """Add 1 to the numbers 0 to `at`."""
        node = self._size + at
        self._max[node] += 1
        while node > 1:
            if node & 1:  # all numbers of the left neighbour come before it
                self._max[node - 1] += 1
                self._more[node - 1] += 1
            node //= 2
            self._max[node] = max(self._max[2 * node], self._max[2 * node + 1]) + self._more[node]


def starved(stored: Iterable[Enqueue], deliveries: Iterable[Delivery]) -> Iterator[str]:
    """Yield each tenant, and each throttle set, that got nothing in 2,000 deliveries of its rivals while items of it
    waited. Tenants are rivals with their free items, and throttle sets where they share a key."""
    events = [(event.ended, 1, event.key) for event in stored if event.answer is Answer.OK]
    events += [(event.ended, -1, event.key) for event in deliveries]
    waiting, others, reported = Counter[Group](), Counter[Group](), set[Group]()
    first: set[str] = set()
    for _, change, key in sorted(events):
        group = throttles_of(key) or tenant_of(key)
        if change > 0:
            waiting[group] += 1
            continue
        if key not in first:
            first.add(key)
            waiting[group] -= 1
        others[group] = 0
        for one, least in _RIVALS[group].items():
            others[one] = others[one] + 1 if waiting[one] >= least else 0
            if others[one] > _OTHERS and one not in reported:
                reported.add(one)
                name = f"tenant {one}" if isinstance(one, str) else f"throttle set {', '.join(one)}"
                yield f"{name} got none of {_OTHERS:,} deliveries while {waiting[one]} of its items waited"
