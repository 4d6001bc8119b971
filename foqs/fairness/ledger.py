"""Answers about the order of deliveries: by how many deliveries an item was overtaken, the rate of a topic's
deliveries, and how many turns of other tenants come before a tenant's next turn. Pure.

Deliveries are counted only for topics that a consumer or an operator asked about in the last minute. Other topics pay
a look at an empty map: to count all topics would cost each delivery an entry in a map of very many topics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from math import ceil, floor
from typing import Any, NamedTuple, Protocol

from foqs.fairness.keys import TopicKey
from foqs.fairness.tenants import Tenant
from foqs.fairness.turns import ITEMS, Turns

_ASKED_MS = 60_000
_MOST_TOPICS = 1_000
_ITEMS = 100_000
"""Items in all topics, 300 bytes each. Beyond it, the topic forgets the items that became ready first."""


class Known(Protocol):
    """A window: the first ready items of a lane, as far as they are in memory."""

    entries: list[Any]

    def covers(self, key: tuple[int, int, int]) -> bool: ...


class _Own:
    """A tenant of a topic, or a topic whose tenants take no turns: `delivered` counts its deliveries while `known`
    items of it are noted."""

    __slots__ = ("delivered", "known", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.delivered = self.known = 0


class Overtaken(NamedTuple):
    """Deliveries of the topic since an item became ready: of its tenant, without those items that came before it then,
    and of other tenants. (Items that came before it and ended otherwise, or wait for a throttle, count as delivered.)
    """

    own: int
    others: int


class TopicLedger:
    """`delivered` counts deliveries of the topic. For an item, `ready` has its tenant; the tenant's deliveries when the
    item became ready, plus the ready items that came before it then; and the deliveries of other tenants."""

    __slots__ = ("asked_ms", "delivered", "owns", "ready")

    def __init__(self) -> None:
        self.asked_ms = 0
        self.delivered = 0
        self.owns: dict[str, _Own] = {}
        self.ready: dict[int, tuple[_Own, int, int]] = {}

    def forget(self, item_id: int) -> bool:
        """Return whether the item was noted."""
        note = self.ready.pop(item_id, None)
        if note is None:
            return False
        own = note[0]
        own.known -= 1
        if not own.known:
            del self.owns[own.name]
        return True


class Ledgers(dict[TopicKey, TopicLedger]):
    """By topic. A dict, because each enqueue and each reply checks whether it is empty. A tenant is "" where tenants
    take no turns."""

    def __init__(self) -> None:
        super().__init__()
        self._items = 0

    def ask(self, keys: Iterable[TopicKey], now_ms: int) -> None:
        """A consumer of these topics asks for ledgers. Beyond 1,000 topics, further ones have none."""
        for key in keys:
            ledger = self.get(key)
            if ledger is None:
                if len(self) >= _MOST_TOPICS:
                    return
                ledger = self[key] = TopicLedger()
            ledger.asked_ms = now_ms

    def became_ready(self, key: TopicKey, tenant: str, windows: Sequence[Known | None], entries: Iterable[Any]) -> None:
        """Items of a tenant, which are in one of its `windows`, became ready. Nothing is known of an item if ones that
        are not in memory may come before it."""
        ledger = self.get(key)
        if ledger is None:
            return
        for entry in entries:
            place, before = entry[:3], 0
            for window in windows:
                if window is None or not window.covers(place):
                    break
                before += bisect_left(window.entries, place)
            else:
                self._note(ledger, tenant, entry[2], before)

    def overtaken(self, key: TopicKey, items: Sequence[tuple[str, int]]) -> list[Overtaken | None]:
        """Return what overtook each of these items (tenant, id), which are delivered now in this order. None where that
        is not known."""
        ledger = self.get(key)
        if ledger is None:
            return [None] * len(items)
        found: list[Overtaken | None] = []
        given: dict[str, int] = {}
        for at, (tenant, item_id) in enumerate(items):
            before_it = given.get(tenant, 0)
            given[tenant] = before_it + 1
            note = ledger.ready.get(item_id)
            if note is None:
                found.append(None)
                continue
            own, before, others = note
            others_now = ledger.delivered - own.delivered + at - before_it
            found.append(Overtaken(max(0, own.delivered + before_it - before), others_now - others))
        return found

    def delivered(self, items: Iterable[tuple[TopicKey, str, int]]) -> None:
        """Count delivered items, given as (topic, tenant, id)."""
        for key, tenant, item_id in items:
            ledger = self.get(key)
            if ledger is not None:
                ledger.delivered += 1
                own = ledger.owns.get(tenant)
                if own is not None:
                    own.delivered += 1
                    self._items -= ledger.forget(item_id)

    def forget(self, now_ms: int) -> None:
        """Forget topics whose ledgers were not asked for in the last minute."""
        for key, ledger in list(self.items()):
            if not 0 <= now_ms - ledger.asked_ms < _ASKED_MS:
                self._items -= len(self.pop(key).ready)

    def _note(self, ledger: TopicLedger, tenant: str, item_id: int, before: int) -> None:
        own = ledger.owns.get(tenant)
        if own is None:
            own = ledger.owns[tenant] = _Own(tenant)
        own.known += 1  # first, so that `forget` keeps the count of its deliveries
        self._items += 1 - ledger.forget(item_id)
        ledger.ready[item_id] = (own, own.delivered + before, ledger.delivered - own.delivered)
        if self._items > _ITEMS:
            self._items -= ledger.forget(next(iter(ledger.ready)))


_SPAN_S = 10
_LEAST_MS = 1_000
"""A rate over a shorter time would say little."""


class Recent(dict[TopicKey, "_Seconds"]):
    """The topics that were asked about in the last minute. A dict, because each reply checks whether it is empty."""

    def a_second(self, key: TopicKey, now_ms: int) -> float | None:
        """Return the deliveries of a topic in a second, over the last 10 s; None while the topic was not counted for a
        second. It is counted from now on. Beyond 1,000 topics, the topic that was asked about longest ago is
        dropped."""
        seconds = self.pop(key, None)
        if seconds is None:
            seconds = _Seconds(now_ms)
        self[key] = seconds
        seconds.asked_ms = now_ms
        if len(self) > _MOST_TOPICS:
            del self[next(iter(self))]
        for_ms = now_ms - seconds.since_ms
        if for_ms < _LEAST_MS:
            return None
        seconds.forget(now_ms // 1000 - _SPAN_S)
        return sum(count for _, count in seconds.counts) / min(for_ms / 1000, _SPAN_S)

    def add(self, keys: Iterable[TopicKey], now_ms: int) -> None:
        """Count an item for each of `keys`, the topics of delivered items."""
        for key in keys:
            seconds = self.get(key)
            if seconds is not None:
                seconds.add(now_ms // 1000)

    def forget(self, now_ms: int) -> None:
        """Count topics no longer that were not asked about for a minute."""
        for key in [key for key, seconds in self.items() if not 0 <= now_ms - seconds.asked_ms < _ASKED_MS]:
            del self[key]


class _Seconds:
    """The deliveries of a topic by second, since `since_ms`."""

    __slots__ = ("asked_ms", "counts", "since_ms")

    def __init__(self, now_ms: int) -> None:
        self.since_ms = self.asked_ms = now_ms
        self.counts: deque[tuple[int, int]] = deque()

    def add(self, second: int) -> None:
        counts = self.counts
        if counts and counts[-1][0] == second:
            counts[-1] = (second, counts[-1][1] + 1)
        else:
            self.forget(second - _SPAN_S)
            counts.append((second, 1))

    def forget(self, until: int) -> None:
        while self.counts and self.counts[0][0] <= until:
            self.counts.popleft()


_LOOKED_AT = 10_000
"""Tenants and newcomers that are looked at. The rest counts as similar to these."""


class Position(NamedTuple):
    """The place of a tenant among the tenants of its topic. `turns`: about this number of turns of other tenants come
    first, or at least one of each where items do not cost the same. `share`: the tenant's share of all turns.
    `urgent`: tenants with more urgent items go first; `turns` does not count theirs."""

    turns: int
    share: float
    urgent: bool


def position_of(tenant: Tenant[Any], turns: Turns[Any]) -> Position | None:
    """Return the place of a tenant of `turns` if no other tenant arrives or ends; None if it is not queued."""
    if not tenant.seq:
        return None
    level = tenant.level
    heap = [(start, seq, other) for start, seq, other in level.heap[:_LOOKED_AT] if other.seq == seq]
    scale = max(1.0, len(level.heap) / _LOOKED_AT)
    newcomers = [(seq, other) for seq, other in islice(level.newcomers, _LOOKED_AT) if other.seq == seq]
    more = max(1.0, len(level.newcomers) / _LOOKED_AT)
    if tenant.newcomer:  # every second turn is a newcomer's
        places = (at for at, (seq, _) in enumerate(newcomers) if seq == tenant.seq)
        place = next(places, len(level.newcomers))  # behind the newcomers that are looked at: the most that it may be
        count = 2 * place + (level.took_newcomer and bool(heap))
    else:
        most = 1 << 62 if turns.unit == ITEMS else 1
        count = int(scale * sum(min(most, _before(tenant, start, seq, other)) for start, seq, other in heap))
        new = int(more * sum(min(most, max(1, _before(tenant, level.now, seq, other))) for seq, other in newcomers))
        count += min(new, count + (not level.took_newcomer))
    weights = scale * _weights(other for _, _, other in heap) + more * _weights(other for _, other in newcomers)
    first = next(iter(turns.next_up(1)), tenant)
    return Position(count, tenant.weight / max(weights, tenant.weight), first.level.rank < level.rank)


def _before(tenant: Tenant[Any], start: float, seq: int, other: Tenant[Any]) -> int:
    """Return how many turns the other tenant has from `start` on before the next one of `tenant`."""
    turns = (tenant.start - start) * other.weight
    if other is tenant or turns < 0:
        return 0
    return floor(turns) + 1 if seq < tenant.seq else ceil(turns)


def _weights(tenants: Iterable[Tenant[Any]]) -> float:
    return sum(tenant.weight for tenant in tenants)
