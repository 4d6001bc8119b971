"""The turns of a topic's tenants on one host: start-time fair queueing (Goyal, Vin, Cheng 1997). Pure.

A tenant has a virtual start. The tenant with the smallest start is served next and moves on by cost / weight; the
virtual time is the start of the tenant that was served last. A tenant that returns begins at the virtual time, so it
has no credit for the time in which it had nothing to deliver.

A newcomer, whose start the virtual time has passed, would wait for one item of each other tenant. So newcomers wait in
a queue of their own, and every second turn is theirs (as in FQ-CoDel, RFC 8290). Those two turns are the most that the
first of them waits, and a flood of new tenants gets half of the turns at most.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import accumulate, islice, repeat
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from foqs.fairness.tenants import (
    DOWN,
    HELD,
    IDLE,
    PASSED,
    QUEUED,
    SKIPPED,
    UNRANKED,
    Flow,
    L,
    Level,
    ShardTerm,
    Tally,
    Tenant,
    Throttles,
)

E = TypeVar("E")
Queue = Sequence[tuple[float, int, Tenant[Any]]]
"""(start, number of the entry, tenant)."""

_BEHIND_ITEMS = 1_000
"""How far behind the virtual time a tenant may begin: a shard that returns does not take all turns."""
_DEBTS = 10_000
_CHARGES = 100_000
_MEAN_OF = 16
"""The mean time of leases is about that of this many leases."""
ITEMS, BYTES, BUSY = "items", "bytes", "busy"
"""The cost of an item for its tenant: 1, its KiB, or the time in ms for which it is leased."""


class Turns(Generic[L]):
    """The tenants of a topic. `ranked`: tenants with more urgent items go first. `unit`: one of ITEMS, BYTES and BUSY.
    `charges`: the charge of each leased item by the mean time of leases; the oldest are dropped if there are too many.
    `skipped` and `down`: the tenants in these states, the oldest first, with the time (ms) of the change. `incomplete`:
    ranked tenants that took turns while some of their items could not be leased; those items may be more urgent.
    `held`: the names of the tenants that take no turns (see `hold`). `unweighed`: tenants whose items, or whose debt,
    came with another weight than they have; see `weigh`. `used_ms`: when a dequeue asked for the topic last. `ahead`:
    after this many more items, pages are prefetched for about `reach` of the next tenants; None while all were in
    memory. `last_cost`: the cost of the last item.

    `first` returns the tenant whose turn it is; one of `charge`, `leave`, `skip`, `pass_over`, `place` and `weigh`
    follows."""

    def __init__(self) -> None:
        self.tenants: dict[str, Tenant[L]] = {}
        self.tallies: dict[ShardTerm, Tally] = {}
        self.ranked = False
        self.changes = -1  # of the policies that `unit` and `ranked` follow
        self.unit = ITEMS
        self.charges: dict[int, float] = {}
        self.lease_ms = 1.0  # of all tenants' leases
        self.used_ms = 0
        self.ahead: int | None = None
        self.reach = 0
        self.skipped: dict[Tenant[L], int] = {}
        self.down: dict[Tenant[L], int] = {}
        self.incomplete: dict[Tenant[L], None] = {}
        self.unweighed: dict[Tenant[L], None] = {}
        self.held: frozenset[str] = frozenset()
        self.last_cost = 1.0
        self._seq = self._first_seq = 0  # the highest and the lowest number of an entry
        self._flat: Level[Tenant[L]] = Level(0)
        self._levels: WeakValueDictionary[int, Level[Tenant[L]]] = WeakValueDictionary({0: self._flat})
        self._ranks: list[tuple[int, Level[Tenant[L]]]] = []  # a heap of the levels with entries
        self._passed: list[Tenant[L]] = []
        self._debts: OrderedDict[str, tuple[Level[Tenant[L]], float, float]] = OrderedDict()

    # ------------------------------------------------------------------------------------- lanes

    def attach(self, lane: L, name: str, throttles: Throttles) -> Flow[L]:
        """Add a lane, with its ready items, to its flow."""
        tenant = self.tenants.get(name)
        if tenant is None:
            debt = self._debts.pop(name, None)
            level, start, weight = debt or (self._flat, self._flat.now, 1.0)
            tenant = self.tenants[name] = Tenant(name, self, level, start)
            if name in self.held:
                tenant.away = HELD
            if debt is not None:
                tenant.weight = weight
                self.unweighed[tenant] = None
        flow = tenant.only
        if flow is None or flow.throttles != throttles:
            flow = tenant.flow(throttles)
        tally = self.tallies.get(lane.term)
        if tally is None:
            tally = self.tallies[lane.term] = Tally()
        flow.lanes = (*flow.lanes, lane)
        lane.flow = flow
        tally.lanes += 1
        if lane.weight:
            tenant.weigh(lane.weight)
        if lane.ready:
            flow.count(lane, lane.ready)
            flow.wake(opened=True)
        return flow

    def detach(self, lane: L) -> None:
        """Forget a lane. A tenant without lanes ends. Its debt is remembered until the virtual time has passed it, or
        until no item of the topic is ready: no tenant waits for the debtors then."""
        flow: Flow[L] = lane.flow
        flow.count(lane, -lane.ready)
        flow.lanes = tuple([other for other in flow.lanes if other is not lane])
        lane.flow = None
        tally = self.tallies[lane.term]
        tally.lanes -= 1
        if not tally.lanes:
            del self.tallies[lane.term]
        tenant = flow.tenant
        if flow.lanes:
            return
        tenant.drop(flow)
        if not tenant.flows:
            del self.tenants[tenant.name]
            self.incomplete.pop(tenant, None)
            self.unweighed.pop(tenant, None)
            self.leave(tenant, IDLE)
            self.scale(tenant, 1.0)
            if not self.ready:
                self._debts.clear()
            elif tenant.start > tenant.level.now:
                self._remember(tenant)

    def _remember(self, tenant: Tenant[L]) -> None:
        debts = self._debts
        while debts:
            level, start, _ = next(iter(debts.values()))
            if len(debts) < _DEBTS and start > level.now:
                break
            debts.popitem(last=False)
        debts[tenant.name] = (tenant.level, tenant.start, tenant.weight)

    def lanes(self) -> Iterator[L]:
        for tenant in self.tenants.values():
            for flow in tenant.flows.values():
                yield from flow.lanes

    @property
    def ready(self) -> int:
        """Number of items that are ready on open shards, in memory or not."""
        return sum([tally.ready for term, tally in self.tallies.items() if term.shard is not None])

    @property
    def unparked(self) -> int:
        """Number of those ready items that wait for no throttle, and whose tenant is not held."""
        return sum([tally.ready - tally.parked for term, tally in self.tallies.items() if term.shard is not None])

    # ------------------------------------------------------------------------------------- turns

    def first(self) -> Tenant[L] | None:
        """Return the tenant whose turn it is; None if no tenant is queued."""
        ranks = self._ranks
        while ranks:
            level = ranks[0][1]
            # `Level.first`, where nothing is stale
            if level.newcomers and not (level.took_newcomer and level.heap):
                seq, tenant = level.newcomers[0]
                if tenant.seq == seq:
                    return tenant
            elif level.heap and not level.newcomers:
                _, seq, tenant = level.heap[0]
                if tenant.seq == seq:
                    return tenant
            found = level.first()
            if found is not None:
                return found
            heappop(ranks)
            level.listed = False
        return None

    def charge(self, tenant: Tenant[L], cost: float, *, last: bool = False) -> None:
        """The queued tenant had its turn, and was given an item of this cost: 1, or in the units of the topic. After
        its `last` item it leaves."""
        level, start, newcomer = tenant.level, tenant.start, tenant.newcomer
        tenant.served += cost
        self.last_cost = cost
        level.took_newcomer = newcomer
        if not newcomer:
            level.now = max(level.now, start)
        elif start < level.now:  # no credit for the wait among newcomers
            start = level.now
        tenant.start = start = start + cost / tenant.weight
        if not (newcomer or last) and level.heap[0][1] == tenant.seq:
            heapreplace(level.heap, (start, tenant.seq, tenant))
            return
        if newcomer and level.newcomers[0][0] == tenant.seq:  # `_withdraw`
            level.newcomers.popleft()
            tenant.seq = 0
        else:
            self._withdraw(tenant)
        tenant.newcomer = False
        if last:
            tenant.away = IDLE
        else:
            self._queue(tenant)

    def alike(self, most: int) -> Queue | None:
        """Return the queue, in any order, if it has `most` tenants at most and says all about the next turns: no tenant
        is new or urgent, and all items cost the same."""
        level = self._flat
        if self.ranked or self.unit != ITEMS or not 0 < len(level.heap) <= most or level.newcomer() is not None:
            return None
        if level.stale:
            level.drop_stale()
        return level.heap or None

    def charge_all(self, given: Sequence[Given]) -> None:
        """The tenants of the queue that `alike` returned had their next turns, and were given these items."""
        level = self._flat
        for tenant, items, last, start in given:
            if items:
                tenant.served += items
                tenant.start = start
                level.now = max(level.now, last)
        level.heap = [(one.tenant.start, one.tenant.seq, one.tenant) for one in given]
        heapify(level.heap)
        level.took_newcomer, self.last_cost = False, 1

    def cost(self, tenant: Tenant[L], item_id: int, size_bytes: int) -> float:
        """Return what to charge for an item. Where it is the time of its lease, `lease_over` corrects it later."""
        if self.unit == ITEMS:
            return 1
        if self.unit == BYTES:
            return max(size_bytes, 1) / 1024
        charges = self.charges
        cost = charges[item_id] = self.lease_ms if tenant.lease_ms is None else tenant.lease_ms
        if len(charges) > _CHARGES:
            del charges[next(iter(charges))]
        return cost

    def refund(self, tenant: Tenant[L], size_bytes: int) -> None:
        """An item that was charged did not reach its consumer, or was not begun."""
        if self.unit != BUSY:
            self.correct(tenant, -self.cost(tenant, 0, size_bytes))

    def lease_over(self, tenant: Tenant[L], item_id: int, held_ms: int) -> None:
        """The lease of an item has ended: its tenant is charged for the time in which it held a consumer."""
        charged = self.charges.pop(item_id, None)
        if charged is not None:
            held_ms = max(held_ms, 1)
            before = self.lease_ms if tenant.lease_ms is None else tenant.lease_ms
            tenant.lease_ms = before + (held_ms - before) / _MEAN_OF
            self.lease_ms += (held_ms - self.lease_ms) / _MEAN_OF
            self.correct(tenant, held_ms - charged)

    def correct(self, tenant: Tenant[L], cost: float) -> None:
        """An item that the tenant was given cost this much more than it was charged, or less."""
        tenant.served += cost
        least = tenant.level.now - _BEHIND_ITEMS / tenant.weight
        tenant.start = max(tenant.start + cost / tenant.weight, least)
        self._move(tenant)

    def weigh(self, tenant: Tenant[L], weight: int) -> bool:
        """Give the tenant another weight. Return True if its start has changed."""
        return self._reweigh(tenant, weight, tenant.factor)

    def scale(self, tenant: Tenant[L], factor: float) -> bool:
        """Multiply the tenant's weight by `factor` instead of the last factor. Return True if its start has changed."""
        if factor == tenant.factor:
            return False
        return self._reweigh(tenant, round(tenant.weight / tenant.factor), factor)  # weights are whole numbers

    def _reweigh(self, tenant: Tenant[L], weight: float, factor: float) -> bool:
        """The tenant's debt or credit stays the same number of items. Else an item that it was given at a hundredth of
        its weight would keep it from its turns long after it has all of its weight again."""
        before, tenant.weight, tenant.factor = tenant.weight, weight * factor, factor
        now = tenant.level.now
        if tenant.weight == before or tenant.start == now:
            return False
        tenant.start = now + (tenant.start - now) * before / tenant.weight
        self._move(tenant)
        return True

    def enter(self, tenant: Tenant[L], *, opened: bool = False) -> None:
        """The tenant has items to deliver. A tenant that is passed over stays so.

        `opened`: the items were not enqueued now, so that the tenant is no newcomer. Else the first tenants of a shard
        that opens would be served several times before the last of them."""
        level, away = tenant.level, tenant.away
        if away in (QUEUED, PASSED, HELD):
            return
        if away in (SKIPPED, DOWN):  # a newcomer is one still, and has no credit in the end
            self._return(tenant)
            tenant.away = QUEUED
            tenant.start = max(tenant.start, level.now - _BEHIND_ITEMS / tenant.weight)
            self._queue_first(tenant)
            return
        tenant.away = QUEUED
        tenant.newcomer = tenant.start <= level.now and not opened
        tenant.start = max(tenant.start, level.now)
        self._queue(tenant)

    def leave(self, tenant: Tenant[L], away: int) -> None:
        """The tenant takes no turns until it enters again."""
        self._withdraw(tenant)
        self._return(tenant)
        tenant.away = away

    def skip(self, tenant: Tenant[L], now_ms: int, *, down: bool = False) -> None:
        """The tenant's items cannot be leased for now. It is DOWN if none of their shards is healthy, else SKIPPED."""
        self.leave(tenant, DOWN if down else SKIPPED)
        (self.down if down else self.skipped)[tenant] = now_ms

    def hold(self, names: frozenset[str], withdraw: Callable[[Flow[L]], object]) -> None:
        """Let the tenants with these names take no turns, and all other ones take them again, from the virtual time on:
        no tenant has credit for the time in which it was held. `withdraw` takes a flow from where it is parked, and
        ends its claims on units of throttles: other flows may have them."""
        before, self.held = self.held, names
        for tenant in [self.tenants[name] for name in before - names if name in self.tenants]:
            self._count_held(tenant, -1)
            tenant.away = IDLE
            for flow in tenant.flows.values():
                if flow.ready:
                    flow.wake()
        for tenant in [self.tenants[name] for name in names - before if name in self.tenants]:
            for flow in tenant.flows.values():
                withdraw(flow)
            self.leave(tenant, HELD)
            self.incomplete.pop(tenant, None)
            self._count_held(tenant, 1)

    def _count_held(self, tenant: Tenant[L], sign: int) -> None:
        for flow in tenant.flows.values():
            for lane in flow.lanes:
                self.tallies[lane.term].parked += sign * lane.ready

    def _return(self, tenant: Tenant[L]) -> None:
        if tenant.away == SKIPPED:
            del self.skipped[tenant]
        elif tenant.away == DOWN:
            del self.down[tenant]

    def pass_over(self, tenant: Tenant[L]) -> None:
        """Pass the queued tenant over until `back`."""
        self.leave(tenant, PASSED)
        self._passed.append(tenant)

    def back(self) -> None:
        """Return the tenants that were passed over to their places."""
        for tenant in reversed(self._passed):
            if tenant.away == PASSED:
                tenant.away = QUEUED
                self._queue_first(tenant)
        self._passed.clear()

    def follow(self, unit: str, *, ranked: bool) -> None:
        """Charge items in this unit from now on. `ranked`: let tenants with more urgent items go first.

        What tenants owe in another unit says nothing in this one: it is forgotten."""
        if unit != self.unit:
            self.unit = unit
            self.lease_ms = self.last_cost = 1.0
            self.charges.clear()
            self._debts.clear()
            for tenant in self.tenants.values():
                tenant.lease_ms = None
                self._forgive(tenant)
        if ranked != self.ranked:
            self.ranked = ranked
            self.incomplete.clear()
            self._debts.clear()  # of levels that no tenant has now
            for tenant in self.tenants.values():
                self.place(tenant, UNRANKED if ranked else 0)

    def _forgive(self, tenant: Tenant[L]) -> None:
        if tenant.start > tenant.level.now:
            tenant.start = tenant.level.now
            self._move(tenant)

    def place(self, tenant: Tenant[L], rank: int) -> None:
        """The most urgent item of the tenant has this priority now, or one that is not known.

        The tenant keeps its distance to the virtual time, which each level has for itself. A newcomer keeps its place
        before later newcomers, because each item that arrives calls this."""
        before = tenant.level
        if before.rank == rank:
            return
        level = self._levels.get(rank)
        if level is None:
            level = self._levels[rank] = Level(rank)
        queued = tenant.seq
        if queued and tenant.newcomer:
            del before.newcomers[bisect_left(before.newcomers, (queued,))]
        elif queued:
            self._withdraw(tenant)
        tenant.start += level.now - before.now
        tenant.level = level
        if queued:
            self._queue(tenant, queued if tenant.newcomer else 0)

    def next_up(self, most: int) -> Iterator[Tenant[L]]:
        """Yield about `most` tenants that will probably be served soon: newcomers have every second turn."""
        for _, level in sorted(self._ranks, key=lambda listed: listed[0]):
            for seq, tenant in list(islice(level.newcomers, (most + 1) // 2 if level.heap else most)):
                if tenant.seq == seq:
                    yield tenant
                    most -= 1
            for tenant in list(islice(level.in_heap(), max(most, 0))):
                yield tenant
                most -= 1
            if most <= 0:
                return

    def _queue_first(self, tenant: Tenant[L]) -> None:
        """The tenant returns to its place. Among 100,000 equals, the last place would be far from it, and the page that
        was read for the tenant would be long in memory, or read again."""
        self._first_seq -= 1
        self._queue(tenant, self._first_seq)

    def _queue(self, tenant: Tenant[L], number: int = 0) -> None:
        """Queue the tenant with the next number, or with `number`. Newcomers are in the order of their numbers."""
        level = tenant.level
        if not number:
            self._seq = number = self._seq + 1
        tenant.seq = number
        if not tenant.newcomer:
            heappush(level.heap, (tenant.start, number, tenant))
        elif not level.newcomers or level.newcomers[-1][0] < number:
            level.newcomers.append((number, tenant))
        else:
            level.newcomers.insert(bisect_left(level.newcomers, (number,)), (number, tenant))
        if not level.listed:
            level.listed = True
            heappush(self._ranks, (level.rank, level))

    def _move(self, tenant: Tenant[L]) -> None:
        """The tenant has another start. Newcomers keep their order."""
        if tenant.seq and not tenant.newcomer:
            self._withdraw(tenant)
            self._queue(tenant)

    def _withdraw(self, tenant: Tenant[L]) -> None:
        """Take the tenant out of its level, if it is queued."""
        level, seq = tenant.level, tenant.seq
        if not seq:
            return
        tenant.seq = 0
        if tenant.newcomer and level.newcomers[0][0] == seq:
            level.newcomers.popleft()
        elif not tenant.newcomer and level.heap[0][1] == seq:
            heappop(level.heap)
        else:
            level.dropped()

    def __repr__(self) -> str:
        return f"Turns({len(self.tenants)} tenants, {self.unparked} of {self.ready} ready items unparked)"


_number = itemgetter(1)


class Given(NamedTuple):
    """The tenant is given this number of `items`, the last of them at `last`. Then it starts at `start`."""

    tenant: Tenant[Any]
    items: int
    last: float
    start: float


def shares(queue: Queue, count: int) -> list[int]:
    """Return how many of the next `count` items each tenant gets at most. By rounding it may be one too few."""
    weights = sum([tenant.weight for _, _, tenant in queue])
    last = (count + sum([start * tenant.weight for start, _, tenant in queue])) / weights
    return [min(count, int((last - start) * tenant.weight) + 1) if start <= last else 0 for start, _, tenant in queue]


def next_turns(queue: Queue, items: Sequence[Sequence[E]], count: int) -> tuple[list[E], list[Given]]:
    """Return the items of the next turns, `count` at most, and the part of each tenant. `items` are the next items of
    each tenant: nothing is known from the first turn on for which a tenant has none.

    The result is that of `Turns.first` and `Turns.charge`, one by one. A tenant's turns are at its start, at its start
    + 1 / weight, and so on. So the next turns of all are the first of these numbers in order."""
    turns: list[tuple[float, int, E]] = []
    starts_of: list[list[float]] = []
    known: list[tuple[float, int]] = []
    for (start, number, tenant), own in zip(queue, items, strict=True):
        starts = list(accumulate(repeat(1 / tenant.weight, len(own)), initial=start))
        starts_of.append(starts)
        known.append((starts[-1], number))
        turns += zip(starts, repeat(number), own)  # without the last start
    turns.sort()
    del turns[min(count, bisect_left(turns, min(known))) :]
    counts = Counter(map(_number, turns))
    given = [
        Given(tenant, counts[number], starts[counts[number] - 1], starts[counts[number]])
        for (_, number, tenant), starts in zip(queue, starts_of, strict=True)
    ]
    return [item for _, _, item in turns], given
