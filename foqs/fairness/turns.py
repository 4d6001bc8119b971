"""The turns of a topic's tenants on one host: start-time fair queueing (Goyal, Vin, Cheng 1997). Pure.

A tenant has a virtual start. The tenant with the smallest start is served next and moves on by cost / weight; the
virtual time is the start of the tenant that was served last. A tenant that returns begins at the virtual time, so it
has no credit for the time in which it had nothing to deliver.

A newcomer, whose start the virtual time has passed, would wait for one item of each other tenant. So newcomers stand in
a queue of their own, and every second turn is theirs (as in FQ-CoDel, RFC 8290). Those two turns are the most that the
first of them waits, and a flood of new tenants gets half of the turns at most.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from foqs.fairness.level import Level
from foqs.fairness.topics import Tenure

QUEUED, IDLE, ASIDE, PARKED, PASSED = range(5)
"""Where a tenant stands. QUEUED: among those that take turns. IDLE: none of its items is ready. ASIDE: its items cannot
be leased yet (page, body or shard). PARKED: its items wait for throttles. PASSED: passed over until `Turns.back`."""

_ASIDE_ITEMS = 1_000
"""How far behind the virtual time a tenant from ASIDE begins: a shard that returns does not take all turns."""
_DEBTS = 10_000

Throttles = tuple[str, ...]
"""The throttle keys of a flow, sorted."""


class InFlow(Protocol):
    """A lane, as a flow knows it."""

    ready: int
    tenure: Tenure
    flow: Any


L = TypeVar("L", bound=InFlow)


class Tally:
    """Ready items of a topic on one shard: all of them, and those in parked flows. `lanes` are counted, too."""

    __slots__ = ("lanes", "parked", "ready")

    def __init__(self) -> None:
        self.lanes = self.ready = self.parked = 0


class Tenant(Generic[L]):
    """The items of a topic with one fairness key, `name`. `start`: its virtual start. `given_weight`: of its last
    stored item that had one. `weight`: the one in effect; a change counts from the next turn."""

    __slots__ = (
        "away",
        "changes",
        "flows",
        "given_weight",
        "level",
        "name",
        "newcomer",
        "seq",
        "start",
        "turns",
        "weight",
    )

    def __init__(self, name: str, turns: Turns[L], level: Level[Tenant[L]], start: float) -> None:
        self.name = name
        self.turns = turns
        self.level = level
        self.start = start
        self.weight = 1.0
        self.given_weight = 0  # none was given
        self.changes = -1  # the policies from which `weight` was read
        self.away = IDLE
        self.seq = 0  # of its entry in its level; 0 while it has none
        self.newcomer = False
        self.flows: dict[Throttles, Flow[L]] = {}

    def __repr__(self) -> str:
        return f"Tenant({self.name!r} start={self.start:g} weight={self.weight:g} away={self.away})"


class Flow(Generic[L]):
    """The items of a tenant with one set of throttle keys: a lane on each shard. `rules` is the engine's: what the
    throttles of its keys are. While it is `parked` on a throttle key, its tenant takes no turn for it."""

    __slots__ = ("_parked", "lanes", "rules", "tenant", "throttles")

    def __init__(self, tenant: Tenant[L], throttles: Throttles) -> None:
        self.tenant = tenant
        self.throttles = throttles
        self.lanes: list[L] = []
        self.rules: Any = None
        self._parked: Any = None

    @property
    def parked(self) -> Any:
        """What the flow waits for; None if it may be served. After it was set to None, call `wake`."""
        return self._parked

    @parked.setter
    def parked(self, on: Any) -> None:
        change = (on is not None) - (self._parked is not None)
        self._parked = on
        if change:
            tallies = self.tenant.turns.tallies
            for lane in self.lanes:
                tallies[lane.tenure].parked += change * lane.ready

    @property
    def ready(self) -> int:
        return sum([lane.ready for lane in self.lanes if lane.tenure.shard is not None])

    def count(self, lane: L, items: int) -> None:
        """The number of the lane's ready items changes by `items`."""
        tally = self.tenant.turns.tallies[lane.tenure]
        tally.ready += items
        if self._parked is not None:
            tally.parked += items

    def wake(self) -> None:
        """An item of the flow became ready or came into memory, or the flow is parked no more."""
        tenant = self.tenant
        if self._parked is None:
            unranked = tenant.turns.unranked
            if unranked is not None:
                unranked[tenant] = None
            if tenant.away:
                tenant.turns.enter(tenant)

    def __repr__(self) -> str:
        return f"Flow({self.tenant.name!r} {self.throttles} ready={self.ready} parked={self._parked})"


