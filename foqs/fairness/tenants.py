"""The tenants of a topic, their flows, which have its lanes, and the levels in which tenants queue. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Any, Generic, Protocol, TypeVar

from foqs.fairness.keys import tenancy_bytes


class ShardTerm:
    """The time between the opening of a shard and its end. `shard` is None after the end.

    Terms are numbered in the order of their begin."""

    __slots__ = ("number", "shard")

    def __init__(self, number: int, shard: Any) -> None:
        self.number = number
        self.shard = shard


_STALE = 64
"""Up to this many entries of tenants that left are kept."""


class Numbered(Protocol):
    """A tenant. `seq`: the number of its entry; an entry with another number is stale."""

    seq: int


N = TypeVar("N", bound=Numbered)


class Level(Generic[N]):
    """The tenants whose most urgent items have one priority, `rank`; the only level where tenants do not compete by
    priority. `now` is its virtual time."""

    __slots__ = ("__weakref__", "heap", "listed", "newcomers", "now", "rank", "stale", "took_newcomer")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.now = 0.0
        self.heap: list[tuple[float, int, N]] = []
        self.newcomers: deque[tuple[int, N]] = deque()
        self.took_newcomer = False
        self.stale = 0  # entries of tenants that left from the middle, which are dropped later
        self.listed = False  # in `Turns._ranks`

    def first(self) -> N | None:
        heap, newcomers = self.heap, self.newcomers
        if newcomers and not self.took_newcomer and (newcomer := self.newcomer()) is not None:
            return newcomer
        while heap:
            _, seq, tenant = heap[0]
            if tenant.seq == seq:
                return tenant
            heappop(heap)
            self.stale -= 1
        return self.newcomer()

    def newcomer(self) -> N | None:
        """Return the newcomer that came first, None if there is none."""
        newcomers = self.newcomers
        while newcomers:
            seq, tenant = newcomers[0]
            if tenant.seq == seq:
                return tenant
            newcomers.popleft()
            self.stale -= 1
        return None

    def in_heap(self) -> Iterator[N]:
        """Yield the tenants that are no newcomers, in the order of their turns. The heap must not change until the end.

        (The first entries of the heap's list would be other tenants: with 100,000 that entered in order, a few branches
        hold the next hundred.)"""
        heap = self.heap
        branches = [(heap[0], 0)] if heap else []
        while branches:
            (_, seq, tenant), at = heappop(branches)
            if tenant.seq == seq:
                yield tenant
            for below in range(2 * at + 1, min(2 * at + 3, len(heap))):
                heappush(branches, (heap[below], below))

    def dropped(self) -> None:
        """An entry became stale. Without turns nothing else drops them."""
        self.stale += 1
        if self.stale > _STALE + (len(self.heap) + len(self.newcomers)) // 2:
            self.drop_stale()

    def drop_stale(self) -> None:
        self.heap = [entry for entry in self.heap if entry[2].seq == entry[1]]
        heapify(self.heap)
        self.newcomers = deque(entry for entry in self.newcomers if entry[1].seq == entry[0])
        self.stale = 0


QUEUED, IDLE, PARKED, PASSED, SKIPPED, DOWN, HELD = range(7)
"""The state of a tenant. QUEUED: it takes turns. IDLE: none of its items is ready. PARKED: its items wait for
throttles. PASSED: passed over until `Turns.back`. SKIPPED: its items cannot be leased yet, for lack of a page, a body
or a confirmation. DOWN: no shard that has its items is healthy. HELD: it is paused, whatever items it has."""

UNRANKED = -(1 << 63)
"""The rank of a tenant whose most urgent item is not known. It comes first, so it gets its rank before any turn."""

Throttles = tuple[str, ...]
"""The throttle keys of a flow, sorted."""


class InFlow(Protocol):
    """A lane, as a flow knows it."""

    ready: int
    weight: int
    term: ShardTerm
    flow: Any


L = TypeVar("L", bound=InFlow)


class Tally:
    """The lanes of a topic on one shard, their ready items, and the ready items in flows that wait."""

    __slots__ = ("lanes", "parked", "ready")

    def __init__(self) -> None:
        self.lanes = self.ready = self.parked = 0


class TakesTurns(Protocol):
    """The part of `Turns` that tenants and flows use."""

    tallies: dict[ShardTerm, Tally]
    ranked: bool
    charges: dict[int, float]
    unweighed: dict[Any, None]

    def enter(self, tenant: Any, *, opened: bool = False) -> None: ...

    def place(self, tenant: Any, rank: int) -> None: ...

    def refund(self, tenant: Any, size_bytes: int) -> None: ...

    def lease_over(self, tenant: Any, item_id: int, held_ms: int) -> None: ...


class Tenant(Generic[L]):
    """The items of a topic with one fairness key, `name`. `start`: its virtual start. `given_weight`: the weight of its
    last stored item that had one. `weight`: the weight in effect, multiplied by `factor`, which balances hosts.
    `served`: the cost of all that it was given; `counted`: the part of it that metrics have. `lease_ms`: the mean of
    its last leases, None before the first ended. `only`: its flow, None if it has or had several. (Most tenants have
    one flow: two dicts for it would take 480 bytes.)"""

    __slots__ = (
        "_flows",
        "_unparked",
        "away",
        "changes",
        "counted",
        "factor",
        "given_weight",
        "lease_ms",
        "level",
        "name",
        "newcomer",
        "only",
        "seq",
        "served",
        "start",
        "turns",
        "weight",
    )

    def __init__(self, name: str, turns: TakesTurns, level: Level[Tenant[L]], start: float) -> None:
        self.name = name
        self.turns = turns
        self.level = level
        self.start = start
        self.weight = self.factor = 1.0
        self.served = self.counted = 0.0
        self.given_weight = 0  # none was given
        self.lease_ms: float | None = None
        self.changes = -1  # the policies from which `weight` was read
        self.away = IDLE
        self.seq = 0  # of its entry in its level; 0 while it has none
        self.newcomer = False
        self.only: Flow[L] | None = None
        self._flows: dict[Throttles, Flow[L]] | None = None  # of a tenant that has or had several
        self._unparked: dict[Flow[L], None] | None = None  # of these

    @property
    def flows(self) -> Mapping[Throttles, Flow[L]]:
        """The flows by their throttle keys."""
        if self._flows is not None:
            return self._flows
        return {self.only.throttles: self.only} if self.only is not None else {}

    @property
    def unparked(self) -> Collection[Flow[L]]:
        """The flows that are not parked."""
        if self._unparked is not None:
            return self._unparked
        return (self.only,) if self.only is not None and self.only.parked is None else ()

    def flow(self, throttles: Throttles) -> Flow[L]:
        """Return the flow with these throttle keys, which is made if it is missing."""
        flow = self.only if self._flows is None else self._flows.get(throttles)
        if flow is not None and flow.throttles == throttles:
            return flow
        made = Flow(self, throttles)
        if flow is None and self._flows is None:
            self.only = made
            return made
        if self._flows is None or self._unparked is None:
            self._flows, self._unparked, self.only = dict(self.flows), dict.fromkeys(self.unparked), None
        self._flows[throttles] = made
        self._unparked[made] = None
        return made

    def drop(self, flow: Flow[L]) -> None:
        """Forget a flow, which has no lane."""
        if self._flows is None or self._unparked is None:
            self.only = None
        else:
            del self._flows[flow.throttles]
            self._unparked.pop(flow, None)

    def noted(self, flow: Flow[L]) -> None:
        """The flow was parked, or woke."""
        if self._unparked is None:
            return
        if flow.parked is not None:
            self._unparked.pop(flow, None)
        elif flow.lanes:
            self._unparked[flow] = None

    def weigh(self, given: int) -> None:
        """An item was stored with this weight."""
        self.given_weight = given
        if self.changes >= 0:  # it may have a debt
            self.turns.unweighed[self] = None
            self.changes = -1

    def newly_served(self) -> float:
        """Return how much it was given since the last call. Service that it gave back is taken off later."""
        newly = max(0.0, self.served - self.counted)
        self.counted += newly
        return newly

    def __repr__(self) -> str:
        return f"Tenant({self.name!r} start={self.start:g} weight={self.weight:g} away={self.away})"


class Flow(Generic[L]):
    """The items of a tenant with one set of throttle keys: a lane on each shard. `rules` is the engine's: the throttles
    of its keys. While it is `parked` on a throttle key, its tenant takes no turn for it. `waits_ms`: when
    it was parked first since its last delivery, 0 if it was not."""

    __slots__ = ("_parked", "lanes", "names_bytes", "rules", "tenant", "throttles", "waits_ms")

    def __init__(self, tenant: Tenant[L], throttles: Throttles) -> None:
        self.tenant = tenant
        self.throttles = throttles
        self.names_bytes = tenancy_bytes(tenant.name, throttles)  # in an answer, for each item
        self.lanes: tuple[L, ...] = ()
        self.rules: Any = None
        self.waits_ms = 0
        self._parked: Any = None

    @property
    def parked(self) -> Any:
        """What the flow waits for; None if it may be served. After it was set to None, call `wake`."""
        return self._parked

    @parked.setter
    def parked(self, on: Any) -> None:
        change = (on is not None) - (self._parked is not None)
        self._parked = on
        self.tenant.noted(self)
        if change:
            tallies = self.tenant.turns.tallies
            for lane in self.lanes:
                tallies[lane.term].parked += change * lane.ready

    @property
    def waits(self) -> bool:
        """Return True if its ready items may not be delivered: it is parked, or its tenant is held."""
        return self._parked is not None or self.tenant.away == HELD

    @property
    def ready(self) -> int:
        return sum([lane.ready for lane in self.lanes if lane.term.shard is not None])

    def merged(self) -> Iterator[L]:
        """Yield the lanes of open shards whose items are in one order with the items of this flow: the lanes of its
        tenant's flows that are not parked, and its own."""
        for flow in self.tenant.unparked if self._parked is None else (self, *self.tenant.unparked):
            for lane in flow.lanes:
                if lane.term.shard is not None:
                    yield lane

    def count(self, lane: L, items: int) -> None:
        """The number of the lane's ready items changes by `items`."""
        tally = self.tenant.turns.tallies[lane.term]
        tally.ready += items
        if self._parked is not None or self.tenant.away == HELD:  # `waits`, as each item comes here
            tally.parked += items

    def wake(self, *, opened: bool = False) -> None:
        """An item of the flow became ready or came into memory, or the flow was unparked. `opened`: see
        `Turns.enter`."""
        tenant = self.tenant
        if self._parked is None:
            if tenant.turns.ranked:
                tenant.turns.place(tenant, UNRANKED)
            if tenant.away:
                tenant.turns.enter(tenant, opened=opened)

    def refund(self, size_bytes: int) -> None:
        """An item of the flow did not reach its consumer, or was not begun."""
        self.tenant.turns.refund(self.tenant, size_bytes)

    @property
    def busy(self) -> bool:
        """Return True if leased items were charged by the mean time of leases."""
        return bool(self.tenant.turns.charges)

    def lease_over(self, item_id: int, held_ms: int) -> None:
        """The lease of an item of the flow has ended."""
        if self.busy:
            self.tenant.turns.lease_over(self.tenant, item_id, held_ms)

    def __repr__(self) -> str:
        return f"Flow({self.tenant.name!r} {self.throttles} ready={self.ready} parked={self._parked})"