class Turns(Generic[L]):
    """The tenants of a topic. `unranked`: tenants whose rank may have changed, None where tenants have no ranks.

    `first` returns the tenant whose turn it is; one of `charge`, `leave`, `skip` and `place` must follow."""

    def __init__(self, *, ranked: bool = False) -> None:
        self.tenants: dict[str, Tenant[L]] = {}
        self.tallies: dict[Tenure, Tally] = {}
        self.unranked: dict[Tenant[L], None] | None = {} if ranked else None
        self._seq = 0
        self._flat: Level[Tenant[L]] = Level(0)
        self._levels: WeakValueDictionary[int, Level[Tenant[L]]] = WeakValueDictionary({0: self._flat})
        self._ranks: list[tuple[int, Level[Tenant[L]]]] = []  # a heap of the levels with entries
        self._passed: list[Tenant[L]] = []
        self._debts: OrderedDict[str, tuple[Level[Tenant[L]], float]] = OrderedDict()

    # ------------------------------------------------------------------------------------- lanes

    def attach(self, lane: L, name: str, throttles: Throttles) -> Flow[L]:
        """Add a lane, with its ready items, to its flow.

        A tenant whose items are here already is no newcomer: the first tenants of a shard that opens would be served
        several times before the last of them."""
        tenant = self.tenants.get(name)
        if tenant is None:
            level, start = self._debts.pop(name, (self._flat, self._flat.now))
            tenant = self.tenants[name] = Tenant(name, self, level, start)
        flow = tenant.flows.get(throttles)
        if flow is None:
            flow = tenant.flows[throttles] = Flow(tenant, throttles)
        tally = self.tallies.get(lane.tenure)
        if tally is None:
            tally = self.tallies[lane.tenure] = Tally()
        flow.lanes.append(lane)
        lane.flow = flow
        tally.lanes += 1
        if lane.ready:
            flow.count(lane, lane.ready)
            flow.wake()
            if tenant.newcomer and tenant.seq:
                self._withdraw(tenant)
                tenant.newcomer = False
                self._queue(tenant)
        return flow

    def detach(self, lane: L) -> None:
        """Forget a lane. A tenant without lanes ends; its debt is remembered until the virtual time has passed it."""
        flow: Flow[L] = lane.flow
        flow.count(lane, -lane.ready)
        flow.lanes.remove(lane)
        lane.flow = None
        tally = self.tallies[lane.tenure]
        tally.lanes -= 1
        if not tally.lanes:
            del self.tallies[lane.tenure]
        tenant = flow.tenant
        if flow.lanes:
            return
        del tenant.flows[flow.throttles]
        if not tenant.flows:
            del self.tenants[tenant.name]
            self.leave(tenant, IDLE)
            if self.unranked is not None:
                self.unranked.pop(tenant, None)
            if tenant.start > tenant.level.now:
                self._remember(tenant)

    def _remember(self, tenant: Tenant[L]) -> None:
        debts = self._debts
        while debts:
            level, start = next(iter(debts.values()))
            if len(debts) < _DEBTS and start > level.now:
                break
            debts.popitem(last=False)
        debts[tenant.name] = (tenant.level, tenant.start)

    @property
    def ready(self) -> int:
        """Number of items that are ready on open shards, in memory or not."""
        return sum([tally.ready for tenure, tally in self.tallies.items() if tenure.shard is not None])

    @property
    def unparked(self) -> int:
        """Number of those ready items that wait for no throttle."""
        return sum([tally.ready - tally.parked for tenure, tally in self.tallies.items() if tenure.shard is not None])

    # ------------------------------------------------------------------------------------- turns

    def first(self) -> Tenant[L] | None:
        """Return the tenant whose turn it is; None if no tenant is queued."""
        ranks = self._ranks
        while ranks:
            level = ranks[0][1]
            tenant = level.first()
            if tenant is not None:
                return tenant
            heappop(ranks)
            level.listed = False
        return None

    def charge(self, tenant: Tenant[L], cost: float) -> None:
        """The queued tenant had its turn, and was given an item of this cost: 1, or in the units of the topic."""
        level, heap = tenant.level, tenant.level.heap
        start = tenant.start
        if tenant.newcomer:
            start = max(start, level.now)  # no credit for the wait among newcomers
            self._withdraw(tenant)
            level.took_newcomer, tenant.newcomer = True, False
            tenant.start = start + cost / tenant.weight
            self._queue(tenant)
            return
        level.took_newcomer = False
        level.now = max(level.now, start)
        tenant.start = start = start + cost / tenant.weight
        if heap[0][2] is tenant and heap[0][1] == tenant.seq:
            heapreplace(heap, (start, tenant.seq, tenant))
        else:
            self._withdraw(tenant)
            self._queue(tenant)

    def correct(self, tenant: Tenant[L], cost: float) -> None:
        """An item that the tenant was given cost this much more than it was charged, or less."""
        tenant.start += cost / tenant.weight
        if tenant.seq and not tenant.newcomer:
            self._withdraw(tenant)
            self._queue(tenant)

    def enter(self, tenant: Tenant[L]) -> None:
        """The tenant has items to deliver; not from QUEUED. A tenant that is passed over stays so."""
        level, away = tenant.level, tenant.away
        if away == PASSED:
            return
        tenant.away = QUEUED
        if away == ASIDE:  # a newcomer is one still, and has no credit in the end
            tenant.start = max(tenant.start, level.now - _ASIDE_ITEMS / tenant.weight)
        else:
            tenant.newcomer = tenant.start <= level.now
            tenant.start = max(tenant.start, level.now)
        self._queue(tenant)

    def leave(self, tenant: Tenant[L], away: int) -> None:
        """The tenant takes no turns until it enters again."""
        self._withdraw(tenant)
        tenant.away = away

    def skip(self, tenant: Tenant[L]) -> None:
        """Pass the queued tenant over until `back`."""
        self.leave(tenant, PASSED)
        self._passed.append(tenant)

    def back(self) -> None:
        """Return the tenants that were passed over to their places."""
        for tenant in reversed(self._passed):
            if tenant.away == PASSED:
                tenant.away = QUEUED
                self._queue(tenant, first=True)
        self._passed.clear()

    def place(self, tenant: Tenant[L], rank: int) -> None:
        """The most urgent item of the tenant has this priority now. The tenant keeps its distance to the virtual time,
        which is another one in each level."""
        before = tenant.level
        if before.rank == rank:
            return
        level = self._levels.get(rank)
        if level is None:
            level = self._levels[rank] = Level(rank)
        queued = tenant.seq
        if queued:
            self._withdraw(tenant)
        tenant.start += level.now - before.now
        tenant.level = level
        if queued:
            self._queue(tenant)

    def next_up(self, most: int) -> Iterator[Tenant[L]]:
        """Yield about `most` tenants that will probably be served soon. (A heap is roughly in order.)"""
        for _, level in sorted(self._ranks, key=lambda listed: listed[0]):
            for _, tenant in list(level.newcomers)[:most]:
                if tenant.seq:
                    yield tenant
                    most -= 1
            for _, seq, tenant in level.heap[: max(most, 0)]:
                if tenant.seq == seq:
                    yield tenant
                    most -= 1
            if most <= 0:
                return

    def _queue(self, tenant: Tenant[L], *, first: bool = False) -> None:
        level = tenant.level
        self._seq = tenant.seq = self._seq + 1
        if not tenant.newcomer:
            heappush(level.heap, (tenant.start, tenant.seq, tenant))
        elif first:
            level.newcomers.appendleft((tenant.seq, tenant))
        else:
            level.newcomers.append((tenant.seq, tenant))
        if not level.listed:
            level.listed = True
            heappush(self._ranks, (level.rank, level))

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
